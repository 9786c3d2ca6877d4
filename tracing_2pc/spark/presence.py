"""Reports to the decision log that a driver is there, and the end of its query.

So a reader of the log can tell a stream that waits for input from a job that is gone.
A thread reports while the query is active. An end is reported by the callback, by that
thread, or at the exit of the process; a process that is killed reports none, and is
not seen any more. A report that fails is never an error of a batch. Under Connect
nothing is reported: Spark kills the process of a callback at every end of its query.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from tracing_2pc.core.forks import after_fork
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.spark.query_errors import reason_of

EVERY: Final = 10.0
"""Seconds between two reports."""

_LOOK: Final = 1.0
"""Seconds between two looks at whether the query is active."""

_MISSES: Final = 3
"""Looks in a row after which it is not: one may fail."""

_BREAKS_OFF: Final = 30.0
"""Seconds before an interrupted process ends in which an error is of that."""

logger = logging.getLogger(__name__)

_present: Final[dict[tuple[str, str], Presence]] = {}
"""The newest of this process, by the addresses of logs and the applications."""

after_fork(_present.clear)


class Presence:
    """The driver of one run, as it reports itself.

    Args:
        log: the log for its reports, from a thread of its own, too.
        application: the application of the run.
        run: the id of that.
        query: Spark's; only `isActive` and `exception()` are asked.
    """

    def __init__(self, log: OperatorLog, application: str, run: str, query: Any):
        self._log = log
        self._application = application
        self.run = run
        self._query = query
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ended_at = 0.0  # by the monotonic clock
        self._thread = threading.Thread(
            target=self._stay, name=f"tpc-presence-{application}", daemon=True
        )

    def start(self) -> None:
        """Report from now on, until the query ends."""
        self._thread.start()

    def end(self, error: str | None = None) -> None:
        """Report that the run was stopped, or the error that has ended it; once."""
        with self._lock:
            if not self._ended.is_set():
                self._ended_at = time.monotonic()
                self._ended.set()
                self._report_end(error)

    def end_with_process(self) -> None:
        """Report its end, where the process ends first."""
        # In a prompt or a notebook it may be of any line before.
        uncaught = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        was_interrupted = isinstance(uncaught, KeyboardInterrupt)
        if self._ended.is_set():
            # Whatever that broke off on its way: a person has stopped it.
            if was_interrupted and time.monotonic() - self._ended_at < _BREAKS_OFF:
                self._report_end(None)
            return
        if was_interrupted:
            self.end()
            return
        error = self._how_it_ended()
        if error is None and uncaught is not None:
            error = f"its program ended: {type(uncaught).__name__}"
        self.end(error)

    @property
    def is_over(self) -> bool:
        """Whether it reports no more."""
        return self._ended.is_set() or not self._thread.is_alive()

    def _stay(self) -> None:
        due, misses = time.monotonic(), 0
        while not self._ended.is_set():
            misses = 0 if self._is_active() else misses + 1
            if misses >= _MISSES:
                self.end(self._how_it_ended())
            elif not misses and time.monotonic() >= due:
                due = time.monotonic() + EVERY
                with self._lock:
                    if not self._ended.is_set():
                        self._report()
            self._ended.wait(_LOOK)

    def _is_active(self) -> bool:
        try:
            return bool(self._query.isActive)
        except Exception:  # noqa: BLE001 - the JVM may be gone, Py4J has many errors
            return False

    def _how_it_ended(self) -> str | None:
        """Return the error that has ended the query; None where it was stopped."""
        try:
            error = self._query.exception()
        except Exception as unknown:  # noqa: BLE001 - as above
            return reason_of(unknown)
        return None if error is None else reason_of(error)

    def _report(self) -> None:
        host, process, report = os.uname().nodename, os.getpid(), self._log
        self._try(
            lambda: report.report_presence(*self._key, host=host, process=process)
        )

    def _report_end(self, error: str | None) -> None:
        self._try(lambda: self._log.report_end(*self._key, error))

    @property
    def _key(self) -> tuple[str, str]:
        return self._application, self.run

    def _try(self, report: Callable[[], object]) -> None:
        try:
            report()
        except Exception:
            text = "presence not reported: application=%s"
            logger.debug(text, self._application, exc_info=True)


def be_present(
    log: OperatorLog, application: str, run: str, find_query: Callable[[], Any]
) -> None:
    """Report a run of this process until it ends, unless that is done already.

    Nothing is reported where there is no query: a callback that is called by hand.
    """
    key = log.address, application
    known = _present.get(key)
    if known is not None and known.run == run and not known.is_over:
        return
    if (query := find_query()) is None:
        return
    if not _present:
        atexit.unregister(_end_all)
        atexit.register(_end_all)
    _present[key] = Presence(log, application, run, query)
    with contextlib.suppress(RuntimeError):  # no more threads here: it is not seen
        _present[key].start()


def end_presence(
    log: OperatorLog, application: str, batch: int, reason: str | None
) -> None:
    """Report that a batch has ended the run of this process; None: it was stopped."""
    if (presence := _present.get((log.address, application))) is not None:
        presence.end(reason and f"batch {batch}: {reason}")


def _end_all() -> None:
    for presence in list(_present.values()):
        with contextlib.suppress(Exception):
            presence.end_with_process()
