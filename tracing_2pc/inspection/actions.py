"""The next automatic steps, a person's possible actions, and their costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tracing_2pc.core.model import TransactionId, TransactionRecord, way_back
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import (
    Decision,
    ParticipantState,
    TransactionState,
)
from tracing_2pc.inspection import kinds
from tracing_2pc.inspection.diagnosis import (
    Finding,
    find_awaited,
    is_driver_gone,
    is_undelivered,
)
from tracing_2pc.inspection.evidence import TransactionEvidence
from tracing_2pc.inspection.participants import ParticipantReport
from tracing_2pc.inspection.wording import (
    format_count,
    format_duration,
    format_load,
    join_names,
)
from tracing_2pc.protocol.retry import PREPARE_SECONDS

GIVE_UP: Final = "give up"
"""Wanted of a participant that is gone for good while its answer is waited for."""

CONCLUDE: Final = "conclude"


class NextStep(NamedTuple):
    """A step without a person, and its time; None for never, or not known."""

    what: str
    at: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """A possible action of a person, its effect and its costs."""

    command: str
    safe: bool  # it can only do what is decided, or what the log's rules allow
    effect: str
    cost: tuple[str, ...] = ()  # what is lost or kept busy by it, a line each
    # What `resolve` is asked for: commit, abort, conclude or give up; None for another
    # command.
    wanted: str | None = None
    # The participant where it is done, or that is given up; None for the log.
    at: str | None = None


class ActionContext(NamedTuple):
    """The facts by which actions are chosen."""

    evidence: TransactionEvidence
    reports: Sequence[ParticipantReport]
    findings: Sequence[Finding]
    settings: Settings
    may_be_begun: bool  # the log can still write a record
    is_replayed: bool  # aborted, and no later attempt at its batch is on record

    @property
    def in_doubt(self) -> list[ParticipantReport]:
        """Reports of participants with something in doubt."""
        return [report for report in self.reports if report.oldest is not None]

    @property
    def grave(self) -> set[str]:
        """Participants with a finding that no waiting mends."""
        grave = (finding for finding in self.findings if finding.grave)
        return {name for finding in grave for name in finding.participants}

    @property
    def is_undelivered(self) -> bool:
        """Whether its driver is gone, and has sent the decision to no participant."""
        return is_undelivered(self.evidence)


def next_steps(context: ActionContext) -> tuple[NextStep, ...]:
    """Return the next automatic steps, and their times."""
    record = context.evidence.record
    if record is None and context.may_be_begun:
        batch = context.evidence.transaction.batch
        step = f"its query, when it begins batch {batch}, writes a record of it, and "
        return (NextStep(f"{step}finishes what is prepared: start it"),)
    if record is None:
        return (NextStep("nothing: no record of this log can finish it"),)
    if record.state is TransactionState.ACTIVE:
        return tuple(_until_decided(context, record))
    if record.state is TransactionState.QUARANTINED:
        step = "nothing: automatic work has stopped, and its application cannot begin"
        return (NextStep(step),)
    if context.evidence.passed and record.finished is not None:
        return (NextStep("nothing: its stream begins no batch until it goes back"),)
    if record.finished is not None:
        return tuple(_after_the_end(context, record, record.finished))
    return tuple(_retries(context, record))


def _after_the_end(
    context: ActionContext, record: TransactionRecord, finished: float
) -> Iterator[NextStep]:
    if context.is_replayed:
        batch, attempt = record.id.batch, record.id.attempt + 1
        who = "the next start of the query writes"
        if record.is_launch:
            who = "`tracing-2pc launch`, by --again or of a changed file, tries"
        yield NextStep(f"{who} batch {batch} again, as attempt {attempt}")
    step = "it is forgotten, once Spark has begun a later batch"
    yield NextStep(step, finished + context.settings.keep_finished)


def _until_decided(
    context: ActionContext, record: TransactionRecord
) -> Iterator[NextStep]:
    if not is_driver_gone(context.evidence):
        yield NextStep("its driver decides when all votes are in")
    if (awaited := find_awaited(context.evidence)) is not None:
        seconds = format_duration(PREPARE_SECONDS)
        yield NextStep(
            f"a task that has not got {awaited.names} for {seconds} gives up, and the "
            "attempt is aborted"
        )
    if record.deadline is not None:
        step = "out of time: its driver, or `tracing-2pc recover`, decides abort"
        yield NextStep(step, record.deadline)
    yield NextStep("the next start of the query decides abort, and writes it again")


def _retries(context: ActionContext, record: TransactionRecord) -> Iterator[NextStep]:
    for name in record.pending:
        delivery = context.evidence.deliveries.get(name)
        how = (
            "by its driver while that runs, or by the next start of the job: no other "
            "process can reach a sink of its own"
            if name in record.job_only
            else "by its driver while that runs, by the next start, or by `tracing-2pc "
            "recover`"
        )
        again = " again" if delivery and delivery.retries else ""
        step = f"{name} is told to {record.decision}{again}: {how}"
        yield NextStep(step, delivery.retry_at if delivery else None)


def actions_for(context: ActionContext) -> tuple[Advice, ...]:
    """Return a person's possible actions, safe ones first."""
    record = context.evidence.record
    if record is None or record.finished is not None:
        return (
            *_go_back(context),
            *_bring_back(context, record),
            *_look_after_untold(context),
            *_resolve_orphan(context),
        )
    if record.state is TransactionState.ACTIVE:
        return (_abort_active(context, record),)
    if record.state is TransactionState.QUARANTINED:
        return tuple(_end_quarantine(context, record))
    return (
        *_look_after_untold(context),
        *_finish_decided(context, record),
        *(
            # Who was not asked yet is not waited for.
            _give_up(record, name)
            for name in (() if context.is_undelivered else record.pending)
        ),
    )


