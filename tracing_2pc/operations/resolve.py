"""A person decides, signs for it, and cannot break what the log has decided."""

from __future__ import annotations

import dataclasses
from typing import Literal

from tracing_2pc.errors import (
    ConfigurationError,
    ContractError,
    ParticipantError,
    ParticipantRefusedError,
)
from tracing_2pc.interfaces import DecisionLog
from tracing_2pc.model import TransactionId, TransactionRecord
from tracing_2pc.operations.actions import GIVE_UP
from tracing_2pc.operations.orphans import Resolving, check_orphan
from tracing_2pc.operations.signing import check_reason, signature
from tracing_2pc.states import UNFINISHED, Decision, TransactionState
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.telemetry.operator import acted, acting

Outcome = Literal["mixed", "hazard"]


@dataclasses.dataclass(frozen=True, slots=True)
class GiveUp:
    """Wait no more for a participant that is gone for good."""

    participant: str


Wanted = Decision | Outcome | GiveUp
"""What a person can say about a transaction in the log."""


def resolve(
    log: DecisionLog,
    transaction: TransactionId,
    *,
    wanted: Wanted,
    reason: str,
    who: str | None = None,
) -> TransactionRecord:
    """Say what shall happen to a transaction; return the record afterwards.

    An active one may be aborted: the decision is write-once, so this is safe. One
    that is decided, or quarantined, may be delivered again by the word that was
    decided: it is committing or aborting when this returns, and the caller sends it.
    A quarantined one may be concluded as mixed or hazard, which closes it and lets its
    application begin again. A participant that is gone for good while its answer is
    waited for is given up: the others are told, and then it is concluded. Each is in
    the audit.

    Args:
        log: the decision log.
        transaction: which one.
        wanted: the word.
        reason: one line; kept.
        who: the person; by default who runs this process.

    Raises:
        ConfigurationError: no such transaction, or no reason.
        ContractError: the log holds the other word, or not every vote is known.
    """
    reason = check_reason(reason)
    if (record := log.read(transaction)) is None:
        raise ConfigurationError(
            f"{transaction}: the log holds no such transaction. If a participant holds "
            "it prepared, name that one: --at PARTICIPANT"
        )
    check_word(record, wanted)
    action, at = word_of(wanted)
    with acting(action, transaction, record.carrier, at):
        _write(log, record, wanted, who or signature(), reason)
    acted(action)
    return log.read(transaction) or record


def word_of(wanted: Wanted) -> tuple[str, str | None]:
    """Return the word for what is wanted, and the participant that it is about."""
    if isinstance(wanted, GiveUp):
        return GIVE_UP, wanted.participant
    return (str(wanted) if isinstance(wanted, Decision) else "conclude"), None


def _write(
    log: DecisionLog,
    record: TransactionRecord,
    wanted: Wanted,
    who: str,
    why: str,
) -> None:
    if isinstance(wanted, GiveUp):
        log.give_up(record.id, wanted.participant, who=who, why=why)
    elif not isinstance(wanted, Decision):
        log.conclude(record.id, wanted, who=who, why=why)
    elif record.state is TransactionState.ACTIVE:
        log.abort(record.id, who=who, why=why)
    elif record.state is TransactionState.QUARANTINED:
        log.resume(record.id, wanted, who=who, why=why)
    else:
        state = str(record.state)
        log.sign(f"deliver {record.id}", who=who, why=why, before=state, after=state)


def check_word(record: TransactionRecord, wanted: Wanted) -> None:
    """Refuse what the log's record does not allow a person to say.

    Raises:
        ContractError: and why.
    """
    state = record.state
    if isinstance(wanted, GiveUp):
        _check_give_up(record, wanted.participant)
        return
    if state is TransactionState.ACTIVE:
        if wanted is Decision.ABORT:
            return
        raise ContractError(
            f"{record.id} is undecided: only --abort is possible, because nobody "
            "knows every vote"
        )
    if state not in UNFINISHED and state is not TransactionState.QUARANTINED:
        raise ContractError(
            f"{record.id} is {state}: nothing is left for a person to decide in the "
            "log. If a participant holds it prepared, name that one: --at PARTICIPANT"
        )
    if isinstance(wanted, Decision) and wanted is not record.decision:
        raise ContractError(
            f"{record.id} is decided {record.decision}, which stands: --{wanted} would "
            f"split it. --{record.decision} delivers the decision again"
        )
    if not isinstance(wanted, Decision) and state is not TransactionState.QUARANTINED:
        raise ContractError(
            f"{record.id} is {state}: only what is quarantined can be concluded. "
            f"--{record.decision} delivers the decision again"
        )


def _check_give_up(record: TransactionRecord, participant: str) -> None:
    if record.state is TransactionState.ACTIVE:
        raise ContractError(f"{record.id} is undecided: --abort decides it first")
    if record.state is TransactionState.QUARANTINED:
        raise ContractError(f"{record.id} is quarantined: --conclude closes it")
    if record.state in UNFINISHED and participant not in record.pending:
        raise ContractError(
            f"{record.id} does not wait for {participant}: it waits for "
            f"{' and '.join(record.pending) or 'nobody'}"
        )
    if record.state not in UNFINISHED:
        raise ContractError(f"{record.id} is {record.state}: it waits for nobody")


def resolve_orphan(
    log: SqlDecisionLog,
    participant: Resolving,
    transaction: TransactionId,
    *,
    outcome: Decision,
    reason: str,
    who: str,
    orphan_after: float,
) -> None:
    """Commit or abort at one participant what no record of the log can finish.

    Signed in the log before the participant is asked, and again with what came of it:
    a crash between the two leaves the first, and nothing is done without one.

    Args:
        log: the decision log; if it cannot be read, nothing is done.
        participant: where it is prepared.
        transaction: which one.
        outcome: what to do with all that is prepared of it there.
        reason: one line; kept in the log and there.
        who: the person.
        orphan_after: seconds for which it must have been in doubt.

    Raises:
        ConfigurationError: no reason, or nothing of it is in doubt there.
        ContractError: the log can finish it, has decided otherwise, or it is too young.
        ParticipantRefusedError: the participant says no, and nothing was done.
        ParticipantUnavailableError: no answer: it may or may not have been done.
    """
    reason = check_reason(reason)
    found = check_orphan(log, participant, transaction, outcome, orphan_after)
    name, what = participant.name, f"resolve {transaction}"
    before = f"prepared at {name}"

    def sign(after: str) -> None:
        log.sign(what, who=who, why=reason, before=before, after=after)

    with acting(str(outcome), transaction, found.carrier, name):
        sign(f"{name} is told to {outcome}")
        try:
            participant.resolve(transaction, outcome, reason)
        except ParticipantError as error:
            sign(_answered(name, error))
            raise
        done = "committed" if outcome is Decision.COMMIT else "aborted"
        sign(f"{done} at {name}")
    acted(str(outcome))


def _answered(name: str, error: ParticipantError) -> str:
    if isinstance(error, ParticipantRefusedError):
        return f"{name} refused"
    if error.status is not None:
        return f"{name} answered {error.status}"
    return f"no answer from {name}"
