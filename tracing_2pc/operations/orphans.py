"""What is prepared at a participant and no record of the log can finish: by hand."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tracing_2pc.errors import (
    ConfigurationError,
    ContractError,
)
from tracing_2pc.interfaces import SystemClock
from tracing_2pc.model import Carrier, TransactionId
from tracing_2pc.operations.observation import Observed
from tracing_2pc.operations.said import said
from tracing_2pc.protocol.diagnosis import lasting
from tracing_2pc.states import Decision, TransactionState
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.store.overview import Filters


class Resolving(Observed, Protocol):
    """A participant at which a person may decide."""

    def resolve(
        self, transaction: TransactionId, outcome: Decision, reason: str
    ) -> None:
        """Commit or abort there what is prepared, by hand."""


class Prepared(NamedTuple):
    """What is in doubt there: for how long by its own clock, and whose trace it is."""

    age: float
    carrier: Carrier


def check_orphan(
    log: SqlDecisionLog,
    participant: Resolving,
    transaction: TransactionId,
    outcome: Decision,
    orphan_after: float,
) -> Prepared:
    """Return what is in doubt there; refuse what is no orphan, or not yet one.

    Raises:
        ConfigurationError: nothing of it is in doubt there.
        ContractError: the log can finish it, has decided otherwise, or it is too young.
        ParticipantUnavailableError: the participant cannot be asked.
    """
    # The list first: what it holds without a record is then never too new.
    found = _prepared(participant, transaction)
    check_log(log, transaction, outcome)
    if found.age < orphan_after:
        raise ContractError(
            f"{transaction} is in doubt at {participant.name} for "
            f"{lasting(found.age)} only, by its clock: wait another "
            f"{lasting(orphan_after - found.age)} (orphan_after)"
        )
    return found


def _prepared(participant: Observed, transaction: TransactionId) -> Prepared:
    listing = participant.prepared(transaction.application)
    branches = [b for b in listing.branches if b.transaction == transaction]
    if branches:
        return Prepared(max(b.age for b in branches), branches[0].carrier)
    shown = participant.show(transaction)
    oldest = said(participant.name, shown, SystemClock().now()).oldest
    if oldest is None:
        hint = "" if listing.complete else f"; its list {listing.missing}"
        raise ConfigurationError(
            f"{transaction}: nothing of it is in doubt at {participant.name}, which "
            f"says {shown.state}{hint}"
        )
    return Prepared(oldest, {})


def check_log(
    log: SqlDecisionLog, transaction: TransactionId, outcome: Decision
) -> None:
    """Refuse what a record can finish, what may get one, and the other word.

    Raises:
        ContractError: and what to do instead.
    """
    # Before the record: a driver may begin it between the two.
    may_come = may_be_begun(log, transaction)
    record = log.read(transaction)
    if record is None:
        if may_come:
            raise ContractError(
                f"{transaction}: this log has no record of it, and can still write "
                "one, because it has begun nothing later. Start its query, which then "
                "finishes it"
            )
        if outcome is Decision.COMMIT and is_forgotten(log, transaction):
            raise ContractError(
                f"{transaction} is at or below the watermark: another attempt at its "
                "batch may have been committed, so only --abort is safe"
            )
        return
    if record.finished is None:
        word = record.decision or Decision.ABORT
        raise ContractError(
            f"{transaction} is {record.state} in the log, which can finish it: "
            f"`tracing-2pc resolve {transaction} --{word}`, without --at"
        )
    concluded = record.state is TransactionState.CONCLUDED
    if record.decision is not outcome and not concluded:
        raise ContractError(
            f"{transaction} is {record.state} in the log: at a participant only "
            f"--{record.decision} is possible"
        )


def may_be_begun(log: SqlDecisionLog, transaction: TransactionId) -> bool:
    """Whether a driver could still begin an attempt of this id (rules 3 and 19).

    Only for a transaction without a record; asked before that is looked for, a *no*
    still holds when none is found.
    """
    known = transaction.application in log.overview.watermarks()
    if not known or is_forgotten(log, transaction):
        return False
    newest = log.overview.transactions(Filters(transaction.application, limit=1))
    return not newest or newest[0].transaction < transaction


def is_forgotten(log: SqlDecisionLog, transaction: TransactionId) -> bool:
    """Whether it is at or below the watermark of its application."""
    watermark = log.overview.watermarks().get(transaction.application)
    return watermark is not None and transaction.batch <= watermark
