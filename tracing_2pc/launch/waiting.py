"""Waiting for what runs elsewhere, until nobody waits for the vote any more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tracing_2pc.core.errors import AbortedError

_FIRST: Final = 0.1
_LONGEST: Final = 2.0


def wait_for(is_over: Callable[[], bool], stopping: threading.Event, what: str) -> None:
    """Ask until it is over: soon at first, then every two seconds.

    Raises:
        AbortedError: `stopping` was set: the launch has run out of time.
    """
    pause = _FIRST
    while not is_over():
        if stopping.wait(pause):
            raise AbortedError(f"{what} was not over within the launch's `timeout`")
        pause = min(pause * 1.5, _LONGEST)
