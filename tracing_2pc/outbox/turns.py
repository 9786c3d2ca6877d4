"""The one process that sends: a thread in each, and a lease in the database."""

from __future__ import annotations

import abc
import atexit
import logging
import secrets
import threading
import time

import sqlalchemy as sa

from tracing_2pc.core.forks import after_fork
from tracing_2pc.outbox.queue import Lease, Queue
from tracing_2pc.store.engines.database import describe_error

logger = logging.getLogger(__name__)


class LeaseLostError(Exception):
    """What was read of the queue may be old: another process may have sent it."""


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
        self._forget()

    @abc.abstractmethod
    def _forget(self) -> None:
        """Forget all that is known here: whoever has sent meanwhile knows better."""

    @abc.abstractmethod
    def _take_turn(self) -> float:
        """Send what can be sent; return seconds until the queue is read again."""

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
            try:
                pause = self.turn()
            except sa.exc.SQLAlchemyError as error:
                why = describe_error(error)
                logger.warning("outbox: the database did not answer: %s", why)
                pause = self._lease / 3
                self._give_up()
            except Exception:  # the queue is kept, and looked at again
                logger.warning("outbox: nothing sent, will look again", exc_info=True)
                pause = self._lease / 3
                self._give_up()
            self._wake.wait(pause)
        try:
            self._queue.let_go(self._holder)
        except sa.exc.SQLAlchemyError:
            logger.info("outbox: the lease runs out by itself")

    def _give_up(self) -> None:
        """Forget all, once the lease may be another's: it could not be asked."""
        if time.monotonic() - self._held > self._lease:
            self._held = -float("inf")
            self._forget()

    def turn(self) -> float:
        """Send what can be sent; return seconds until the queue is read again."""
        if self._hold() is Lease.REFUSED:
            return self._lease / 3
        try:
            return self._take_turn()
        except LeaseLostError:
            self._held = -float("inf")  # ask again, however short ago it was held
            return 0.0

    def _hold(self) -> Lease:
        """Hold the lease for at least two thirds of its time from now.

        Unless it is renewed, all that is known here is forgotten: whoever had it
        meanwhile went on from answers of its own.
        """
        now = time.monotonic()
        if now - self._held <= self._lease / 3:
            return Lease.RENEWED
        lease = self._queue.hold(self._holder, self._lease)
        if lease is not Lease.REFUSED:
            self._held = now
        if lease is not Lease.RENEWED:
            self._forget()
        return lease

    def _keep_lease(self) -> None:
        """Raise if the lease was another's since the queue was read, or is."""
        if self._hold() is not Lease.RENEWED:
            raise LeaseLostError