def _resolve(transaction: TransactionId, options: str) -> str:
    return f"tracing-2pc resolve {transaction} {options} --reason …"


def _abort_active(context: ActionContext, record: TransactionRecord) -> Advice:
    rows = format_count(sum(r.holds.rows for r in context.in_doubt), "row")
    return Advice(
        _resolve(record.id, "--abort"),
        safe=True,
        effect="decides abort, once; its driver, if it runs, is told so and obeys",
        cost=(f"drops {rows}, prepared so far; Spark writes the batch again",),
        wanted=str(Decision.ABORT),
    )


def _go_back(context: ActionContext) -> Iterator[Advice]:
    if context.evidence.passed:
        yield Advice(
            way_back(context.evidence.transaction.batch),
            safe=True,
            effect="lets Spark run its batch again, which is then written in a new "
            "attempt; called with df.limit(0) the callback gives it up",
        )
        yield Advice(
            _resolve(context.evidence.transaction, "--abort"),
            safe=False,
            effect="says no more that it is lost; its stream goes on as above only",
            cost=("its rows are written nowhere",),
            wanted=str(Decision.ABORT),
        )


def _bring_back(
    context: ActionContext, record: TransactionRecord | None
) -> Iterator[Advice]:
    """Name participants that lost a finished commit: the log cannot repeat it."""
    if record is None or record.decision is not Decision.COMMIT:
        return
    lost = [f for f in context.findings if f.kind is kinds.LOST]
    for name in (name for finding in lost for name in finding.participants):
        yield Advice(
            f"bring the rows of batch {record.id.batch} back at {name}, from its "
            "source or a newer copy of the database",
            safe=True,
            effect="mends what no program can; `tracing-2pc check --deep` says what "
            "else is gone there",
        )


def _look_after_untold(context: ActionContext) -> Iterator[Advice]:
    """Name own sinks that may still hold branches: nothing here can ask them."""
    transaction = context.evidence.transaction
    for delivery in context.evidence.deliveries.values():
        if delivery.untold is not None:
            yield Advice(
                f"look into what {delivery.participant} keeps of {transaction}",
                safe=True,
                effect="finds what was prepared there and is left; nothing here can "
                "ask it",
            )


def _finish_decided(
    context: ActionContext, record: TransactionRecord
) -> Iterator[Advice]:
    application, decision = record.id.application, record.decision
    own = [name for name in record.pending if name in record.job_only]
    services = [name for name in record.pending if name not in own]
    if own or context.is_undelivered:
        effect = f"tells {join_names(services)} to {decision}, and goes on"
        if own:
            effect = (
                f"tells its own sink {join_names(own)} to {decision} first; no other "
                "process can"
            )
        yield Advice(f"start the job of {application}", safe=True, effect=effect)
    if own and not services:
        return
    against = [name for name in record.pending if name in context.grave]
    then = f"; {join_names(against)} will contradict that, and it is quarantined"
    yield Advice(
        f"tracing-2pc recover --application {application}",
        safe=True,
        effect=f"tells {join_names(services)} to {decision}"
        + ("" if context.is_undelivered else " again")
        + (then if against else ""),
        wanted=str(decision),
    )


