"""Waiting for a condition; for a process that starts, see `Process.until_answers`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    look: Callable[[], T],
    holds: Callable[[T], object] = bool,
    *,
    seconds: float = 60.0,
    tell: Callable[[T], object] = repr,
) -> T:
    """Return what is found as soon as it holds.

    Args:
        look: asked again and again.
        holds: of what it returns; by default that it is true.
        seconds: after which it has failed.
        tell: what a failure says of what was found last.

    Raises:
        TimeoutError: it did not hold in time.
    """
    end = time.monotonic() + seconds
    while not holds(found := look()):
        if time.monotonic() > end:
            raise TimeoutError(f"not so after {seconds:g} s: {tell(found)}")
        time.sleep(0.05)
    return found
