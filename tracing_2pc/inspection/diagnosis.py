"""What is wrong, why, and what is safe: opinions from evidence. No I/O.

A detector finds what looks wrong; any exemption that applies has it left alone. An
exemption reads one kind of evidence. Ages of branches in doubt are by their
participant's clock, ages of records by the log's times against our clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from tracing_2pc.core.model import (
    DeliveryRecord,
    Shown,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import (
    UNFINISHED,
    BranchState,
    Decision,
    DiagnosisKind,
    ParticipantState,
    Severity,
    TransactionState,
    Verdict,
)
from tracing_2pc.inspection.evidence import Evidence, TransactionEvidence
from tracing_2pc.inspection.wording import (
    K,
    format_count,
    format_duration,
    format_time_of_day,
    join_names,
    without_participant,
)

LATE: Final = 10.0
"""Seconds after the decision from which a missing acknowledgement is named."""

GRAVE: Final = frozenset({DiagnosisKind.LOST, DiagnosisKind.DIVERGED})
"""What no waiting mends: rows are not where the decision says."""

_SEALED: Final = (ParticipantState.COMMITTED, ParticipantState.ABORTED)


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """One opinion about one transaction.

    Args:
        severity: how soon a person should look.
        participants: at which of them, in the record's order.
        since: Unix seconds by our clock.
        age: seconds since then, when it was diagnosed.
        why: the evidence, in plain words.
    """

    transaction: TransactionId
    diagnosis: DiagnosisKind
    severity: Severity
    participants: tuple[str, ...]
    since: float
    age: float
    verdict: Verdict
    why: str


class Finding(NamedTuple):
    """What a detector has found, before exemptions are asked."""

    participants: tuple[str, ...]
    age: float
    verdict: Verdict
    why: str


Detector: TypeAlias = Callable[[TransactionEvidence], Finding | None]
Exemption: TypeAlias = Callable[[TransactionEvidence, Settings], str | None]
"""Returns why a transaction must be left alone; None if this does not apply."""


def diagnose(evidence: Evidence, settings: Settings) -> list[Diagnosis]:
    """Return what is wrong. Nothing, where the log could not be read."""
    return [
        diagnosis
        for case in evidence.transactions(settings.safety_interval)
        for diagnosis in diagnose_transaction(case, settings)[0]
    ]


def diagnose_transaction(
    case: TransactionEvidence, settings: Settings
) -> tuple[tuple[Diagnosis, ...], tuple[str, ...]]:
    """Return what is wrong with one transaction, and why the rest is left alone.

    The gravest first; *stuck* only if nothing graver is wrong.
    """
    diagnoses: list[Diagnosis] = []
    left_alone: list[str] = []
    for kind, (detect, exemptions) in DETECTORS.items():
        if diagnoses and kind is DiagnosisKind.STUCK:
            break
        if (finding := detect(case)) is None:
            continue
        reasons = [why for exempt in exemptions if (why := exempt(case, settings))]
        left_alone += reasons
        if not reasons:
            names, age, verdict, why = finding
            critical = kind in GRAVE or age >= settings.stuck_critical
            severity = Severity.CRITICAL if critical else Severity.WARNING
            since = case.now - age
            diagnosis = Diagnosis(
                case.transaction, kind, severity, names, since, age, verdict, why
            )
            diagnoses.append(diagnosis)
    return tuple(diagnoses), tuple(dict.fromkeys(left_alone))


# --- detectors -----------------------------------------------------------------------


def _diverged(case: TransactionEvidence) -> Finding | None:
    """A participant went against the decision, or two against each other."""
    answers = case.answers.items()
    outcomes = {n: outcome for n, answer in answers if (outcome := _outcome_of(answer))}
    decision = case.record.decision if case.record else None
    if decision is None:
        if len(set(outcomes.values())) < 2:
            return None
        against = sorted(outcomes)
        why = "; ".join(f"{name} has {outcomes[name]}" for name in against)
    else:
        committed, aborted = _SEALED
        expected = committed if decision is Decision.COMMIT else aborted
        against = [name for name, outcome in outcomes.items() if outcome != expected]
        if not against:
            return None
        why = "; ".join(f"{name} has {outcomes[name]} it" for name in against)
        why = f"it is decided {decision}, and {why}"
    return Finding(tuple(against), case.idle, Verdict.ESCALATE, why)


def _outcome_of(answer: Shown) -> ParticipantState | None:
    """Return what a participant has made of it: committed, aborted, or nothing yet.

    A branch that a person committed by hand counts before the participant was told.
    """
    if answer.state in _SEALED:
        return answer.state
    if any(branch.state is BranchState.COMMITTED for branch in answer.branches):
        return ParticipantState.COMMITTED
    return None


def _lost(case: TransactionEvidence) -> Finding | None:
    """Passed without a commit, or a participant knows nothing of what it voted for."""
    if case.passed and case.record is not None:
        why = (
            f"it is not committed, and Spark has begun batch {case.record.passed_by} "
            "without writing its batch anew, as if that was done"
        )
        return Finding(case.record.participants, case.idle, Verdict.ESCALATE, why)
    if case.record is None or case.record.decision is not Decision.COMMIT:
        return None
    answers = case.answers
    participants = tuple(
        name
        for name in case.record.participants
        if name in answers and _lacks(case.record, name, answers[name])
    )
    if not participants:
        return None
    states = "; ".join(f"{name} says {answers[name].state}" for name in participants)
    why = f"it is decided commit, and what was prepared is not there: {states}"
    return Finding(participants, case.idle, Verdict.ESCALATE, why)


def _lacks(record: TransactionRecord, name: str, answer: Shown) -> bool:
    if answer.state in _SEALED:
        return False
    chosen = {receipt.branch for receipt in record.chosen(name)}
    if record.finished is not None and not chosen:
        # Receipts go with a later commit, every participant's seal stays: one that
        # does not know of the transaction was put back to before it.
        return record.rows > 0 and answer.state is ParticipantState.UNKNOWN
    return bool(chosen - {branch.branch for branch in answer.branches})


def _decided_not_applied(case: TransactionEvidence) -> Finding | None:
    """Decided commit, and a participant that can be reached still has it prepared."""
    if case.record is None or case.record.state is not TransactionState.COMMITTING:
        return None
    names = tuple(n for n in case.record.pending if n in case.prepared)
    if not names:
        return None
    why = (
        f"it was decided commit {format_duration(case.idle)} ago, and is still "
        f"prepared at {join_names(names)}{_format_tries(case.deliveries, names)}"
    )
    return Finding(names, case.idle, Verdict.FINISH, why)


def _orphaned(case: TransactionEvidence) -> Finding | None:
    """Prepared, and no record of this log can finish it."""
    prepared = case.prepared
    unfinished = case.record is not None and case.record.finished is None
    if unfinished or not prepared:
        return None
    rows = format_count(sum(p.rows for p in prepared.values()), "row")
    verdict, because = _no_record(case)
    why = (
        f"{rows} have been prepared at {join_names(prepared)} for "
        f"{format_duration(case.oldest)}; {because}"
    )
    return Finding(tuple(prepared), case.oldest, verdict, why)


def _no_record(evidence: TransactionEvidence) -> tuple[Verdict, str]:
    application = evidence.transaction.application
    if not evidence.known:
        return Verdict.LEAVE, (
            f"this log does not know application {application}: another log may own it"
        )
    if evidence.closed is TransactionState.ABORTED:
        return Verdict.ABORT, "the log has finished it as aborted"
    if evidence.closed is not None:
        return Verdict.ESCALATE, f"the log has closed it as {evidence.closed}"
    if evidence.forgotten:
        return Verdict.ESCALATE, (
            f"its record is forgotten (forgotten_through {evidence.forgotten_through}),"
            " and with it what was decided"
        )
    return Verdict.ESCALATE, (
        "this log has no record of it, and writes one before every prepare: another "
        f"log may use the name {application} too, or this one is an old copy"
    )


def _stuck(case: TransactionEvidence) -> Finding | None:
    """On record, and idle."""
    record, idle = case.record, format_duration(case.idle)
    if record is None:
        return None
    if record.state is TransactionState.ACTIVE:
        why = f"it was begun {idle} ago and is not decided: "
        if record.deadline is not None:
            why += "by now no driver can be at it"
        else:
            why += "its transaction_timeout is 0, so its driver may be at it"
        names = tuple(n for n in record.participants if n in case.prepared)
        return Finding(names or record.participants, case.idle, Verdict.ABORT, why)
    if record.state not in UNFINISHED:
        return None
    why = (
        f"it is decided {record.decision}, and for {idle} not acknowledged by "
        f"{join_names(record.pending)}{_format_tries(case.deliveries, record.pending)}"
    )
    if own := [name for name in record.pending if name in record.own_sinks]:
        why += f"; only the job can tell {join_names(own)}, a sink of its own: start it"
    return Finding(record.pending, case.idle, Verdict.FINISH, why)


# --- exemptions ----------------------------------------------------------------------


def _decided_just_now(case: TransactionEvidence, settings: Settings) -> str | None:
    """By the log's times."""
    if case.record is None or case.idle >= settings.safety_interval:
        return None
    return f"{_last_step(case)}: it may be under way"


