"""How many random histories are looked at: a few always, many by `make stateful`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def explore(
    machine: Callable[[], RuleBasedStateMachine],
    *,
    steps: int,
    quick: int,
    thorough: int,
) -> None:
    """Take a machine through random histories, as `HYPOTHESIS_PROFILE` says.

    Args:
        machine: makes one, once for each history.
        steps: at most so many in a history.
        quick: so many histories, the same ones every time; without a profile.
        thorough: so many histories, others every time.
    """
    profile = os.environ.get("HYPOTHESIS_PROFILE", "quick")
    chosen = settings(
        settings.get_profile(profile),
        stateful_step_count=steps,
        max_examples={"quick": quick, "thorough": thorough}[profile],
    )
    logging.disable()  # each of them is full of faults
    try:
        run_state_machine_as_test(machine, settings=chosen)
    finally:
        logging.disable(logging.NOTSET)
