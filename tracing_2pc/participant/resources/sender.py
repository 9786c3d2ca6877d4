"""The one sender of an outbox: a thread per process, a lease in the database."""

from __future__ import annotations

import atexit
import collections
import dataclasses
import itertools
import logging
import random
import secrets
import threading
import time
from typing import Final

import sqlalchemy as sa

from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.forks import after_fork
from tracing_2pc.core.model import log_fields
from tracing_2pc.core.ports import SystemClock
from tracing_2pc.participant.resources.partner import Partner, PartnerAnswer
from tracing_2pc.participant.resources.queue import MOST_REFUSALS, Queue, Request
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.store.engines.database import describe_error
from tracing_2pc.tracing.propagation import of_try

_POLL: Final = 0.5
"""Seconds between two reads of the queue: another process may have committed."""

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0

_TRIES: Final = 10
"""After so many in vain the partner is sent the next request, too."""

logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class _Waiting:
    """An application whose first request was not taken."""

    failures: int = 0
    resume: float = -float("inf")


class Sender:
    """Sends queued requests, one at a time, while it holds the lease.

    Applications take turns, a request each. If a request is not taken its application
    waits, with growing pauses, and the others go on.

    Args:
        queue: of requests.
        partner: which they are sent to.
        lease: seconds.
    """

    def __init__(self, queue: Queue, partner: Partner, lease: float) -> None:
        self._queue = queue
        self._partner = partner
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
        self._waiting = collections.defaultdict[str, _Waiting](_Waiting)
        # Applications whose last request was taken, as far as is known here.
        self._taken: set[str] = set()

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
                pause = self._turn()
            except sa.exc.SQLAlchemyError as error:
                why = describe_error(error)
                logger.warning("outbox: the database did not answer: %s", why)
                pause = self._lease / 3
            except Exception:  # the queue is kept, and looked at again
                logger.warning("outbox: nothing sent, will look again", exc_info=True)
                pause = self._lease / 3
            self._wake.wait(pause)
        try:
            self._queue.let_go(self._holder)
        except sa.exc.SQLAlchemyError:
            logger.info("outbox: the lease runs out by itself")

    def _turn(self) -> float:
        """Send what can be sent; return seconds until the queue is read again."""
        if not self._hold():
            return self._lease / 3
        now = time.monotonic()
        ready = [
            self._queue.next(application)
            for application in self._queue.applications()
            if self._waiting[application].resume <= now
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

    def _hold(self) -> bool:
        """Hold the lease for at least two thirds of its time from now."""
        now = time.monotonic()
        if now - self._held <= self._lease / 3:
            return True
        if self._queue.hold(self._holder, self._lease):
            self._held = now
            return True
        self._waiting.clear()  # its new holder goes on from its own answers
        self._taken.clear()
        return False

    def _send(self, request: Request) -> bool:
        """Send one request; False means that the queue has to be read again."""
        failpoint("outbox.before_call")
        answer = self._ask_partner(request)
        failpoint("outbox.after_call")
        if is_settled := self._settle(request, answer):
            self._waiting.pop(request.transaction.application, None)
        elif self._send_next(request):
            # Sent once more at once: otherwise more requests would overtake it.
            self._send_last_time(request)
            self._waiting.pop(request.transaction.application, None)
        else:
            self._back_off(request, answer)
        return is_settled

    def _ask_partner(self, request: Request) -> PartnerAnswer:
        in_vain = self._waiting[request.transaction.application].failures
        carrier = of_try(request.carrier, in_vain)
        return self._partner.send(dataclasses.replace(request, carrier=carrier))

    def _settle(self, request: Request, answer: PartnerAnswer) -> bool:
        """Drop what was taken, quarantine what was refused; False if it stays."""
        application = request.transaction.application
        if answer.is_taken:
            is_first = application not in self._taken
            self._queue.confirmed(request, after_refusals=is_first)
            self._taken.add(application)
            return True
        if not answer.is_refused:
            return False
        self._taken.discard(application)
        if self._queue.count_refusal(application) > MOST_REFUSALS:
            logger.error(
                "outbox: stopped, the partner refuses all in a row: application=%s "
                "refusals=%d",
                application,
                MOST_REFUSALS,
            )
            return False
        self._quarantine(request, answer, "refused by the partner")
        return True

    def _send_next(self, request: Request) -> bool:
        """Send the request after one that failed often; True if that was settled.

        Its refusal shows as well as its acceptance that the partner is there.
        """
        application = request.transaction.application
        if self._waiting[application].failures + 1 < _TRIES:
            return False
        following = self._queue.next(application, request)
        if not following or self._stopping.is_set() or not self._hold():
            return False
        return self._settle(following[0], self._ask_partner(following[0]))

    def _send_last_time(self, request: Request) -> None:
        answer = self._partner.send(request)
        if answer.is_taken:
            self._settle(request, answer)
        else:
            self._quarantine(request, answer, "fails alone, passed over")

    def _quarantine(self, request: Request, answer: PartnerAnswer, why: str) -> None:
        if self._queue.move_to_quarantine(request, answer.code):
            logger.error(
                "outbox: request quarantined: request=%s status=%d: %s",
                request.key,
                answer.code,
                why,
                extra=log_fields(request.transaction, request.carrier),
            )

    def _back_off(self, request: Request, answer: PartnerAnswer) -> None:
        waiting = self._waiting[request.transaction.application]
        waiting.failures += 1
        retry = RetryPolicy(
            SystemClock(), _FIRST_PAUSE, _LONGEST_PAUSE, uniform=random.uniform
        )
        pause = retry.pause_before(waiting.failures + 1)
        waiting.resume = time.monotonic() + pause
        logger.warning(
            "outbox: not confirmed, will be sent again: request=%s status=%d",
            request.key,
            answer.code,
            extra=log_fields(request.transaction, request.carrier),
        )
