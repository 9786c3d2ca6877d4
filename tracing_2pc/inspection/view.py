"""All that is known of one transaction, from the log and from its participants."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from tracing_2pc.core.addresses import addresses_of, how_to_add
from tracing_2pc.core.errors import DecisionLogError
from tracing_2pc.core.log_reader import AuditEntry, LogReader
from tracing_2pc.core.model import (
    BranchId,
    DeliveryRecord,
    ParticipantDescription,
    QuarantineListing,
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.ports import Clock, SystemClock
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import (
    BranchState,
    Decision,
    ParticipantState,
    TransactionState,
    Word,
)
from tracing_2pc.inspection import kinds
from tracing_2pc.inspection.actions import (
    ActionContext,
    Advice,
    NextStep,
    actions_for,
    next_steps,
)
from tracing_2pc.inspection.diagnosis import (
    Finding,
    diagnose_transaction,
    find_awaited,
)
from tracing_2pc.inspection.evidence import (
    Evidence,
    TransactionEvidence,
    find_silent,
    is_newest,
    may_be_begun,
)
from tracing_2pc.inspection.findings import (
    SKEW,
    find_at_outboxes,
    find_in_broker,
    find_in_job,
    find_read_only,
    not_read,
)
from tracing_2pc.inspection.kind import Subject
from tracing_2pc.inspection.participants import (
    ParticipantReport,
    ReadableParticipant,
    Source,
    ask_about,
    list_refused,
)
from tracing_2pc.inspection.survey import (
    REFUSED,
    describe_all,
    read_jobs,
    survey_outboxes,
)
from tracing_2pc.inspection.wording import (
    NO_ADDRESS,
    format_count,
    format_rows,
    quote_answer,
)

RECEIPTS: Final = 200
"""Receipts that a view shows."""

_QUOTED: Final = 300
"""Characters of a partner's answer that a sentence has."""

_BESIDE: Final = (
    kinds.JOB_FAILED,
    kinds.JOB_GONE,
    kinds.TWO_DRIVERS,
    kinds.LOG_READ_ONLY,
    kinds.POSITION_UNREADABLE,
)

_NOTHING: Final = frozenset(
    {None, ParticipantState.UNKNOWN, ParticipantState.FORGOTTEN}
)


class TimelineEvent(NamedTuple):
    """An event: its time in Unix seconds by our clock, its source, its description."""

    at: float
    who: str
    what: str


class Attempt(NamedTuple):
    """Another attempt at the same batch."""

    transaction: TransactionId
    state: TransactionState


def is_to_be_replayed(
    state: TransactionState | None, id_: TransactionId, near: Iterable[Attempt]
) -> bool:
    """Whether it was aborted, and no later attempt at its batch is on record."""
    is_last = all(other.transaction < id_ for other in near)
    return state is TransactionState.ABORTED and is_last


