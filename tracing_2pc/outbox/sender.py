"""The turn of an outbox whose partner is asked request by request."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import time
from collections.abc import Sequence
from typing import Final

from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import log_fields
from tracing_2pc.outbox.partner import LONGEST_ASKED, Partner, PartnerAnswer
from tracing_2pc.outbox.partner_request import in_bulks
from tracing_2pc.outbox.requests import MOST_REFUSALS, Request, Requests
from tracing_2pc.outbox.turns import Turns, pause_after
from tracing_2pc.tracing.propagation import thin_out_after

POLL: Final = 0.5
"""Seconds between two reads of the queue: another process may have committed."""

TRIES: Final = 10
"""After so many in vain the partner is sent the next request, too."""

logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class _Waiting:
    """An application whose first request was not taken."""

    failures: int = 0  # in a row, of any of its requests: the pauses grow with them
    resume: float = -float("inf")  # when it is sent something again
    key: str = ""  # of its first request
    tries: int = 0  # of that one alone, in vain
    # Requests of which it was logged that they cannot even be sent.
    faults: set[str] = dataclasses.field(default_factory=set)
    reason: str = ""  # the reason that was logged: once, until it changes


class Sender(Turns):
    """Sends queued requests, one at a time, while it holds the lease.

    Applications take turns, a request each. If a request is not taken its application
    waits, with growing pauses, and the others go on.
    """

    def __init__(self, requests: Requests, partner: Partner, lease: float) -> None:
        self._requests = requests
        self._partner = partner
        super().__init__(requests.queue, lease)

    def _forget(self) -> None:
        self._waiting = collections.defaultdict[str, _Waiting](_Waiting)
        # Applications whose last request was taken, as far as is known here.
        self._taken: set[str] = set()
        # Requests of an application that are sent one by one, because all of them
        # together were refused.
        self._singly = collections.Counter[str]()
        # Records that are sent together, where fewer are than may be.
        self._sizes: dict[str, int] = {}
        # Applications of which it was logged that they have stopped.
        self._stopped: set[str] = set()

    def _take_turn(self) -> float:
        now = time.monotonic()
        ready = [
            self._bulks(application)
            for application in self._queue.applications()
            if self._waiting[application].resume <= now
        ]
        waits = set()
        for bulk in itertools.chain.from_iterable(itertools.zip_longest(*ready)):
            if bulk is None or (name := bulk[0].transaction.application) in waits:
                continue
            if self._stopping.is_set():
                return 0.0
            self._keep_lease()
            if not (self._send(bulk[0]) if len(bulk) == 1 else self._send_bulk(bulk)):
                waits.add(name)
        return 0.0 if any(ready) else POLL

    def _bulks(self, application: str) -> list[list[Request]]:
        """Return its next requests, each with those that are sent together with it.

        After a bulk that was not taken only one, of half the size, is sent; and each
        request alone, where all together were refused.
        """
        requests, size = self._requests.next(application), self._size(application)
        if left := self._singly[application]:
            requests, size = requests[:left], 1
        try:
            bulks = list(in_bulks(requests, size))
        except Exception:  # noqa: BLE001 - one cannot be read: sent alone, it is found
            bulks = [[request] for request in requests]
        is_waiting = self._waiting[application].failures > 0
        return bulks[:1] if is_waiting and self._requests.bulk > 1 else bulks

    def _size(self, application: str) -> int:
        return self._sizes.get(application, self._requests.bulk)

    def _send(self, request: Request) -> bool:
        """Send one request; False means that the queue has to be read again."""
        failpoint("outbox.before_call")
        answer = self._ask_partner(request)
        failpoint("outbox.after_call")
        if is_settled := self._settle(request, answer):
            self._grow([request])
            self._singly[request.transaction.application] -= 1
            self._singly += collections.Counter()  # keeps what is above 0
        elif self._send_next(request):
            # Sent once more at once: otherwise more requests would overtake it.
            self._send_last_time(request)
            self._waiting.pop(request.transaction.application, None)
        else:
            self._back_off([request], answer)
        return is_settled

    def _send_bulk(self, bulk: Sequence[Request]) -> bool:
        """Send several as one; False means that the queue has to be read again."""
        failpoint("outbox.before_call")
        answers = self._ask_together(bulk)
        failpoint("outbox.after_call")
        if len(answers) == 1 and answers[0].is_refused:
            # One of them may be the reason: each gets an answer of its own.
            self._singly[bulk[0].transaction.application] = len(bulk)
            return False
        if len(answers) == 1:
            answers = [*answers] * len(bulk)
        left = self._settle_bulk(bulk, answers)
        if left:
            self._back_off(bulk, left[0][1], left[0][0])
        else:
            self._grow(bulk)
        return not left

    def _grow(self, bulk: Sequence[Request]) -> None:
        """Send larger bulks after one that was taken, unless there was no more to send.

        A smaller one is no evidence about the size that was not taken.
        """
        application = bulk[0].transaction.application
        if len(bulk) < (size := self._size(application)):
            return
        if (waited := self._waiting.pop(application, None)) and waited.reason:
            text = "outbox: sent again, after %d tries in vain: application=%s"
            logger.info(text, waited.failures, application)
        self._sizes[application] = min(2 * size, self._requests.bulk)

    def _settle_bulk(
        self, bulk: Sequence[Request], answers: Sequence[PartnerAnswer]
    ) -> list[tuple[Request, PartnerAnswer]]:
        """Settle each by its own answer, in order; return those that stay."""
        left: list[tuple[Request, PartnerAnswer]] = []
        pairs = zip(bulk, answers, strict=True)
        for is_taken, alike in itertools.groupby(pairs, lambda pair: pair[1].is_taken):
            if is_taken:
                self._confirm(*(request for request, _ in alike), in_turn=not left)
            else:
                left += [pair for pair in alike if not self._settle(*pair)]
        return left

    def _confirm(self, *requests: Request, in_turn: bool) -> None:
        application = requests[0].transaction.application
        is_first = application not in self._taken
        self._requests.confirmed(*requests, in_turn=in_turn, after_refusals=is_first)
        self._taken.add(application)
        self._stopped.discard(application)

    def _ask_partner(self, request: Request) -> PartnerAnswer:
        in_vain = self._waiting[request.transaction.application].failures
        carrier = thin_out_after(request.carrier, in_vain)
        return self._ask_together([dataclasses.replace(request, carrier=carrier)])[0]

    def _ask_together(self, bulk: Sequence[Request]) -> Sequence[PartnerAnswer]:
        """Send a request. An exception is no answer, for this application alone."""
        try:
            return self._partner.send(bulk)
        except Exception as error:  # noqa: BLE001 - the others' requests go on
            self._log_fault(bulk[0], error)
            return [PartnerAnswer(0)]

    def _log_fault(self, request: Request, error: Exception) -> None:
        """Log once that a request cannot even be sent."""
        faults = self._waiting[request.transaction.application].faults
        if request.key in faults:
            return
        faults.add(request.key)
        # Another's message may hold the record.
        cause = str(error) if isinstance(error, TwoPhaseError) else type(error).__name__
        logger.error(
            "outbox: a request cannot be sent: request=%s: %s",
            request.key,
            cause,
            extra=log_fields(request.transaction, request.carrier),
        )

    def _settle(
        self, request: Request, answer: PartnerAnswer, *, in_turn: bool = True
    ) -> bool:
        """Drop what was taken, quarantine what was refused; False if it stays."""
        application = request.transaction.application
        if answer.is_taken:
            self._confirm(request, in_turn=in_turn)
            return True
        if not answer.is_refused:
            return False
        self._taken.discard(application)
        if self._requests.count_refusal(request) > MOST_REFUSALS:
            if application not in self._stopped:
                logger.error(
                    "outbox: stopped, the partner refuses all in a row: "
                    "application=%s refusals=%d",
                    application,
                    MOST_REFUSALS,
                )
            self._stopped.add(application)
            return False
        self._stopped.discard(application)
        self._quarantine(request, answer, "refused by the partner")
        return True

    def _send_next(self, request: Request) -> bool:
        """Send the request after one that failed often; True if that was settled.

        Its refusal shows as well as its acceptance that the partner is there.
        """
        application = request.transaction.application
        waiting = self._waiting[application]
        tries = waiting.tries if waiting.key == request.key else 0
        if tries + 1 < TRIES:
            return False
        following = self._requests.next(application, request)
        if not following or self._stopping.is_set():
            return False
        self._keep_lease()
        answer = self._ask_partner(following[0])
        return self._settle(following[0], answer, in_turn=False)

    def _send_last_time(self, request: Request) -> None:
        self._keep_lease()
        answer = self._ask_together([request])[0]
        if answer.is_taken:
            self._settle(request, answer)
        else:
            self._quarantine(request, answer, "fails alone, passed over")

    def _quarantine(self, request: Request, answer: PartnerAnswer, reason: str) -> None:
        text = answer.body if answer.code else answer.why
        if self._requests.move_to_quarantine(request, answer.code, text):
            logger.error(
                "outbox: request quarantined: request=%s status=%d: %s",
                request.key,
                answer.code,
                reason,
                extra=log_fields(request.transaction, request.carrier),
            )

    def _back_off(
        self,
        bulk: Sequence[Request],
        answer: PartnerAnswer,
        first: Request | None = None,
    ) -> None:
        """Wait before the next bulk of its application, which is half as large.

        `answer` is that to `first`, the first that is left; by default of all.
        """
        request = first or bulk[0]
        application = request.transaction.application
        waiting = self._waiting[application]
        self._sizes[application] = max(1, len(bulk) // 2)
        waiting.failures += 1
        if waiting.key != request.key:
            waiting.key, waiting.tries = request.key, 0
        waiting.tries += len(bulk) == 1
        pause = pause_after(waiting.failures)
        pause = max(pause, min(answer.retry_after, LONGEST_ASKED))
        waiting.resume = time.monotonic() + pause
        reason = answer.why or f"the partner answered {answer.code or 'nothing'}"
        if reason != waiting.reason:
            waiting.reason = reason
            self._requests.note_answer(application, reason)
            self._taken.discard(application)  # the next one that is takes that back
            logger.warning(
                "outbox: not confirmed, sent until it is: request=%s: %s",
                request.key,
                reason,
                extra=log_fields(request.transaction, request.carrier),
            )
