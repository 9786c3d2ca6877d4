"""A person decides, signs for it, and cannot break a decision of the log."""

from __future__ import annotations

import getpass
import os
from typing import Final, Literal, NamedTuple, TypeAlias

from tracing_2pc.core.errors import (
    ConfigurationError,
    ContractError,
    ParticipantError,
    ParticipantRefusedError,
)
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.core.model import Carrier, TransactionId, TransactionRecord
from tracing_2pc.core.ports import DecisionLog, SystemClock
from tracing_2pc.core.remote_participant import RemoteParticipant
from tracing_2pc.core.states import UNFINISHED, Decision, TransactionState
from tracing_2pc.inspection.actions import CONCLUDE, GIVE_UP
from tracing_2pc.inspection.evidence import is_forgotten, may_be_begun
from tracing_2pc.inspection.participants import report_of
from tracing_2pc.inspection.wording import format_duration, join_names
from tracing_2pc.tracing.transaction import (
    OpenTelemetryTracing,
    count_operator_action,
    operator_span,
)

LONGEST_REASON: Final = 1000
"""Characters; participants take no more either."""

Outcome: TypeAlias = Literal["mixed", "hazard"]


class GiveUp(NamedTuple):
    """Wait no more for a participant that is gone for good."""

    participant: str


Resolution: TypeAlias = Decision | Outcome | GiveUp
"""A person's possible decisions about a transaction in the log."""


def check_reason(reason: str) -> str:
    """Return a reason that can be kept and shown, or raise `ConfigurationError`."""
    if not (kept := reason.strip()):
        raise ConfigurationError("--reason: say why; it is kept in the audit")
    if len(kept) > LONGEST_REASON or not kept.isprintable():
        raise ConfigurationError(
            f"--reason: one line of printable text, {LONGEST_REASON} characters at most"
        )
    return kept


