"""What is wrong, why, and what is safe: opinions from evidence. No I/O.

An opinion is claimed by one function and left alone if one filter says so. A filter
sees one kind of evidence; any *leave alone* wins. Ages of branches in doubt are by
their participant's clock, ages of records by the log's times against our clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Final, NamedTuple, TypeAlias

from tracing_2pc.model import (
    DeliveryRecord,
    Shown,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.protocol.evidence import Case, Evidence
from tracing_2pc.settings import Settings
from tracing_2pc.states import (
    UNFINISHED,
    BranchState,
    Decision,
    DiagnosisKind,
    ParticipantState,
    Severity,
    TransactionState,
    Verdict,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Thresholds:
    """From when on something is said. Seconds, and a count of tries."""

    stuck_after: float
    stuck_critical: float
    orphan_after: float
    safety_interval: float
    inline_tries: int

    @classmethod
    def of(cls, settings: Settings) -> Thresholds:
        """Take those of the settings."""
        names = (field.name for field in dataclasses.fields(cls))
        return cls(**{name: getattr(settings, name) for name in names})


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """One opinion about one transaction.

    Args:
        transaction: which one.
        diagnosis: what is wrong.
        severity: how soon a person should look.
        participants: at whom, in the record's order.
        since: Unix seconds by our clock.
        age: seconds since then, when it was said.
        verdict: what is safe.
        why: what was seen, in plain words.
    """

    transaction: TransactionId
    diagnosis: DiagnosisKind
    severity: Severity
    participants: tuple[str, ...]
    since: float
    age: float
    verdict: Verdict
    why: str


class Look(NamedTuple):
    """A case, when it is judged, and by which thresholds."""

    case: Case
    now: float
    limits: Thresholds

    @property
    def waits(self) -> float:
        """Seconds since the record last got on."""
        return max(0.0, self.now - self.case.moved, self.case.stood)

    @property
    def allowed(self) -> float:
        """How long it may stand still; an active attempt as long as its job has set.

        Without a timeout a driver may be at it for ever; then it is said when it would
        be critical.
        """
        record = self.case.record
        if record is None or record.state is not TransactionState.ACTIVE:
            return self.limits.stuck_after
        return max(
            self.limits.stuck_after, record.timeout or self.limits.stuck_critical
        )

    @property
    def in_time(self) -> bool:
        """Whether it may still stand still; a deadline is judged by the log's clock."""
        record = self.case.record
        if record is None or record.deadline is None or record.decision is not None:
            return self.waits < self.allowed
        young = self.waits < self.limits.stuck_after
        return young or not (self.case.overdue or self.case.stood >= self.allowed)

    @property
    def oldest(self) -> float:
        """Age of the oldest branch in doubt."""
        return max((held.age for held in self.case.held.values()), default=0.0)


class Claim(NamedTuple):
    """What one function thinks, before the filters are asked."""

    participants: tuple[str, ...]
    age: float
    verdict: Verdict
    why: str


Claims: TypeAlias = Callable[[Look], Claim | None]
Filter: TypeAlias = Callable[[Look], str | None]
"""A vote: why it must be left alone; None has no objection."""


def diagnose(evidence: Evidence, limits: Thresholds) -> list[Diagnosis]:
    """Say what is wrong. Nothing, where the log could not be read."""
    return [
        diagnosis
        for case in evidence.cases()
        for diagnosis in judge(case, evidence.now, limits)
    ]


def judge(case: Case, now: float, limits: Thresholds) -> Iterator[Diagnosis]:
    """Say what is wrong with one transaction; *stuck* only if nothing graver is."""
    look, graver = Look(case, now, limits), False
    for kind, (claims, filters) in OPINIONS.items():
        if graver and kind is DiagnosisKind.STUCK:
            return
        claim = claims(look)
        if claim is not None and not any(objects(look) for objects in filters):
            graver = True
            yield _diagnosis(kind, claim, look)


def left_alone(case: Case, now: float, limits: Thresholds) -> list[str]:
    """Say why nothing is said of what looks wrong."""
    look = Look(case, now, limits)
    found = [
        objection
        for claims, filters in OPINIONS.values()
        if claims(look) is not None
        for objects in filters
        if (objection := objects(look)) is not None
    ]
    return list(dict.fromkeys(found))


def _diagnosis(kind: DiagnosisKind, claim: Claim, look: Look) -> Diagnosis:
    critical = kind in GRAVE or claim.age >= look.limits.stuck_critical
    return Diagnosis(
        look.case.transaction,
        kind,
        Severity.CRITICAL if critical else Severity.WARNING,
        claim.participants,
        look.now - claim.age,
        claim.age,
        claim.verdict,
        claim.why,
    )


LATE: Final = 10.0
"""Seconds from a decision on after which whoever has not acknowledged is named."""

_CALENDAR: Final = 2e11

GRAVE: Final = frozenset({DiagnosisKind.LOST, DiagnosisKind.DIVERGED})
"""What no waiting mends: rows are not where the decision says."""


# --- claims --------------------------------------------------------------------------


