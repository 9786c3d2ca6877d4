"""Ask the log for a decision until it is known what stands."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tracing_2pc.core.errors import (
    AbortedError,
    DecisionLogError,
    DecisionUnknownError,
    ParticipantRefusedError,
    TwoPhaseError,
)
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import Receipt, TransactionRecord
from tracing_2pc.core.ports import DecisionLog, Tracing
from tracing_2pc.core.settings import without_secrets
from tracing_2pc.core.states import Decision
from tracing_2pc.protocol.retry import RetryPolicy

logger = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_DETAIL: Final = 500
"""Characters that are kept of what failed."""


def ask_until_answered(ask: Callable[[], T], retry: RetryPolicy) -> T:
    """Ask the log, again while it cannot be reached; for requests safe to repeat.

    Raises:
        DecisionLogError: still no answer after the inline tries, or the query is being
            stopped; or, at once, a record that cannot be trusted.
    """
    last = DecisionLogError("the decision log was not asked")
    for tries in itertools.islice(retry.tries(), retry.inline_tries):
        try:
            return ask()
        except DecisionLogError as error:
            if error.transaction_id is not None:
                raise
            logger.warning("decision log unreachable: tries=%d: %s", tries, error)
            last = error
    raise last


def decide_commit(
    log: DecisionLog,
    record: TransactionRecord,
    receipts: Sequence[Receipt],
    retry: RetryPolicy,
) -> TransactionRecord | None:
    """Decide commit; ask again without an answer, never take silence for a no.

    Raises:
        DecisionUnknownError: still no answer after the inline tries, or the query is
            being stopped. The next start asks the log and goes on from the decision
            that stands.
    """
    last: TwoPhaseError | None = None
    for tries in itertools.islice(retry.tries(), retry.inline_tries):
        try:
            failpoint("driver.before_decide")
            # Rule 2: durable when it returns; its return is the commit point.
            return log.decide(record.id, Decision.COMMIT, receipts)
        except (DecisionUnknownError, DecisionLogError) as error:
            # Rule 15: no answer is asked again, never taken for a no.
            text = "no decision: transaction=%s tries=%d: %s"
            logger.warning(text, record.id, tries, error, extra=record.log_fields)
            last = error
    raise DecisionUnknownError(
        f"{record.id}: the decision log did not answer, so it may or may not be "
        "decided commit. The next start of the query asks it again; nothing is lost",
        transaction_id=str(record.id),
    ) from last


def decide_abort(
    log: DecisionLog,
    record: TransactionRecord,
    cause: BaseException,
    tracing: Tracing,
    detail: str,
) -> TransactionRecord | None:
    """Decide abort; return what stands, or None if the log did not answer.

    `detail` is what failed, and goes on record in a line.
    Without an answer it stays active: no process can commit it without this driver's
    receipts, and the next begin of the application aborts it. A decision that was
    made here is counted here, one that stood is not.
    """
    try:
        word = _cause_of_abort(cause)
        line = in_a_line(detail)
        decided = log.decide(record.id, Decision.ABORT, cause=word, detail=line)
    except TwoPhaseError:
        text = "could not record the abort: transaction=%s"
        logger.exception(text, record.id, extra=record.log_fields)
        return None
    if decided is not None and decided.newly_decided:
        tracing.count_decision(decided)
    # An abort that stood already, as after a timeout, was logged before.
    again = decided is not None and not decided.newly_decided
    logger.log(
        logging.DEBUG if again else logging.WARNING,
        "asked for abort: transaction=%s cause=%s stands=%s",
        record.id,
        cause if isinstance(cause, OutOfTimeError) else type(cause).__name__,
        decided.decision if decided else Decision.ABORT,
        extra=record.log_fields,
    )
    return decided


def describe_cause(error: BaseException) -> str:
    """Return what was raised: in our words, or the class and its message."""
    kind = "" if isinstance(error, TwoPhaseError) else f"{type(error).__name__}: "
    return f"{kind}{error}"


def in_a_line(text: str) -> str:
    """Return a text as it goes on record: one line, bounded, no secret that we know."""
    line = " ".join(without_secrets(text).split()).rstrip(": ")
    # As each database can hold it, so that a root is the same before and after.
    line = line.replace("\0", "").encode("utf-8", "backslashreplace").decode()
    # The log itself says at the end of a reason what has passed.
    line = line.replace("; passed by batch", ", passed by batch")
    return line if len(line) <= LONGEST_DETAIL else f"{line[: LONGEST_DETAIL - 1]}…"


class OutOfTimeError(TimeoutError):
    """The transaction timeout; a task may have timeouts of its own."""


def _cause_of_abort(cause: BaseException | None) -> str:
    """Return why, one of `names.CAUSES`."""
    if isinstance(cause, OutOfTimeError):
        return "timeout"
    while cause is not None:
        if isinstance(cause, ParticipantRefusedError):
            return "vote"
        cause = cause.__cause__
    return "error"


def raise_if_superseded(decided: TransactionRecord, cause: BaseException) -> None:
    """Raise `AbortedError` if another process's abort is behind a task's error."""
    # Another process has aborted it if it is finished already.
    plain = isinstance(cause, Exception) and not isinstance(cause, AbortedError)
    if plain and decided.finished is not None:
        raise AbortedError(
            f"{decided.id} was aborted by somebody else while its tasks ran: a newer "
            "run took over, or it ran out of time. Nothing was committed",
            transaction_id=str(decided.id),
        ) from cause