def signature() -> str:
    """Return the person who runs this process, and the host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"


# --- in the log ----------------------------------------------------------------------


def resolve(
    log: DecisionLog,
    transaction: TransactionId,
    *,
    wanted: Resolution,
    reason: str,
    who: str | None = None,
) -> TransactionRecord:
    """Decide by hand about a transaction; return the record afterwards.

    An active one may be aborted: the decision is write-once, so this is safe. One
    that is decided, or quarantined, may be delivered again by the word that was
    decided: it is committing or aborting when this returns, and the caller sends it.
    A quarantined one may be concluded as mixed or hazard, which closes it and lets its
    application begin again. A participant that is gone for good while its answer is
    waited for is given up: the others are told, and then it is concluded. An aborted
    one that a stream has passed is left as it is, and called lost no more. Each is in
    the audit, with the reason, and with the person who runs this process unless `who`
    is given.

    Raises:
        ConfigurationError: no such transaction, or no reason.
        ContractError: the log has the other decision, or not every vote is known.
    """
    reason, who = check_reason(reason), who or signature()
    record = check_resolution(log, transaction, wanted)
    action, participant = _action_of(wanted)
    with operator_span(action, transaction, record.carrier, participant):
        if isinstance(wanted, GiveUp):
            log.give_up(transaction, wanted.participant, who=who, why=reason)
        elif not isinstance(wanted, Decision):
            log.conclude(transaction, wanted, who=who, why=reason)
        elif record.state is TransactionState.ACTIVE:
            log.abort(transaction, who=who, why=reason)
        elif record.state is TransactionState.QUARANTINED:
            log.resume(transaction, wanted, who=who, why=reason)
        elif record.finished is not None:
            log.leave(transaction, who=who, why=reason)
        else:
            state, author = str(record.state), {"who": who, "why": reason}
            log.sign("deliver", transaction, before=state, after=state, **author)
    if record.state is TransactionState.QUARANTINED:
        tracing = OpenTelemetryTracing()
        tracing.quarantined(record, action)
        if action == CONCLUDE:
            tracing.finished(record, str(wanted))
    count_operator_action(action)
    return log.read(transaction) or record


def _action_of(wanted: Resolution) -> tuple[str, str | None]:
    """Return the word of a resolution, and the participant that it is about."""
    if isinstance(wanted, GiveUp):
        return GIVE_UP, wanted.participant
    return (str(wanted) if isinstance(wanted, Decision) else CONCLUDE), None


def check_resolution(
    log: DecisionLog, transaction: TransactionId, wanted: Resolution
) -> TransactionRecord:
    """Return the record, which allows a person to decide this.

    Raises:
        ConfigurationError: no such transaction.
        ContractError: the record does not allow it.
    """
    if (record := log.read(transaction)) is None:
        raise ConfigurationError(
            f"{transaction}: the log holds no such transaction. If a participant holds "
            "it prepared, name that one: --at PARTICIPANT"
        )
    if (objection := _objection(record, wanted)) is not None:
        raise ContractError(f"{record.id} {objection}")
    return record


def _objection(record: TransactionRecord, wanted: Resolution) -> str | None:
    state, quarantined = record.state, record.state is TransactionState.QUARANTINED
    passed = state is TransactionState.ABORTED and record.passed_by is not None
    active, decided = state is TransactionState.ACTIVE, state in UNFINISHED
    again = f"--{record.decision} delivers the decision again"
    if isinstance(wanted, GiveUp):
        if active:
            return "is undecided: --abort decides it first"
        if quarantined:
            return "is quarantined: --conclude closes it"
        if not decided:
            return f"is {state}: it waits for no participant"
        if (name := wanted.participant) in record.pending:
            return None
        return f"does not wait for {name}: it waits for {join_names(record.pending)}"
    if wanted is Decision.ABORT and (active or passed):
        return None
    if active:
        # Rule 1: without every vote nobody may decide commit.
        return "is undecided: only --abort is possible, because not every vote is known"
    if not decided and not quarantined:
        return (
            f"is {state}: nothing is left for a person to decide in the log. If a "
            "participant holds it prepared, name that one: --at PARTICIPANT"
        )
    if isinstance(wanted, Decision) and wanted is not record.decision:
        return (
            f"is decided {record.decision}, which stands: --{wanted} would split it. "
            f"{again}"
        )
    if not isinstance(wanted, Decision) and not quarantined:
        return f"is {state}: only what is quarantined can be concluded. {again}"
    return None


# --- at a participant ----------------------------------------------------------------


def resolve_orphan(
    log: OperatorLog,
    participant: RemoteParticipant,
    transaction: TransactionId,
    outcome: Decision,
    *,
    reason: str,
    who: str,
    orphan_after: float,
) -> None:
    """Commit or abort, at one participant, a transaction that no record can finish.

    It must have been in doubt there for `orphan_after` seconds. Signed in the log
    before the participant is asked, and again with the result: a crash between the two
    leaves the first, and nothing is done without one.

    Raises:
        ConfigurationError: no reason, or nothing of it is in doubt there.
        ContractError: the log can finish it, has decided otherwise, or it is too young.
        DecisionLogError: the log cannot be read, and nothing was done.
        ParticipantRefusedError: the participant refused, and nothing was done.
        ParticipantUnavailableError: no answer: it may or may not have been done.
    """
    reason = check_reason(reason)
    carrier = check_orphan(log, participant, transaction, outcome, orphan_after)
    record = log.read(transaction)
    journal = record.journal_of(participant.name) if record else None
    name, author = participant.name, {"who": who, "why": reason}
    before = f"prepared at {name}"

    def sign(after: str) -> None:
        log.sign("resolve", transaction, before=before, after=after, **author)

    with operator_span(str(outcome), transaction, carrier, name):
        sign(f"{name} is told to {outcome}")
        try:
            participant.resolve(transaction, outcome, reason, journal)
        except ParticipantError as error:
            sign(_answer_of(name, error))
            raise
        sign(f"{outcome_word(outcome)} at {name}")
    count_operator_action(str(outcome))


def outcome_word(outcome: Decision) -> str:
    """Return the state of a transaction after a decision: committed or aborted."""
    return "committed" if outcome is Decision.COMMIT else "aborted"


def _answer_of(name: str, error: ParticipantError) -> str:
    if isinstance(error, ParticipantRefusedError):
        return f"{name} refused"
    if error.refusal is not None:
        return f"{name} answered {error.refusal}"
    return f"no trusted answer from {name}"


def check_orphan(
    log: OperatorLog,
    participant: RemoteParticipant,
    transaction: TransactionId,
    outcome: Decision,
    orphan_after: float,
) -> Carrier:
    """Refuse a transaction that is no orphan, or not yet; return its trace context.

    Raises:
        ConfigurationError: nothing of it is in doubt there.
        ContractError: the log can finish it, has decided otherwise, or it is too young.
        ParticipantUnavailableError: the participant cannot be asked.
    """
    # The list first: what it holds without a record is then never too new.
    age, carrier = _in_doubt_there(participant, transaction)
    # Rule 9: the log is read before anything is resolved.
    if (objection := _objection_of_log(log, transaction, outcome)) is not None:
        raise ContractError(f"{transaction}{objection}")
    if age < orphan_after:
        raise ContractError(
            f"{transaction} is in doubt at {participant.name} for "
            f"{format_duration(age)} only, by its clock: wait another "
            f"{format_duration(orphan_after - age)} (orphan_after)"
        )
    return carrier


def _in_doubt_there(
    participant: RemoteParticipant, transaction: TransactionId
) -> tuple[float, Carrier]:
    """Return its age by the participant's clock, and its trace context."""
    listing = participant.prepared(transaction.application)
    branches = [b for b in listing.branches if b.transaction == transaction]
    if branches:
        return max(b.age for b in branches), branches[0].carrier
    answer = participant.show(transaction)
    oldest = report_of(participant.name, answer, SystemClock().now()).oldest
    if oldest is None:
        hint = "" if listing.complete else f"; its list {listing.missing}"
        raise ConfigurationError(
            f"{transaction}: nothing of it is in doubt at {participant.name}, which "
            f"says {answer.state}{hint}"
        )
    return oldest, Carrier()


def _objection_of_log(
    log: OperatorLog, transaction: TransactionId, outcome: Decision
) -> str | None:
    """Return the log's objection: a record can finish it, may come, or differs."""
    # Before the record is read: a driver may begin it between the two.
    may_come = may_be_begun(log, transaction)
    record = log.read(transaction)
    if record is None and may_come:
        return (
            ": this log has no record of it, and can still write one, because it has "
            "begun nothing later. Start its query, which then finishes it"
        )
    if record is None:
        forgotten = log.forgotten_by_application().get(transaction.application)
        if outcome is Decision.COMMIT and is_forgotten(transaction, forgotten):
            return (
                " is at or below forgotten_through: another attempt at its batch may "
                "have been committed, so only --abort is safe"
            )
        return None
    if record.finished is None:
        word = record.decision or Decision.ABORT
        return (
            f" is {record.state} in the log, which can finish it: `tracing-2pc resolve "
            f"{transaction} --{word}`, without --at"
        )
    concluded = record.state is TransactionState.CONCLUDED
    if record.decision is not outcome and not concluded:
        return (
            f" is {record.state} in the log: at a participant only --{record.decision} "
            "is possible"
        )
    return None
