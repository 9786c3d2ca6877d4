"""The one sender of an outbox: a thread per process, a lease in the database."""

from __future__ import annotations

import atexit
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa

from tracing_2pc.failpoints import failpoint
from tracing_2pc.participant.resources.partner import Partner, is_refusal
from tracing_2pc.participant.resources.queue import Queue, Request

_POLL: Final = 0.5
"""Seconds between two looks: another process may have committed."""

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0

_log: Final = logging.getLogger(__name__)


class Sender:
    """Sends what is queued, in order, one at a time, while it holds the lease.

    Args:
        queue: what is to be sent.
        partner: to whom.
        lease: seconds that the lease is good for.
        clock: Unix seconds.
    """

    def __init__(
        self, queue: Queue, partner: Partner, lease: float, clock: Callable[[], float]
    ) -> None:
        self._queue = queue
        self._partner = partner
        self._lease = lease
        self._clock = clock
        self._process = 0
        self._starting = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._holder = ""
        self._held = -float("inf")
        self._failures = 0
        self._resume = -float("inf")

    def start(self) -> None:
        """Start the thread of this process, once."""
        if self._process == os.getpid():
            return
        with self._starting:
            if self._process == os.getpid():
                return
            self._process = os.getpid()
            self._holder = secrets.token_hex(16)
            self._held = -float("inf")
            self._wake, self._stopping = threading.Event(), threading.Event()
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
        self._stopping.set()
        self._wake.set()
        if self._thread is not None and self._process == os.getpid():
            self._thread.join(self._lease)
        atexit.unregister(self.stop)

    def _run(self) -> None:
        while True:
            self._wake.clear()
            if self._stopping.is_set():  # after clear: a stop before it is not missed
                break
            try:
                pause = self._turn()
            except sa.exc.SQLAlchemyError as error:
                # Its text may hold a record.
                about = {"error": type(error).__name__}
                _log.warning("outbox: the database did not answer", extra=about)
                pause = self._lease / 3
            except Exception:  # noqa: BLE001 - the queue is kept, and looked at again
                _log.warning("outbox: nothing sent, will look again", exc_info=True)
                pause = self._lease / 3
            self._wake.wait(pause)
        try:
            self._queue.let_go(self._holder)
        except sa.exc.SQLAlchemyError:
            _log.info("outbox: the lease runs out by itself")

    def _turn(self) -> float:
        """Send what can be sent; returns seconds until the next look."""
        if not self._hold():
            return self._lease / 3
        if (left := self._resume - time.monotonic()) > 0:
            return min(left, self._lease / 3)
        requests = self._queue.next()
        for request in requests:
            if self._stopping.is_set() or not self._hold():
                return 0.0
            if not self._send(request):
                return 0.0
        return 0.0 if requests else _POLL

    def _hold(self) -> bool:
        """Hold the lease for at least two thirds of it from now."""
        now = time.monotonic()
        if now - self._held <= self._lease / 3:
            return True
        if self._queue.hold(self._holder, self._lease):
            self._held = now
            return True
        return False

    def _send(self, request: Request) -> bool:
        """Send one request; False means it has to be sent again, after a pause."""
        failpoint("outbox.before_call")
        status = self._partner.send(request)
        failpoint("outbox.after_call")
        if 200 <= status < 300:
            self._queue.confirmed(request)
        elif is_refusal(status):
            if self._queue.refused(request, status, self._clock()):
                about = {"request": request.key, "status": status}
                _log.error("outbox: refused by the partner, quarantined", extra=about)
        else:
            self._back_off(request, status)
            return False
        self._failures = 0
        return True

    def _back_off(self, request: Request, status: int) -> None:
        most = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        self._resume = time.monotonic() + random.uniform(0, most)  # noqa: S311 - jitter
        about = {"request": request.key, "status": status}
        _log.warning("outbox: not confirmed, will be sent again", extra=about)
