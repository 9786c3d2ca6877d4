"""Ask the log for a decision until it is known what stands."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from tracing_2pc.errors import (
    AbortedError,
    DecisionLogError,
    DecisionUnknownError,
    ParticipantRefusedError,
    TwoPhaseError,
)
from tracing_2pc.failpoints import failpoint
from tracing_2pc.interfaces import DecisionLog, Tracing
from tracing_2pc.model import Receipt, TransactionRecord
from tracing_2pc.protocol.patience import Patience
from tracing_2pc.states import Decision

logger = logging.getLogger("tracing_2pc.coordinator")

T = TypeVar("T")

_REFUSED = f"{ParticipantRefusedError.__module__}.{ParticipantRefusedError.__name__}: "


def until_answered(ask: Callable[[], T], patience: Patience) -> T:
    """Ask the log, and again while it cannot be reached; for what may be asked twice.

    Raises:
        DecisionLogError: still no answer after the inline tries, or the query is being
            stopped; or, at once, a record that cannot be trusted.
    """
    silence: DecisionLogError | None = None
    for count in itertools.islice(patience.tries(), patience.inline_tries):
        try:
            return ask()
        except DecisionLogError as error:
            if error.transaction_id is not None:
                raise
            logger.warning("decision log unreachable: tries=%d: %s", count, error)
            silence = error
    raise silence or DecisionLogError("the decision log was not asked")


def ask_commit(
    log: DecisionLog,
    record: TransactionRecord,
    receipts: Sequence[Receipt],
    patience: Patience,
) -> TransactionRecord | None:
    """Decide commit; a decide that got no answer is asked again, never taken for a no.

    Raises:
        DecisionUnknownError: still no answer after the inline tries, or the query is
            being stopped. The next start asks the log and goes on from what stands.
    """
    last: TwoPhaseError | None = None
    for tries in itertools.islice(patience.tries(), patience.inline_tries):
        try:
            failpoint("driver.before_decide")
            return log.decide(record.id, Decision.COMMIT, receipts)
        except (DecisionUnknownError, DecisionLogError) as error:
            logger.warning("no decision: transaction=%s tries=%d", record.id, tries)
            last = error
    raise DecisionUnknownError(
        f"{record.id}: the decision log did not answer, so it may or may not be "
        "decided commit. The next start of the query asks it again; nothing is lost",
        transaction_id=str(record.id),
    ) from last


def ask_abort(
    log: DecisionLog,
    record: TransactionRecord,
    cause: BaseException,
    tracing: Tracing,
) -> TransactionRecord | None:
    """Decide abort; return what stands, or None if the log did not answer.

    Unanswered it stays active: nobody can commit it without this driver's receipts,
    and the next begin of the application aborts it. A decision that was made here is
    counted here, one that stood is not.
    """
    try:
        decided = log.decide(record.id, Decision.ABORT)
    except TwoPhaseError:
        logger.exception("could not record the abort: transaction=%s", record.id)
        return None
    if decided is not None and decided.made_here:
        tracing.counted(decided, _counted_as(cause))
    # Who asks again what stands already, as after a timeout, says nothing new.
    again = decided is not None and not decided.made_here
    logger.log(
        logging.DEBUG if again else logging.WARNING,
        "asked for abort: transaction=%s cause=%s stands=%s",
        record.id,
        cause if isinstance(cause, _OutOfTimeError) else type(cause).__name__,
        decided.decision if decided else Decision.ABORT,
    )
    return decided


class _OutOfTimeError(TimeoutError):
    """The transaction timeout; a task may have timeouts of its own."""


@dataclasses.dataclass
class Expiry:
    """What is done when a transaction is out of time; called by a timer.

    It asks for abort, and stops the tasks unless the votes were faster.
    """

    log: DecisionLog
    record: TransactionRecord
    cancel: Callable[[TransactionRecord], None]
    tracing: Tracing
    advice: str = ""

    def __call__(self) -> None:
        """Ask for abort."""
        self.advice = self._advice()
        cause = _OutOfTimeError(f"transaction_timeout {self.advice}".strip())
        decided = ask_abort(self.log, self.record, cause, self.tracing)
        if decided is None or decided.decision is Decision.ABORT:
            self.cancel(self.record)

    def raise_with_advice(self, error: BaseException) -> None:
        """Raise an abort again with what to set, if there is something to say."""
        if self.advice and isinstance(error, AbortedError):
            id_ = str(self.record.id)
            raise AbortedError(f"{error} {self.advice}", transaction_id=id_) from error

    def _advice(self) -> str:
        """Say which timeout to set, where the attempt before ran out of time, too."""
        id_ = self.record.id
        try:
            before = self.log.read(dataclasses.replace(id_, attempt=id_.attempt - 1))
        except TwoPhaseError:
            return ""
        if before is None or before.decision is not Decision.ABORT:
            return ""
        if not 0 < before.timeout <= (before.decided or 0.0) - before.started:
            return ""
        return (
            "(the attempt before ran out of time, too: set transaction_timeout to "
            f"{2 * self.record.timeout:g}s or more, or make the batches smaller)"
        )


def _counted_as(cause: BaseException | None) -> str:
    """Say why, by `names.CAUSES`. Spark hands on a task's error as text."""
    if isinstance(cause, _OutOfTimeError):
        return "timeout"
    while cause is not None:
        if isinstance(cause, ParticipantRefusedError) or _REFUSED in str(cause):
            return "vote"
        cause = cause.__cause__
    return "error"


def say_if_replaced(decided: TransactionRecord, cause: BaseException) -> None:
    """Name the reason behind a task's error: what is finished, others have aborted.

    Raises:
        AbortedError: they have.
    """
    plain = isinstance(cause, Exception) and not isinstance(cause, AbortedError)
    if plain and decided.finished is not None:
        raise AbortedError(
            f"{decided.id} was aborted by somebody else while its tasks ran: a newer "
            "run took over, or it ran out of time. Nothing was committed",
            transaction_id=str(decided.id),
        ) from cause
