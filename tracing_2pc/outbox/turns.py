"""The one process that sends: a thread in each, and a lease in the database."""

from __future__ import annotations

import abc
import atexit
import contextlib
import logging
import random
import secrets
import threading
import time
from typing import Final

import sqlalchemy as sa

from tracing_2pc.core.forks import after_fork
from tracing_2pc.core.ports import SystemClock
from tracing_2pc.outbox.queue import Queue
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.store.engines.database import describe_error
from tracing_2pc.store.lease import LeaseState

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Seconds after a failure, at most; the pauses double with each further one."""

ALONE: Final = 2
"""Failures of turns in a row after which another process may try."""

logger = logging.getLogger(__name__)


class LeaseLostError(Exception):
    """The queue as read may be old: another process may have sent from it."""


def pause_after(failures: int) -> float:
    """Return how long to wait after so many failures in a row; seconds."""
    retry = RetryPolicy(
        SystemClock(), FIRST_PAUSE, LONGEST_PAUSE, uniform=random.uniform
    )
    return retry.pause_before(failures + 1)


class Turns(abc.ABC):
    """Takes turns while this process holds the lease, of so many seconds."""

    def __init__(self, queue: Queue, lease: float) -> None:
        self._queue = queue
        self._lease = lease
        self._reset()
        after_fork(self._reset)

    def _reset(self) -> None:
        """Forget the thread and the lease: after a fork they are the parent's."""
        self._starting = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._holder = secrets.token_hex(16)
        self._held = -float("inf")
        self._failures = 0  # of turns, in a row
        self._forget()

    @abc.abstractmethod
    def _forget(self) -> None:
        """Drop what was read or concluded: another process may have sent since."""

    @abc.abstractmethod
    def _take_turn(self) -> float:
        """Send what can be sent; return seconds until the queue is read again."""

    def _report(self, reason: str) -> None:  # noqa: B027 - a sender has no place for it
        """Put on record why turns fail, if that can be done."""

    def start(self) -> None:
        """Start the thread of this process, once."""
        with self._starting:
            if self._thread is not None:
                return
            self._thread = threading.Thread(
                target=self._run, name="tpc-outbox-sender", daemon=True
            )
            self._thread.start()
            atexit.register(self.stop)

    def wake(self) -> None:
        """Look for something to send now."""
        self._wake.set()

    def rest(self) -> None:
        """End the request under way, give the lease back; `start` starts it again."""
        self.stop()
        if self._thread is not None and not self._thread.is_alive():
            self._reset()

    def stop(self) -> None:
        """End the request under way, give the lease back, and stay stopped."""
        if self._thread is not None:
            self._stopping.set()
            self._wake.set()
            self._thread.join(self._lease)
        atexit.unregister(self.stop)

    def _run(self) -> None:
        while True:
            self._wake.clear()
            if self._stopping.is_set():  # after clear: a stop before it is not missed
                break
            pause = self.turn()
            # A commit does not end the pause after a failure.
            (self._stopping if self._failures else self._wake).wait(pause)
        try:
            self._queue.let_go(self._holder)
        except sa.exc.SQLAlchemyError:
            logger.info("outbox: the lease runs out by itself")

    def turn(self) -> float:
        """Send what can be sent; return seconds until the queue is read again.

        After any error in a turn the next one starts over from the database.
        """
        try:
            is_held = self._hold() is not LeaseState.REFUSED
            pause = self._take_turn() if is_held else self._lease / 3
        except Exception as error:  # noqa: BLE001 - the queue is kept, and read again
            return self._start_over(error)
        self._failures = 0
        return pause

    def _start_over(self, error: Exception) -> float:
        """Drop cached state, and log the reason; return seconds to wait.

        Whether a change was made whose commit was not answered, only the database
        knows. After a few failures the lease is given back: then another process can
        try. Nothing that is raised here ends the thread, which no request would start
        again.
        """
        self._failures += 1
        self._held = -float("inf")
        self._forget()
        is_lost = isinstance(error, LeaseLostError)
        if is_lost and self._failures == 1:
            return 0.0
        pause, reason = pause_after(self._failures), describe_error(error)
        if is_lost:
            reason = "what is on record changes"
            logger.warning("outbox: nothing is sent: pause=%.1f: %s", pause, reason)
        elif isinstance(error, sa.exc.SQLAlchemyError):
            text = "outbox: the database did not answer: pause=%.1f: %s"
            logger.warning(text, pause, reason)
        else:
            text = "outbox: a turn has failed: pause=%.1f"
            logger.warning(text, pause, exc_info=error)
        if self._failures > 1:
            with contextlib.suppress(Exception):
                self._report(reason)
        if self._failures > ALONE:
            with contextlib.suppress(Exception):
                self._leave()
        return pause

    def _leave(self) -> float:
        """Give the lease back; return for how long to leave it to others, in seconds.

        Others look at it each third of its time.
        """
        self._held = -float("inf")
        self._queue.let_go(self._holder)
        return self._lease / 2

    def _hold(self) -> LeaseState:
        """Hold the lease for at least two thirds of its time from now.

        Unless it is renewed, cached state is dropped: another process that had it
        meanwhile may have sent.
        """
        now = time.monotonic()
        if now - self._held <= self._lease / 3:
            return LeaseState.RENEWED
        lease = self._queue.hold(self._holder, self._lease)
        if lease is not LeaseState.REFUSED:
            self._held = now
        if lease is not LeaseState.RENEWED:
            self._forget()
        return lease

    def _keep_lease(self) -> None:
        """Raise if the lease was another's since the queue was read, or is."""
        if self._hold() is not LeaseState.RENEWED:
            raise LeaseLostError
