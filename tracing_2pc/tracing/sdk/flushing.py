"""Calls that may block on a collector, in bounded time: flushes and the last export."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tracing_2pc.tracing.sdk.exporting import CountedExporter

EXIT_SECONDS: Final = 1.5
logger = logging.getLogger(__name__)
_endings: Final[list[Callable[[], threading.Event | None]]] = []


def at_exit(begin: Callable[[], threading.Event | None]) -> None:
    """Call this at exit, and wait `EXIT_SECONDS` for all that was begun so.

    `begin` returns an event that is set when its call is over; None for nothing to do.
    """
    if not _endings:
        atexit.register(_end)
    _endings.append(begin)


def _end() -> None:
    until = time.monotonic() + EXIT_SECONDS
    for over in [begin() for begin in _endings]:
        if over is not None:
            over.wait(max(0.0, until - time.monotonic()))


class Bounded:
    """Runs calls that may block on a daemon thread, so that a wait for them ends.

    The thread is there from the start: at exit Python no longer starts one.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], object], threading.Event]]
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._run, name="tpc-flush", daemon=True).start()

    def call(self, function: Callable[[], object], seconds: float) -> threading.Event:
        """Run it, and wait at most so long; the event is set when it is over."""
        over = threading.Event()
        self._calls.put((function, over))
        over.wait(seconds)
        return over

    def _run(self) -> None:
        while True:
            function, over = self._calls.get()
            try:
                function()
            except Exception:  # tracing may lose spans, not a thread
                logger.debug("telemetry could not be flushed", exc_info=True)
            over.set()


class Flushing(Bounded):
    """Exports in bounded time. After a flush ran out of it, waits only if that pays.

    `counted` are the exporters that send over a network.

    Raises:
        RuntimeError: no thread can be started, for a limit or because this is the exit.
    """

    def __init__(self, counted: Sequence[CountedExporter]) -> None:
        super().__init__()
        self._counted = counted
        self._late: tuple[threading.Event, int] | None = None

    def flush(self, export: Callable[[], object], seconds: float) -> bool:
        """Export; True if that worked within the time given."""
        if self._is_late():
            return False
        failed, successes = self._counts()
        results: list[object] = []
        over = self.call(lambda: results.append(export()), seconds)
        in_time = over.is_set()
        self._late = None if in_time else (over, successes)
        return in_time and results != [False] and self._counts()[0] == failed

    def _is_late(self) -> bool:
        """Whether a flush ran out of time, and no export has succeeded since."""
        if self._late is None:
            return False
        over, successes = self._late
        if not self._counted:
            return not over.is_set()
        return self._counts()[1] == successes

    def _counts(self) -> tuple[int, int]:
        counted = self._counted
        return sum(c.failed for c in counted), sum(c.successes for c in counted)