def _closed_by_a_person(case: TransactionEvidence, _: Settings) -> str | None:
    """By the log: a person has looked, and signed for it."""
    concluded = case.closed is TransactionState.CONCLUDED
    return "a person has closed it as it is" if concluded else None


def _inline_tries(case: TransactionEvidence, settings: Settings) -> str | None:
    """By the log's deliveries: a driver that runs asks some times by itself."""
    tried = max((d.retries for d in case.deliveries.values()), default=0)
    if tried >= settings.inline_tries or case.idle >= settings.stuck_after:
        return None
    return f"{tried} of {settings.inline_tries} tries: its driver may be at it"


def _younger_than_an_orphan(
    case: TransactionEvidence, settings: Settings
) -> str | None:
    """By the participant's clock."""
    if case.oldest >= settings.orphan_after:
        return None
    return f"in doubt for {format_duration(case.oldest)} only"


def _idle_in_time(case: TransactionEvidence, settings: Settings) -> str | None:
    """By the log's times: a running driver has its own timeout, a commit retries."""
    if not _is_in_time(case, settings):
        return None
    allowed = format_duration(_allowed_idle(case, settings))
    return f"{_last_step(case)}, and it has {allowed}"


def _attempt_is_live(case: TransactionEvidence, settings: Settings) -> str | None:
    """By the log: nobody but its driver judges what it may still be writing."""
    if case.record is None or case.record.state is not TransactionState.ACTIVE:
        return None
    live = _is_in_time(case, settings)
    return "its attempt is active: its driver decides" if live else None