def _diverged(look: Look) -> Claim | None:
    """Somebody went against the decision, or two against each other."""
    case = look.case
    outcomes = {name: outcome_of(shown) for name, shown in case.shown.items()}
    against = [name for name, said in outcomes.items() if said and said != _word(case)]
    word = _word(case)
    if word is None:
        if {"committed", "aborted"} - set(outcomes.values()):
            return None
        why = "; ".join(f"{name} has {outcomes[name]}" for name in sorted(against))
    elif against:
        said = "; ".join(f"{name} has {outcomes[name]} it" for name in against)
        why = (
            f"it is decided {'commit' if word == 'committed' else 'abort'}, and {said}"
        )
    else:
        return None
    return Claim(tuple(against), look.waits, Verdict.ESCALATE, why)


def outcome_of(shown: Shown) -> str | None:
    """Return what a participant has made of it: committed, aborted, or nothing yet.

    A branch that somebody committed by hand counts before the participant was told.
    """
    if shown.state in (ParticipantState.COMMITTED, ParticipantState.ABORTED):
        return str(shown.state)
    if any(held.state is BranchState.COMMITTED for held in shown.branches):
        return str(ParticipantState.COMMITTED)
    return None


def _word(case: Case) -> str | None:
    """Return the outcome that the log's decision asks for."""
    if case.record is None or case.record.decision is None:
        return None
    commit = case.record.decision is Decision.COMMIT
    return "committed" if commit else "aborted"


def _lost(look: Look) -> Claim | None:
    """Decided commit, and somebody knows nothing of what he voted for."""
    record = look.case.record
    if record is None or record.decision is not Decision.COMMIT:
        return None
    shown = look.case.shown
    lost = tuple(
        n for n in record.participants if n in shown and _lacks(record, n, shown[n])
    )
    if not lost:
        return None
    said = "; ".join(f"{name} says {shown[name].state}" for name in lost)
    why = f"it is decided commit, and what was prepared is not there: {said}"
    return Claim(lost, look.waits, Verdict.ESCALATE, why)


def _lacks(record: TransactionRecord, name: str, shown: Shown) -> bool:
    chosen = {receipt.branch for receipt in record.chosen(name)}
    if shown.state in (ParticipantState.COMMITTED, ParticipantState.ABORTED):
        return False
    if record.finished is not None and not chosen:
        # Receipts go with a later commit, the seal of everybody stays: who does not
        # know that there was a transaction was put back to before it.
        return record.rows > 0 and shown.state is ParticipantState.UNKNOWN
    return bool(chosen - {held.branch for held in shown.branches})


def _decided_not_applied(look: Look) -> Claim | None:
    """Decided commit, and somebody who can be reached still holds it prepared."""
    record = look.case.record
    if record is None or record.state is not TransactionState.COMMITTING:
        return None
    holding = tuple(n for n in record.pending if n in look.case.held)
    if not holding:
        return None
    why = (
        f"it was decided commit {lasting(look.waits)} ago, and is still prepared at "
        f"{_and(holding)}{_tries(_told(look.case, holding))}"
    )
    return Claim(holding, look.waits, Verdict.FINISH, why)


def _orphaned(look: Look) -> Claim | None:
    """Prepared, and no record of this log can finish it."""
    case = look.case
    unfinished = case.record is not None and case.record.finished is None
    if unfinished or not case.held:
        return None
    holding = tuple(case.held)
    rows = sum(held.rows for held in case.held.values())
    verdict, because = _no_record(case)
    since = lasting(look.oldest)
    said = f"{rows} rows have been prepared at {_and(holding)} for {since}"
    return Claim(holding, look.oldest, verdict, f"{said}; {because}")


def _no_record(case: Case) -> tuple[Verdict, str]:
    application = case.transaction.application
    if not case.known:
        return Verdict.LEAVE, (
            f"this log does not know application {application}: another log may own it"
        )
    if case.closed is TransactionState.ABORTED:
        return Verdict.ABORT, "the log has finished it as aborted"
    if case.closed is not None:
        return Verdict.ESCALATE, f"the log has closed it as {case.closed}"
    if case.forgotten:
        return Verdict.ESCALATE, (
            f"its record is forgotten (watermark {case.watermark}), and with it what "
            "was decided"
        )
    return Verdict.ESCALATE, (
        "this log has no record of it, and writes one before every prepare: another "
        f"log may use the name {application} too, or this one is an old copy"
    )


def _stuck(look: Look) -> Claim | None:
    """On record, and it does not get on."""
    record = look.case.record
    if record is None:
        return None
    if record.state is TransactionState.ACTIVE:
        why = f"it was begun {lasting(look.waits)} ago and is not decided: "
        if record.deadline is not None:
            why += "by now no driver can be at it"
        else:
            why += "its transaction_timeout is 0, so its driver may be at it"
        holding = tuple(n for n in record.participants if n in look.case.held)
        whom = holding or record.participants
        return Claim(whom, look.waits, Verdict.ABORT, why)
    if record.state not in UNFINISHED:
        return None
    why = (
        f"it is decided {record.decision}, and for {lasting(look.waits)} not "
        f"acknowledged by {_and(record.pending)}"
        f"{_tries(_told(look.case, record.pending))}"
    )
    if own := [name for name in record.pending if name in record.own_sinks]:
        why += f"; only the job can tell {_and(own)}, a sink of its own: start it"
    return Claim(record.pending, look.waits, Verdict.FINISH, why)


