"""Diagnoses of a transaction, their causes and safe actions: opinions. No I/O.

A detector finds a symptom; it is left alone if any exemption applies. An
exemption reads one kind of evidence. Ages of branches in doubt are by their
participant's clock, ages of records by the log's times against our clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from tracing_2pc.core.model import (
    DeliveryRecord,
    Shown,
    TransactionId,
    TransactionRecord,
    way_back,
)
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import (
    UNFINISHED,
    BranchState,
    Decision,
    ParticipantState,
    Severity,
    TransactionState,
    Verdict,
)
from tracing_2pc.inspection import kinds
from tracing_2pc.inspection.evidence import Evidence, TransactionEvidence
from tracing_2pc.inspection.jobs import JobState
from tracing_2pc.inspection.kind import Kind, Subject
from tracing_2pc.inspection.participants import Source
from tracing_2pc.inspection.wording import (
    format_count,
    format_duration,
    format_time_of_day,
    join_names,
    without_participant,
)
from tracing_2pc.protocol.retry import PREPARE_SECONDS

LATE: Final = 10.0
"""Seconds after the decision from which a missing acknowledgement is named."""

DRIVER: Final = "its driver"

_SEALED: Final = (ParticipantState.COMMITTED, ParticipantState.ABORTED)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person should know, in the same words on every face."""

    # A transaction, or what could not be read or is not as it must be.
    about: TransactionId | Source
    kind: Kind  # the diagnosis of a transaction, or what else it is
    severity: Severity  # how soon a person should look
    participants: tuple[str, ...]  # at which of them, in the record's order
    since: float  # Unix seconds by our clock; 0 where only that it is so now is known
    age: float  # seconds since then, when it was found
    verdict: Verdict | None  # of a diagnosis: what is safe
    why: str  # the evidence, in plain words
    cure: str = ""  # what mends it

    @property
    def transaction(self) -> TransactionId:
        """The transaction that it is about, where there is a verdict."""
        if not isinstance(self.about, TransactionId):
            raise TypeError(f"{self.about} is no transaction")
        return self.about

    @property
    def text(self) -> str:
        """The kind where it is a word of its own, and the evidence."""
        if self.kind.is_bare:
            return self.why
        word = str(self.kind)  # that of a diagnosis stands in the manual as it is
        if self.kind.subject is not Subject.DIAGNOSIS:
            word = word.replace("_", " ")
        return f"{word}: {self.why}"

    @property
    def is_at_outbox(self) -> bool:
        """Whether it is committed, and has not gone out: the log waits for nothing."""
        return self.kind.is_at_outbox

    @property
    def grave(self) -> bool:
        """Whether no waiting mends it."""
        return self.kind.is_grave

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON; `where` is its subject."""
        words = (self.kind, self.severity, self.verdict)
        kind, severity, verdict = (
            None if word is None else str(word) for word in words
        )
        return {
            "where": str(self.about),
            "kind": kind,
            "severity": severity,
            "participants": list(self.participants),
            "since": self.since,
            "age": self.age,
            "verdict": verdict,
            "why": self.why,
            "cure": self.cure,
        }


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Put the critical ones first, and the oldest of them."""
    return sorted(findings, key=lambda f: (f.severity is not Severity.CRITICAL, -f.age))


class _Detection(NamedTuple):
    """A detector's result, before exemptions are asked."""

    participants: tuple[str, ...]
    age: float
    verdict: Verdict | None
    symptom: str


Detector: TypeAlias = Callable[[TransactionEvidence], _Detection | None]
Exemption: TypeAlias = Callable[[TransactionEvidence, Settings], str | None]
"""Returns the reason to leave a transaction alone; None if it does not apply."""


def diagnose(evidence: Evidence, settings: Settings) -> list[Finding]:
    """Return all diagnoses. None, where the log could not be read."""
    return [
        finding
        for case in evidence.transactions(settings.safety_interval)
        for finding in diagnose_transaction(case, settings)[0]
    ]


