"""Every number of seconds that tests wait for, and waiting for a condition.

No test may depend on an idle machine: a second of processor time takes ten at a load of
20. So a test waits for what it asserts, never for a time, and what proves that
something is not waited for proves it by the order of events. `make lint` holds this:
see `support/seconds.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

AT_LAST: Final = 900.0
"""Limit of a wait that only a failure reaches; pytest ends a test after twice that."""

RED_AT_LAST: Final = 90.0
"""The same where a rule was taken out, and its test waits for what never comes."""

PATIENT: Final = 600.0
"""For limits of the product, of a client or a stand-in, that must not run out."""

ANSWERED: Final = 15.0
"""For a job's time limit of a request, which must be below all of its others."""

UNDELAYED: Final = 300.0
"""Who needed less has not waited for something that lasts for `PATIENT`."""

AT_ONCE: Final = 0.05
"""For limits of the product that are to run out, as soon as can be."""

SOON: Final = 4.0
"""For limits of the product that are to run out when work is under way."""

PAUSE: Final = 0.05
"""Between two looks at a condition."""


def until(
    look: Callable[[], T],
    holds: Callable[[T], object] = bool,
    *,
    tell: Callable[[T], object] = repr,
) -> T:
    """Return what is found as soon as it holds.

    Args:
        look: asked again and again.
        holds: of what it returns; by default that it is true.
        tell: what a failure says of what was found last.

    Raises:
        TimeoutError: it did not hold at last.
    """
    end = time.monotonic() + AT_LAST
    while not holds(found := look()):
        if time.monotonic() > end:
            raise TimeoutError(f"not so after {AT_LAST:g} s: {tell(found)}")
        time.sleep(PAUSE)
    return found