# --- filters -------------------------------------------------------------------------


def _decided_just_now(look: Look) -> str | None:
    """By the log's times."""
    if look.case.record is not None and look.waits < look.limits.safety_interval:
        return f"{_last_step(look)}: it may be under way"
    return None


def _closed_by_a_person(look: Look) -> str | None:
    """By the log: somebody has looked, and signed for it."""
    concluded = look.case.closed is TransactionState.CONCLUDED
    return "a person has closed it as it is" if concluded else None


def _inline_tries(look: Look) -> str | None:
    """By the log's deliveries: a driver that lives asks some times by itself."""
    tried = max((d.retries for d in look.case.deliveries.values()), default=0)
    if tried >= look.limits.inline_tries or look.waits >= look.limits.stuck_after:
        return None
    return f"{tried} of {look.limits.inline_tries} tries: its driver may be at it"


def _younger_than_an_orphan(look: Look) -> str | None:
    """By the participant's clock."""
    if look.oldest >= look.limits.orphan_after:
        return None
    return f"in doubt for {lasting(look.oldest)} only"


def _in_time(look: Look) -> str | None:
    """By the log's times: a living driver has its own timeout, and a commit retries."""
    if not look.in_time:
        return None
    return f"{_last_step(look)}, and it has {lasting(look.allowed)}"


def _last_step(look: Look) -> str:
    """Say when it last got on; where the log is ahead of our clock, that it is."""
    ahead = look.case.moved - look.now
    if ahead < 1.0:
        return f"its last step was {lasting(look.waits)} ago"
    return (
        f"its last step is on record as {lasting(ahead)} ahead of this machine's "
        "clock, which was set back, or a driver's is wrong"
    )


def _attempt_is_live(look: Look) -> str | None:
    """By the log: what a driver may still be writing is nobody else's business."""
    record = look.case.record
    if record is None or record.state is not TransactionState.ACTIVE:
        return None
    if not look.in_time:
        return None
    return "its attempt is active: its driver decides"


K: TypeAlias = DiagnosisKind
OPINIONS: Final[dict[K, tuple[Claims, tuple[Filter, ...]]]] = {
    K.DIVERGED: (
        _diverged,
        (_attempt_is_live, _decided_just_now, _closed_by_a_person),
    ),
    K.LOST: (_lost, (_decided_just_now, _closed_by_a_person)),
    K.DECIDED_NOT_APPLIED: (_decided_not_applied, (_decided_just_now, _inline_tries)),
    K.ORPHANED: (_orphaned, (_younger_than_an_orphan,)),
    K.STUCK: (_stuck, (_attempt_is_live, _in_time)),
}
"""Who claims what, and who may object; the gravest first."""


# --- before anything is wrong ---------------------------------------------------------


def held_back(
    application: str,
    decided: float | None,
    deliveries: Iterable[DeliveryRecord],
    now: float,
) -> str | None:
    """Say who holds an application back that waits for its commit; None for nobody.

    It is said from the first try in vain on, or `LATE` after the decision: that is
    nothing wrong yet, and what a person who looks wants to know.
    """
    waiting = [one for one in deliveries if one.pending]
    if decided is None or not waiting:
        return None
    tried = [one for one in waiting if one.retries]
    whom = waiting if now - decided >= LATE else tried
    if not whom:
        return None
    names = _and(one.participant for one in whom)
    since = clock_time(decided, now)
    return f"{application} is held back by {names} since {since}{_tries(whom)}"


# --- words ---------------------------------------------------------------------------


def lasting(seconds: float) -> str:
    """Say how long, in one unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def clock_time(at: float, now: float) -> str:
    """Write the time of day in UTC, with the date where that is not today's."""
    if abs(at) > _CALENDAR:
        return "an unknown time"
    moment, today = (datetime.fromtimestamp(t, timezone.utc) for t in (at, now))
    day = "" if moment.date() == today.date() else f"{moment:%Y-%m-%d} "
    return f"{day}{moment:%H:%M:%S} UTC"


def count(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def _and(names: Iterable[str]) -> str:
    return " and ".join(names) or "nobody"


def _told(case: Case, names: Iterable[str]) -> list[DeliveryRecord]:
    return [case.deliveries[n] for n in names if n in case.deliveries]


def _last_answer(name: str, error: str) -> str:
    """Return it without the participant's name, which stands beside it."""
    return error.removeprefix(f"participant {name!r}").lstrip(": ")


def _tries(told: Sequence[DeliveryRecord]) -> str:
    tried = max((d.retries for d in told), default=0)
    if not tried:
        return ""
    tries = count(tried, "try", "tries")
    error = next((_last_answer(d.participant, d.error) for d in told if d.error), None)
    return f" ({tries}; the last answer: {error})" if error else f" ({tries})"