def _allowed_idle(case: TransactionEvidence, settings: Settings) -> float:
    """Return how long it may be idle; an active attempt as long as its job has set.

    Without a timeout a driver may write for ever; then it is diagnosed when it would
    be critical.
    """
    if case.record is None or case.record.state is not TransactionState.ACTIVE:
        return settings.stuck_after
    return max(settings.stuck_after, case.record.timeout or settings.stuck_critical)


def _is_in_time(case: TransactionEvidence, settings: Settings) -> bool:
    """Whether it may still be idle; a deadline is judged by the log's clock."""
    record, allowed = case.record, _allowed_idle(case, settings)
    if record is None or record.deadline is None or record.decision is not None:
        return case.idle < allowed
    over = case.clock >= record.deadline or case.standstill >= allowed
    return case.idle < settings.stuck_after or not over


def _last_step(case: TransactionEvidence) -> str:
    ahead = case.last_step - case.now
    if ahead < 1.0:
        return f"its last step was {format_duration(case.idle)} ago"
    return (
        f"its last step is on record as {format_duration(ahead)} ahead of this "
        "machine's clock, which was set back, or a driver's is wrong"
    )


DETECTORS: Final[Mapping[DiagnosisKind, tuple[Detector, tuple[Exemption, ...]]]] = {
    K.DIVERGED: (_diverged, (_attempt_is_live, _decided_just_now, _closed_by_a_person)),
    K.LOST: (_lost, (_decided_just_now, _closed_by_a_person)),
    K.DECIDED_NOT_APPLIED: (_decided_not_applied, (_decided_just_now, _inline_tries)),
    K.ORPHANED: (_orphaned, (_younger_than_an_orphan, _closed_by_a_person)),
    K.STUCK: (_stuck, (_attempt_is_live, _idle_in_time)),
}
"""Detectors with the exemptions from them; the gravest first."""


# --- before anything is wrong ---------------------------------------------------------


def held_back(
    application: str,
    decided: float | None,
    deliveries: Iterable[DeliveryRecord],
    now: float,
) -> str | None:
    """Return which participants hold back an application that waits for its commit.

    None for no participant. Named from the first try in vain on, or `LATE` after the
    decision: nothing is wrong yet, but a person who looks wants to know.
    """
    if decided is None:
        return None
    late = now - decided >= LATE
    pending = {
        d.participant: d for d in deliveries if d.pending and (late or d.retries)
    }
    if not pending:
        return None
    since, tries = format_time_of_day(decided, now), _format_tries(pending, pending)
    return f"{application} is held back by {join_names(pending)} since {since}{tries}"


def _format_tries(
    deliveries: Mapping[str, DeliveryRecord], names: Iterable[str]
) -> str:
    records = [deliveries[name] for name in names if name in deliveries]
    retries = max((d.retries for d in records), default=0)
    if not retries:
        return ""
    tries = format_count(retries, "try", "tries")
    for delivery in records:
        if delivery.error:
            last = without_participant(delivery.participant, delivery.error)
            return f" ({tries}; the last answer: {last})"
    return f" ({tries})"