@dataclasses.dataclass(frozen=True, slots=True)
class TransactionView:
    """One transaction at one time. Times are Unix seconds by our clock."""

    transaction: TransactionId
    at: float
    known: bool  # the log knows its application
    forgotten: bool  # at or below forgotten_through: a record may have been dropped
    forgotten_through: int | None
    # In the log; None without a record, as is all up to `trace`.
    state: TransactionState | None
    decision: Decision | None  # None while there is none, too
    run: str | None  # the life of the query that began it
    started: float | None
    decided: float | None
    finished: float | None
    trace: str | None  # its id; None where nothing was traced
    reason: str | None  # why it was quarantined, if it ever was
    # Why it was aborted, as a word of `CAUSES`; None where that is not known.
    cause: str | None
    detail: str | None  # of that: at which step who answered or raised what; in a line
    undelivered: bool  # decided, and nobody was asked: its driver is gone
    awaited: str | None  # not decided: whose votes it waits for, where that is seen
    # The attempts at its batch before and after it, as far as on record.
    near: tuple[Attempt, ...]
    deliveries: tuple[DeliveryRecord, ...]
    # The first `RECEIPTS` that a commit keeps, one per branch and participant; none
    # once a later batch is committed.
    receipts: tuple[Receipt, ...]
    receipts_of: int  # how many there are, about so many branches as `branches_of`
    branches_of: int
    rows: int  # that a commit names, in all branches
    rejected: int  # and those that went to `rejects`
    audit: tuple[AuditEntry, ...]
    participants: tuple[ParticipantReport, ...]
    # What is wrong with it, and which participants could not be read.
    findings: tuple[Finding, ...]
    left_alone: tuple[str, ...]  # why nothing is diagnosed of what looks wrong
    timeline: tuple[TimelineEvent, ...]
    next: tuple[NextStep, ...]  # what comes by itself
    actions: tuple[Advice, ...]  # what a person may do
    # Every fact of its record that is a word or a number, by name, and the journals of
    # its participants; none without one.
    record: Mapping[str, Any]

    @property
    def unread(self) -> tuple[str, ...]:
        """Participants that have not acknowledged a decision, and cannot be read."""
        if self.decision is None or self.finished is not None:
            return ()
        errors = {report.participant for report in self.participants if report.error}
        pending = (d.participant for d in self.deliveries if d.pending)
        return tuple(name for name in pending if name in errors)

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """Findings about the transaction itself; the gravest first."""
        return tuple(f for f in self.findings if f.about == self.transaction)

    @property
    def beside(self) -> tuple[Finding, ...]:
        """Findings about its job, the log or a broker, unless `wrong` has them."""
        texts = " ".join(finding.text for finding in self.wrong)
        beside = (f for f in self.findings if f.kind in _BESIDE)
        return tuple(f for f in beside if f.why not in texts)

    @property
    def in_doubt(self) -> bool:
        """Whether a participant has a branch of it in doubt."""
        return any(report.oldest is not None for report in self.participants)

    @property
    def unknown(self) -> bool:
        """Whether such a transaction never existed, as far as all have answered."""
        states = {report.state for report in self.participants}
        nowhere = states <= {ParticipantState.UNKNOWN}
        return self.state is None and not self.forgotten and nowhere

    @property
    def is_replayed(self) -> bool:
        """Whether it was aborted, and its batch is still to be written again."""
        return is_to_be_replayed(self.state, self.transaction, self.near)

    @property
    def unsure(self) -> bool:
        """Whether a participant that may hold a branch of it could not be read."""
        proven = self.state is TransactionState.COMMITTED or self.forgotten
        return not proven and any(
            report.error or (report.own_sink and self.finished is None)
            for report in self.participants
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON: the same names, ids and words as text."""
        fields = dict(to_plain(self))
        for report in fields["participants"]:
            del report["answer"]
        fields["findings"] = [finding.to_json() for finding in self.findings]
        return fields


def view_transaction(
    log: LogReader,
    participants: Mapping[str, ReadableParticipant],
    transaction: TransactionId,
    settings: Settings,
    clock: Clock | None = None,
) -> TransactionView:
    """Ask log and participants about one transaction; change nothing.

    Participants are asked before the log: a branch without a record is then forgotten
    or foreign, and never too new. Only the ids of their journals, which do not change,
    are read before. Those that hold a branch of a closed transaction are asked again:
    they may just have received the decision.
    """
    clock = clock or SystemClock()
    participants = addresses_of(participants, transaction.application)
    answers = ask_about(participants, transaction, clock, log.read(transaction))
    record = log.read(transaction)
    if record is None or record.finished is not None:
        names = [name for name, report in answers.items() if report.oldest is not None]
        again = {name: participants[name] for name in names}
        answers |= ask_about(again, transaction, clock, record)
    forgotten_by_application = log.forgotten_by_application()
    reports = _taking_part(record, answers)
    closed = record is not None and record.finished is not None
    jobs, read_only = read_jobs(log, {}, transaction.application)
    described = _describe_silent(record, reports, participants)
    evidence = TransactionEvidence(
        transaction,
        clock.now(),
        record=record,
        closed=record.state if record and closed else None,
        deliveries=log.deliveries(transaction),
        known=transaction.application in forgotten_by_application,
        forgotten_through=forgotten_by_application.get(transaction.application),
        prepared={r.participant: r.prepared for r in reports if r.prepared},
        answers={r.participant: r.answer for r in reports if r.answer},
        clock=log.clock(),
        job=jobs.get(transaction.application),
        passed=record is not None
        and record.passed_by is not None
        and is_newest(log, transaction)
        and record.decision is not Decision.COMMIT,
        silent=find_silent(record, (), described) if record else {},
    )
    answering = {
        r.participant: participants[r.participant] for r in reports if r.answer
    }
    waiting = _find_waiting(evidence, answering, settings, clock)
    if record is not None and not closed:
        waiting += find_read_only(read_only)
    for name, description in described.items():
        waiting += find_in_broker(name, description, evidence.now)
    return _view_of(log, evidence, reports, waiting, settings)


def _describe_silent(
    record: TransactionRecord | None,
    reports: Iterable[ParticipantReport],
    participants: Mapping[str, ReadableParticipant],
) -> Mapping[str, ParticipantDescription]:
    """Ask participants without a branch for their state, before the decision."""
    if record is None or record.state is not TransactionState.ACTIVE:
        return {}
    names = [r.participant for r in reports if r.prepared is None]
    asked = {name: participants[name] for name in names if name in participants}
    return describe_all(asked)


def _find_waiting(
    evidence: TransactionEvidence,
    answering: Mapping[str, ReadableParticipant],
    settings: Settings,
    clock: Clock,
) -> list[Finding]:
    """Return findings about its committed requests that wait at outboxes.

    About all requests of its application, where they cannot be told apart.
    """
    record, id_ = evidence.record, evidence.transaction
    if record is None or record.decision is not Decision.COMMIT:
        return []
    refused = list_refused(answering, id_.application, limit=REFUSED)
    listings = {
        name: dataclasses.replace(listing, requests=of_this)
        for name, listing in refused.listings.items()
        for of_this in [
            tuple(r for r in listing.requests if r.key.transaction == id_)
            or (listing.requests if listing.more else ())
        ]
    }
    outboxes = survey_outboxes(answering, refused._replace(listings=listings), clock)
    return [
        dataclasses.replace(
            finding,
            about=id_,
            why=f"at {finding.about}, {finding.why}{_quotation(finding, listings)}",
        )
        for finding in find_at_outboxes(outboxes, settings)
        if finding.kind.subject is not Subject.QUEUE
        or _may_wait(evidence, outboxes, *finding.participants)
    ]


def _quotation(finding: Finding, listings: Mapping[str, QuarantineListing]) -> str:
    """Return the partner's answer to the first request that a finding is about.

    Only here, where a person asks: it may repeat the record, so no log has it.
    """
    if finding.kind is not kinds.REFUSED_REQUESTS:
        return ""
    for request in listings[finding.participants[0]].requests:
        if quotation := quote_answer(request, _QUOTED):
            answered = (
                f"it answered {request.status}" if request.status else "no answer"
            )
            return f"; to {request.key}, {answered}: {quotation}"
    return ""


def _may_wait(
    evidence: TransactionEvidence, outboxes: Evidence, participant: str
) -> bool:
    """Whether a request of it may be unsent: the oldest that waits is no younger."""
    delivery = evidence.deliveries.get(participant)
    if delivery is None or delivery.acknowledged is None:
        return True
    gauges = outboxes.descriptions[participant].gauges
    oldest = outboxes.now - gauges.get("tpc.outbox.oldest_age", 0.0)
    return delivery.acknowledged >= oldest - SKEW


def _view_of(
    log: LogReader,
    evidence: TransactionEvidence,
    reports: list[ParticipantReport],
    waiting: Iterable[Finding],
    settings: Settings,
) -> TransactionView:
    transaction, record, now = evidence.transaction, evidence.record, evidence.now
    findings, left_alone = diagnose_transaction(evidence, settings)
    unread = (not_read(r.participant, r.error) for r in reports if r.error)
    begin = record is None and may_be_begun(log, transaction)
    near = tuple(_near(log, record)) if record else ()
    replayed = record is not None and is_to_be_replayed(record.state, transaction, near)
    context = ActionContext(evidence, reports, findings, settings, begin, replayed)
    job = evidence.job if replayed or (record and not record.finished) else None
    of_job = find_in_job(job, now) if job is not None else ()
    audit = tuple(log.audit(transaction))
    receipts = record.receipts if record else ()
    deliveries = evidence.deliveries
    words = ("state", "decision", "run", "cause", "detail", "reason")
    names = (*words, "started", "decided", "finished")
    on_record: dict[str, Any] = {name: getattr(record, name, None) for name in names}
    return TransactionView(
        transaction,
        now,
        known=evidence.known,
        forgotten=evidence.forgotten,
        forgotten_through=evidence.forgotten_through,
        **on_record,
        trace=record.trace_id if record else None,
        undelivered=context.is_undelivered,
        awaited=awaited.names if (awaited := find_awaited(evidence)) else None,
        near=near,
        deliveries=tuple(deliveries.values()),
        receipts=receipts[:RECEIPTS],
        receipts_of=len(receipts),
        branches_of=len({receipt.branch for receipt in receipts}),
        rows=record.rows if record else 0,
        rejected=record.rejected if record else 0,
        audit=audit,
        participants=tuple(reports),
        findings=(*of_job, *findings, *waiting, *unread),
        left_alone=left_alone,
        timeline=_timeline(record, deliveries, audit, reports),
        next=next_steps(context),
        actions=actions_for(context),
        record=_facts(record) if record else {},
    )


def _facts(record: TransactionRecord) -> dict[str, Any]:
    fields = (field for field in dataclasses.fields(record) if field.compare)
    facts = {field.name: to_plain(getattr(record, field.name)) for field in fields}
    kept = {n: v for n, v in facts.items() if not isinstance(v, (list, dict))}
    return {**kept, "journals": facts["journals"]}


def _near(log: LogReader, record: TransactionRecord) -> Iterator[Attempt]:
    for number in (record.id.attempt - 1, record.id.attempt + 1):
        other = dataclasses.replace(record.id, attempt=number) if number else None
        with contextlib.suppress(DecisionLogError):  # it says so where it is asked for
            neighbour = other and log.read(other)
            if neighbour:
                yield Attempt(neighbour.id, neighbour.state)


def _taking_part(
    record: TransactionRecord | None, answers: Mapping[str, ParticipantReport]
) -> list[ParticipantReport]:
    """Return reports of participants on record, and of others that know of it."""
    if record is None:
        return list(answers.values())
    own = {name: ParticipantReport(name, own_sink=True) for name in record.own_sinks}
    on_record = [
        answers.get(name)
        or own.get(name)
        or ParticipantReport(
            name, error=f"{NO_ADDRESS}: {how_to_add(name, record.address_of(name))}"
        )
        for name in record.participants
    ]
    others = [
        report
        for name, report in answers.items()
        if name not in record.participants and report.state not in _NOTHING
    ]
    return on_record + others


def _timeline(
    record: TransactionRecord | None,
    deliveries: Mapping[str, DeliveryRecord],
    audit: Iterable[AuditEntry],
    reports: Iterable[ParticipantReport],
) -> tuple[TimelineEvent, ...]:
    """Return the events in order, as far as clocks agree."""
    events = list(_log_events(record, deliveries)) if record else []
    events += (TimelineEvent(a.at, a.who, f"{a.what}: {a.why}") for a in audit)
    for report in reports:
        events += _branch_events(report)
    return tuple(sorted(events, key=lambda event: event.at))


def _log_events(
    record: TransactionRecord, deliveries: Mapping[str, DeliveryRecord]
) -> Iterator[TimelineEvent]:
    names = ", ".join(record.participants)
    begun = f"begun, for {names}; run {record.run}"
    yield TimelineEvent(record.started, "log", begun)
    if record.decided is not None:
        rows = format_rows(record.rows, record.rejected)
        decided = f"decided {record.decision}: {rows}"
        yield TimelineEvent(record.decided, "log", decided)
    for delivery in deliveries.values():
        if delivery.acknowledged is not None:
            event = f"{delivery.participant} acknowledged"
            if delivery.untold is not None:
                event = f"{delivery.participant} was not told all: {delivery.untold}"
            yield TimelineEvent(delivery.acknowledged, "log", event)
    if record.finished is not None:
        yield TimelineEvent(record.finished, "log", f"closed as {record.state}")


def _branch_events(report: ParticipantReport) -> Iterator[TimelineEvent]:
    """Yield the first and the last of a participant's branches in each state."""
    branches, who = report.all_branches, report.participant
    times = {BranchState.PREPARED: [(b.prepared_at, b.rows) for b in branches]}
    for state in (BranchState.COMMITTED, BranchState.ABORTED):
        times[state] = [(b.sealed_at, b.rows) for b in branches if b.state is state]
    for state, every in times.items():
        known = sorted(time for time, _ in every if time is not None)
        if not known:
            continue
        count = len(known)
        if known[0] != known[-1]:
            first = f"{state} the first of {count} branches"
            yield TimelineEvent(known[0], who, first)
        total = sum(rows for time, rows in every if time is not None)
        rows = format_count(total, "row")
        last = f"{state} {format_count(count, 'branch', 'branches')}, {rows}"
        yield TimelineEvent(known[-1], who, last)


def summarize_record(record: TransactionRecord) -> dict[str, Any]:
    """Return a record in a line of JSON."""
    return {
        "transaction_id": str(record.id),
        "state": str(record.state),
        "decision": record.decision and str(record.decision),
        "pending": list(record.pending),
    }


def to_plain(value: Any) -> Any:
    """Return a value of ours as plain JSON; ids and words as their text."""
    if isinstance(value, (TransactionId, BranchId, Source, Word)):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: to_plain(getattr(value, name)) for name in names}
    if hasattr(value, "_asdict"):
        return {name: to_plain(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): to_plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(item) for item in value]
    return value
