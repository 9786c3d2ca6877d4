"""The one sender of an outbox: a thread per process, a lease in the database."""

from __future__ import annotations

import atexit
import dataclasses
import itertools
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
from tracing_2pc.participant.resources.queue import MOST_REFUSALS, Queue, Request

_POLL: Final = 0.5
"""Seconds between two looks: another process may have committed."""

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0

_TRIES: Final = 10
"""After so many in vain, the partner is asked to take the request behind."""

_log: Final = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class _Waiting:
    """An application whose first request was not taken."""

    failures: int = 0
    resume: float = -float("inf")


class Sender:
    """Sends what is queued, one at a time, while it holds the lease.

    Applications take turns, a request each. One whose request is not taken waits, with
    growing pauses, and the others go on.

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
        self._waiting: dict[str, _Waiting] = {}
        self._taken: set[str] = set()  # whose last request was, as far as we know

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
        now = time.monotonic()
        ready = [
            self._queue.next(application)
            for application in self._queue.applications()
            if self._resumes(application) <= now
        ]
        waits = set()
        for request in itertools.chain.from_iterable(itertools.zip_longest(*ready)):
            if request is None or (name := request.transaction.application) in waits:
                continue
            if self._stopping.is_set() or not self._hold():
                return 0.0
            if not self._send(request):
                waits.add(name)
        return 0.0 if any(ready) else _POLL

    def _resumes(self, application: str) -> float:
        waiting = self._waiting.get(application)
        return waiting.resume if waiting else -float("inf")

    def _about(self, application: str) -> _Waiting:
        return self._waiting.setdefault(application, _Waiting())

    def _hold(self) -> bool:
        """Hold the lease for at least two thirds of it from now."""
        now = time.monotonic()
        if now - self._held <= self._lease / 3:
            return True
        if self._queue.hold(self._holder, self._lease):
            self._held = now
            return True
        self._waiting.clear()  # who holds it now goes on from its own answers
        self._taken.clear()
        return False

    def _send(self, request: Request) -> bool:
        """Send one request; False means that the queue has to be read again."""
        application = request.transaction.application
        failpoint("outbox.before_call")
        status = self._partner.send(request)
        failpoint("outbox.after_call")
        if 200 <= status < 300:
            self._confirm(request)
        elif is_refusal(status) and self._count_refusal(application):
            self._set_aside_refused(request, status)
        elif self._is_answered_behind(request):
            self._send_last_time(request)
            del self._waiting[application]
            return False  # what was read of the queue is no longer so
        else:
            self._back_off(request, status)
            return False
        self._waiting.pop(application, None)
        return True

    def _send_last_time(self, request: Request) -> None:
        """Send what was passed over once more, at once: else more would overtake it."""
        status = self._partner.send(request)
        if 200 <= status < 300:
            self._confirm(request)
        else:
            why = "outbox: fails alone, passed over, quarantined"
            self._set_aside(request, status, why)

    def _confirm(self, request: Request) -> None:
        application = request.transaction.application
        unknown = application not in self._taken
        self._queue.confirmed(request, after_refusals=unknown)
        self._taken.add(application)

    def _count_refusal(self, application: str) -> bool:
        """Say whether there were few enough in a row to set this one aside."""
        self._taken.discard(application)
        if self._queue.count_refusal(application) <= MOST_REFUSALS:
            return True
        about = {"application": application, "refusals": MOST_REFUSALS}
        _log.error("outbox: stopped, the partner refuses all in a row", extra=about)
        return False

    def _set_aside_refused(self, request: Request, status: int) -> None:
        self._set_aside(request, status, "outbox: refused by the partner, quarantined")

    def _set_aside(self, request: Request, status: int, why: str) -> None:
        if self._queue.set_aside(request, status, self._clock()):
            about = {"request": request.key, "status": status}
            _log.error(why, extra=about)

    def _back_off(self, request: Request, status: int) -> None:
        waiting = self._about(request.transaction.application)
        most = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(waiting.failures, 16))
        waiting.failures += 1
        pause = random.uniform(0, most)  # noqa: S311 - jitter
        waiting.resume = time.monotonic() + pause
        about = {"request": request.key, "status": status}
        _log.warning("outbox: not confirmed, will be sent again", extra=about)

    def _is_answered_behind(self, request: Request) -> bool:
        """Send the request behind one that is not taken: is it that one's fault?

        Not before many tries in vain. A refusal of the one behind shows as well as its
        acceptance that the partner is there.
        """
        application = request.transaction.application
        if self._about(application).failures + 1 < _TRIES:
            return False
        behind = self._queue.next(application, request)
        if not behind or self._stopping.is_set() or not self._hold():
            return False
        status = self._partner.send(behind[0])
        if 200 <= status < 300:
            self._confirm(behind[0])
            return True
        if is_refusal(status) and self._count_refusal(application):
            self._set_aside_refused(behind[0], status)
            return True
        return False