def diagnose_transaction(
    case: TransactionEvidence, settings: Settings
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return one transaction's diagnoses, and the reasons to leave the rest alone.

    The gravest first; *stuck*, *quarantined* and *held back* only without a graver one.
    """
    diagnoses: list[Finding] = []
    left_alone: list[str] = []
    for kind, (detect, exemptions) in DETECTORS.items():
        if diagnoses and kind is kinds.STUCK:
            break
        if (detection := detect(case)) is None:
            continue
        reasons = list(filter(None, (exempt(case, settings) for exempt in exemptions)))
        left_alone += reasons
        if not reasons:
            late = detection.age >= settings.stuck_critical
            diagnoses.append(_finding(case, kind, detection, late=late))
    if not diagnoses:
        diagnoses += _by_state(case)
    for delivery in case.deliveries.values():
        if delivery.untold is not None:
            detection = _Detection((delivery.participant,), 0.0, None, delivery.untold)
            diagnoses.append(_finding(case, kinds.NOT_TOLD, detection))
    return tuple(diagnoses), tuple(dict.fromkeys(left_alone))


def _finding(
    case: TransactionEvidence,
    kind: Kind,
    detection: _Detection,
    *,
    late: bool = False,
) -> Finding:
    cure = kind.cure.format(transaction=case.transaction)
    if kind is kinds.LOST and case.passed:
        cure = way_back(case.transaction.batch)
    return Finding(
        case.transaction,
        kind,
        Severity.CRITICAL if late else kind.severity,
        detection.participants,
        case.now - detection.age,
        detection.age,
        detection.verdict,
        detection.symptom,
        cure,
    )


def _by_state(case: TransactionEvidence) -> Iterator[Finding]:
    """Yield the findings of a record's state alone: quarantined, or held back."""
    record, application = case.record, case.transaction.application
    if record is None:
        return
    if record.state is TransactionState.QUARANTINED:
        symptom = (
            "an answer contradicts the decision: work on it has stopped, and "
            f"{application} begins no batch until a person has looked"
        )
        detection = _Detection(record.pending, case.idle, None, symptom)
        yield _finding(case, kinds.QUARANTINED, detection)
    elif reason := held_back(case):
        detection = _Detection(record.pending, case.idle, None, reason)
        yield _finding(case, kinds.HELD_BACK, detection)


# --- detectors -----------------------------------------------------------------------


def _diverged(case: TransactionEvidence) -> _Detection | None:
    """A participant went against the decision, or two against each other."""
    answers = case.answers.items()
    outcomes = {n: outcome for n, answer in answers if (outcome := _outcome_of(answer))}
    decision = case.record.decision if case.record else None
    if decision is None:
        if len(set(outcomes.values())) < 2:
            return None
        against = sorted(outcomes)
        symptom = "; ".join(f"{name} has {outcomes[name]}" for name in against)
    else:
        committed, aborted = _SEALED
        expected = committed if decision is Decision.COMMIT else aborted
        against = [name for name, outcome in outcomes.items() if outcome != expected]
        if not against:
            return None
        symptom = "; ".join(f"{name} has {outcomes[name]} it" for name in against)
        symptom = f"it is decided {decision}, and {symptom}"
    return _Detection(tuple(against), case.idle, Verdict.ESCALATE, symptom)


def _outcome_of(answer: Shown) -> ParticipantState | None:
    """Return a participant's outcome of it: committed, aborted, or None yet.

    A branch that a person committed by hand counts before the participant was told.
    """
    if answer.state in _SEALED:
        return answer.state
    if any(branch.state is BranchState.COMMITTED for branch in answer.branches):
        return ParticipantState.COMMITTED
    return None


def _lost(case: TransactionEvidence) -> _Detection | None:
    """Passed without a commit, or a participant does not know a branch of its vote."""
    if case.passed and case.record is not None:
        symptom = (
            f"it is not committed, and Spark has begun batch {case.record.passed_by} "
            "without writing its batch anew, as if that was done"
        )
        names = case.record.participants
        return _Detection(names, case.idle, Verdict.ESCALATE, symptom)
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
    symptom = f"it is decided commit, and what was prepared is not there: {states}"
    return _Detection(participants, case.idle, Verdict.ESCALATE, symptom)


def _lacks(record: TransactionRecord, name: str, answer: Shown) -> bool:
    if answer.state in _SEALED:
        return False
    chosen = {receipt.branch for receipt in record.chosen(name)}
    if record.finished is not None and not chosen:
        # Receipts go with a later commit, every participant's seal stays: one that
        # does not know of the transaction was put back to before it.
        return record.rows > 0 and answer.state is ParticipantState.UNKNOWN
    return bool(chosen - {branch.branch for branch in answer.branches})


def _decided_not_applied(case: TransactionEvidence) -> _Detection | None:
    """Decided commit, and a participant that can be reached still has it prepared."""
    if case.record is None or case.record.state is not TransactionState.COMMITTING:
        return None
    names = tuple(n for n in case.record.pending if n in case.prepared)
    if not names:
        return None
    symptom = (
        f"it was decided commit {format_duration(case.idle)} ago, and is still "
        f"prepared at {join_names(names)}{_format_cause(case, names)}"
    )
    return _Detection(names, case.idle, Verdict.FINISH, symptom)


def _orphaned(case: TransactionEvidence) -> _Detection | None:
    """Prepared, and no record of this log can finish it."""
    prepared = case.prepared
    unfinished = case.record is not None and case.record.finished is None
    if unfinished or not prepared:
        return None
    rows = format_count(sum(p.rows for p in prepared.values()), "row")
    verdict, because = why_no_record(case)
    symptom = (
        f"{rows} have been prepared at {join_names(prepared)} for "
        f"{format_duration(case.oldest)}; {because}"
    )
    return _Detection(tuple(prepared), case.oldest, verdict, symptom)


def why_no_record(evidence: TransactionEvidence) -> tuple[Verdict, str]:
    """Return the verdict on branches that no record can finish, and its reason."""
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


def _stuck(case: TransactionEvidence) -> _Detection | None:
    """On record, and idle."""
    record, idle = case.record, format_duration(case.idle)
    if record is None:
        return None
    if record.state is TransactionState.ACTIVE:
        symptom = f"it was begun {idle} ago and is not decided: "
        if record.deadline is not None:
            symptom += "by now no driver can be at it"
        else:
            symptom += "its transaction_timeout is 0, so its driver may be at it"
        names = tuple(n for n in record.participants if n in case.prepared)
        names = names or record.participants
        return _Detection(names, case.idle, Verdict.ABORT, symptom)
    if record.state not in UNFINISHED:
        return None
    symptom = (
        f"it is decided {record.decision}, and for {idle} not acknowledged by "
        f"{join_names(record.pending)}{_format_cause(case, record.pending)}"
    )
    if own := [name for name in record.pending if name in record.job_only]:
        symptom += (
            f"; only the job can tell {join_names(own)}, a sink of its own: start it"
        )
    return _Detection(record.pending, case.idle, Verdict.FINISH, symptom)


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
    """By the log: only its driver judges a batch that it may still be writing."""
    if case.record is None or case.record.state is not TransactionState.ACTIVE:
        return None
    if not _is_in_time(case, settings):
        return None
    if is_driver_gone(case):
        return "its attempt is active, and no driver is at it"
    awaited = find_awaited(case)
    return awaited.why if awaited else "its attempt is active: its driver decides"


def _allowed_idle(case: TransactionEvidence, settings: Settings) -> float:
    """Return its longest idle time; an active attempt's is set by its job.

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


DETECTORS: Final[Mapping[Kind, tuple[Detector, tuple[Exemption, ...]]]] = {
    kinds.DIVERGED: (
        _diverged,
        (_attempt_is_live, _decided_just_now, _closed_by_a_person),
    ),
    kinds.LOST: (_lost, (_decided_just_now, _closed_by_a_person)),
    kinds.DECIDED_NOT_APPLIED: (
        _decided_not_applied,
        (_decided_just_now, _inline_tries),
    ),
    kinds.ORPHANED: (_orphaned, (_younger_than_an_orphan, _closed_by_a_person)),
    kinds.STUCK: (_stuck, (_attempt_is_live, _idle_in_time)),
}
"""Detectors with the exemptions from them; the gravest first."""


# --- before anything is wrong ---------------------------------------------------------


def held_back(case: TransactionEvidence) -> str | None:
    """Name the participants that hold back an application that waits for its commit.

    None for no participant. Named from the first failed try on, or `LATE` after the
    decision: nothing is wrong yet, but a person who looks needs the cause.
    """
    record = case.record
    if record is None or record.state is not TransactionState.COMMITTING:
        return None
    decided = record.decided or 0.0
    late = case.now - decided >= LATE
    pending = {
        d.participant: d
        for d in case.deliveries.values()
        if d.pending and (late or d.retries)
    }
    if not pending:
        return None
    # A driver that is gone holds it back, and no participant.
    holders = "" if is_undelivered(case) else f" by {join_names(pending)}"
    since = format_time_of_day(decided, case.now)
    cause = _format_cause(case, pending)
    return f"{record.id.application} is held back{holders} since {since}{cause}"


class Awaited(NamedTuple):
    """The participants that a transaction waits for, as far as that can be seen."""

    names: str  # *ledger's vote*, or *its driver*
    participants: tuple[str, ...] = ()
    why: str = ""  # a clause; with the time for which its job waits at least


def find_awaited(case: TransactionEvidence) -> Awaited | None:
    """Return the votes that an attempt waits for; None if none is known missing.

    A task asks after the begin of its attempt, and for `PREPARE_SECONDS`. No record has
    the time of its first request: so the time left is at least that since the begin.
    """
    record, silent = case.record, case.silent
    if record is None or not silent or is_driver_gone(case):
        return None
    causes = [without_participant(*item) for item in silent.items()]
    if len(silent) > 1:
        causes = [f"{n}: {c}" for n, c in zip(silent, causes, strict=True)]
    begun = max(0.0, case.now - record.started)
    left, whole = PREPARE_SECONDS - begun, format_duration(PREPARE_SECONDS)
    gives_up = f"its job gives up after {whole} without an answer"
    if left > 0:
        gives_up = f"its job gives up in {format_duration(left)} at the earliest"
    names = join_names(f"{name}'s" for name in silent)
    names += " vote" if len(silent) == 1 else " votes"
    wait = (
        f"it waits for {names}, for {format_duration(begun)} at most "
        f"({'; '.join(causes)}); {gives_up}"
    )
    return Awaited(names, tuple(silent), wait)


def find_all_awaited(
    evidence: Evidence, settings: Settings
) -> dict[TransactionId, Awaited]:
    """Return the same of each attempt, and decided ones that wait for their driver."""
    awaited = dict[TransactionId, Awaited]()
    for case in evidence.transactions(settings.safety_interval):
        if (votes := find_awaited(case)) is not None:
            awaited[case.transaction] = votes
        elif is_undelivered(case):
            awaited[case.transaction] = Awaited(DRIVER)
    return awaited


def is_driver_gone(case: TransactionEvidence) -> bool:
    """Whether the driver that began it is known to be gone."""
    job, record = case.job, case.record
    if job is None or record is None or job.state is JobState.RUNNING:
        return False
    return job.newest.run == record.run


def is_undelivered(case: TransactionEvidence) -> bool:
    """Whether its driver is gone, and has sent the decision to no participant."""
    record = case.record
    if record is None or record.state not in UNFINISHED:
        return False  # who has acknowledged it is not among the evidence any more
    # One that has acknowledged was asked, and so were all others, at once.
    tried = any(d.retries or d.acknowledged for d in case.deliveries.values())
    return is_driver_gone(case) and not tried


def _format_cause(case: TransactionEvidence, names: Iterable[str]) -> str:
    """Describe the tries to deliver it, or state that no process tries."""
    if case.job is not None and is_undelivered(case):
        return f": nobody delivers it: {case.job.describe(case.now)}"
    return _format_tries(case.deliveries, names)


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