def _give_up(record: TransactionRecord, name: str) -> Advice:
    rows = sum(receipt.rows for receipt in record.chosen(name))
    cost = [f"what {name} has prepared stays there until it is resolved there"]
    if record.decision is Decision.COMMIT and rows:
        lost = format_count(rows, "row")
        cost = [f"{lost} of the batch may never be committed at {name}", *cost]
    return Advice(
        _resolve(record.id, f"--give-up {name}"),
        safe=False,
        effect=f"waits no more for {name}, if it is gone for good; ends as concluded",
        cost=tuple(cost),
        wanted=GIVE_UP,
        at=name,
    )


def _end_quarantine(
    context: ActionContext, record: TransactionRecord
) -> Iterator[Advice]:
    then = "right where what contradicted it is mended"
    if context.grave:
        then = "it is quarantined again until the participants agree"
    yield Advice(
        _resolve(record.id, f"--{record.decision}"),
        safe=True,
        effect=f"delivers what was decided again; {then}",
        wanted=str(record.decision),
    )
    yield Advice(
        _resolve(record.id, "--conclude mixed|hazard"),
        safe=False,
        effect="closes it as it is; its application may begin; no participant is told",
        cost=tuple(_cost_of_closing(context, record)),
        wanted=CONCLUDE,
    )


def _cost_of_closing(
    context: ActionContext, record: TransactionRecord
) -> Iterator[str]:
    for report in context.in_doubt:
        load = format_load(report.holds)
        yield f"{report.participant} keeps {load} until it is resolved there"
    states = {report.participant: report.state for report in context.reports}
    if record.decision is Decision.COMMIT:
        for name in record.participants:
            rows = sum(receipt.rows for receipt in record.chosen(name))
            lost, state = format_count(rows, "row"), states.get(name)
            if rows and state is None:
                yield f"{name} cannot be read: {lost} may not be committed there"
            elif rows and state is not ParticipantState.COMMITTED:
                yield f"{lost} of the batch are not committed at {name}"
        return
    for report in context.reports:
        if report.state is ParticipantState.COMMITTED:
            rows_shown = format_count(report.rows, "row")
            yield f"{report.participant} shows {rows_shown} of an aborted batch"


def _resolve_orphan(context: ActionContext) -> Iterator[Advice]:
    record = context.evidence.record
    either = record is None or record.state is TransactionState.CONCLUDED
    decision = record.decision if record else None
    committed = ParticipantState.COMMITTED
    others = [r.participant for r in context.reports if r.state is committed][:1]
    for report in () if context.may_be_begun else context.in_doubt:
        if decision is Decision.ABORT:
            yield _resolve_at(context, report, Decision.ABORT)
        elif either:
            lost = f"{format_count(report.holds.rows, 'row')} there are lost"
            lost += "".join(f", and {name} has committed them" for name in others)
            yield _resolve_at(context, report, Decision.ABORT, lost)
        may_commit = either or decision is Decision.COMMIT
        if may_commit and not context.evidence.forgotten:
            shown = "its rows are shown there, whatever the others have done with them"
            yield _resolve_at(context, report, Decision.COMMIT, shown)


def _resolve_at(
    context: ActionContext,
    report: ParticipantReport,
    outcome: Decision,
    cost: str | None = None,
) -> Advice:
    """Return an action at one participant; safe if it costs nothing."""
    name, evidence = report.participant, context.evidence
    verb = "shows" if outcome is Decision.COMMIT else "drops"
    effect = f"{verb} what is prepared there; frees {format_load(report.holds)}"
    left = context.settings.orphan_after - (report.oldest or 0.0)
    if left > 0:
        effect += f"; refused for another {format_duration(left)} (orphan_after)"
    costs = [cost] if cost else []
    if cost and not evidence.known:
        application = evidence.transaction.application
        costs.append(
            f"this log does not know application {application}: if another log owns "
            "it, that one may have decided otherwise"
        )
    return Advice(
        _resolve(evidence.transaction, f"--at {name} --{outcome}"),
        safe=not cost,
        effect=effect,
        cost=tuple(costs),
        wanted=str(outcome),
        at=name,
    )
