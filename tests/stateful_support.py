"""How long random histories are looked for: a short while always, longer on demand."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

COMMON: Final = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.register_profile(
    "quick", COMMON, max_examples=10, derandomize=True, database=None
)
settings.register_profile("thorough", COMMON, max_examples=1000)


def explore(
    machine: Callable[[], RuleBasedStateMachine],
    *,
    steps: int,
    weight: float = 1.0,
) -> None:
    """Run a machine through random histories; `make stateful` runs many more.

    Args:
        machine: makes one at its beginning; once for each history.
        steps: at most so many in a history.
        weight: how many times the profile's number of histories.
    """
    logging.disable()  # thousands of histories, each of which is full of faults
    profile = settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
    examples = max(1, round(profile.max_examples * weight))
    chosen = settings(profile, stateful_step_count=steps, max_examples=examples)
    try:
        run_state_machine_as_test(machine, settings=chosen)
    finally:
        logging.disable(logging.NOTSET)
