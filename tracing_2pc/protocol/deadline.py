"""The transaction timeout: a warning at 0.8 of it, then the decision is abort."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final

logger = logging.getLogger("tracing_2pc.deadline")

WARN_AT: Final = 0.8


class Deadline:
    """Call `expire` once, from a thread of its own, unless the block ends in time.

    Args:
        seconds: from entering the block; 0 means none.
        expire: what to do; it may run while the block is being left.
        about: the transaction, for the log.
    """

    def __init__(
        self, seconds: float, expire: Callable[[], None], about: object
    ) -> None:
        self._about = about
        self._seconds = seconds
        self._timers = (
            threading.Timer(seconds * WARN_AT, self._warn),
            threading.Timer(seconds, expire),
        )

    def __enter__(self) -> Deadline:
        if self._seconds > 0:
            for timer in self._timers:
                timer.daemon = True
                timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for timer in self._timers:
            timer.cancel()

    def _warn(self) -> None:
        logger.warning(
            "no decision yet: transaction=%s timeout=%gs passed=%g",
            self._about,
            self._seconds,
            WARN_AT,
        )
