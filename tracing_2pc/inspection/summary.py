"""The state of a transaction in sentences, for the command line and the console."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracing_2pc.core.model import ADOPTED, DeliveryRecord, TransactionId
from tracing_2pc.core.names import CAUSES
from tracing_2pc.core.states import Decision, Severity, TransactionState
from tracing_2pc.inspection import kinds
from tracing_2pc.inspection.diagnosis import Finding
from tracing_2pc.inspection.kind import Subject
from tracing_2pc.inspection.participants import ParticipantReport
from tracing_2pc.inspection.view import TransactionView
from tracing_2pc.inspection.wording import (
    describe_votes,
    format_count,
    format_duration,
    format_load,
    format_rows,
    format_time_of_day,
    join_names,
    without_participant,
)


def headline(findings: Iterable[Finding], now: float) -> str:
    """Return the findings in a sentence: the worst by name, the others counted.

    A job that is down comes first, because its transactions wait for it; only findings
    that its start does not mend come before it.
    The last line of `check` and of `watch --once`, and the first of the console.
    Without findings it is *All is well*: a caller that could not ask all adds that.
    """
    worst: dict[TransactionId, Finding] = {}
    beside = list[Finding]()
    for finding in sorted(findings, key=_gravity):
        if isinstance(finding.about, TransactionId):
            worst.setdefault(finding.about, finding)
        else:
            beside.append(finding)
    held_back = [f for f in worst.values() if f.kind is kinds.HELD_BACK]
    need = [f for f in worst.values() if f.kind is not kinds.HELD_BACK]
    faults = [f for f in beside if f.kind is not kinds.UNREADABLE]
    down = [f for f in faults if f.kind in (kinds.JOB_FAILED, kinds.JOB_GONE)]
    more = ""
    graver = (kinds.QUARANTINED, kinds.ORPHANED)
    if down and not any(f.grave or f.kind in graver for f in need):
        others = len(worst) + len(beside) - 1
        more = f"; {format_count(others, 'more problem')}" if others else ""
        return _name_fault(down[0], now) + more
    if need or held_back:
        count = len(beside) + (0 if need else len(held_back) - 1)
        more = f"; {format_count(count, 'more problem')}" if count else ""
    if need:
        text = format_count(len(need), "transaction needs you", "transactions need you")
        return f"{text}: {_name_transaction(need[0], now)}{more}"
    if held_back:
        return held_back[0].why.partition(" (")[0] + more
    if beside:
        text = _name_fault(faults[0], now) if faults else _name_unread(beside)
        return f"{format_count(len(beside), 'problem')}: {text}"
    return "All is well"


def _gravity(finding: Finding) -> tuple[bool, int, float]:
    known = finding.kind in kinds.KINDS
    place = kinds.KINDS.index(finding.kind) if known else len(kinds.KINDS)
    return finding.severity is not Severity.CRITICAL, place, finding.since


def _name_transaction(finding: Finding, now: float) -> str:
    place = f" at {join_names(finding.participants)}" if finding.participants else ""
    since = format_time_of_day(finding.since, now)
    return f"{finding.about}{place} since {since}, {finding.kind.words}"


def _name_fault(finding: Finding, now: float) -> str:
    if finding.kind.subject is Subject.JOB:
        return f"{finding.about}: {finding.text}"
    kind, about = str(finding.kind).replace("_", " "), finding.about
    application = "" if isinstance(about, TransactionId) else about.application
    scope = f" of {application}" if application else ""
    since = f" since {format_time_of_day(finding.since, now)}" if finding.since else ""
    return f"{kind}{scope} at {about}{since}"


def _name_unread(findings: Sequence[Finding]) -> str:
    names = join_names(dict.fromkeys(str(finding.about) for finding in findings))
    return f"{names} could not be read"


def summarize(view: TransactionView) -> str:
    """Return its state in a sentence or two."""
    id_ = view.transaction
    if view.state is None:
        return _without_record(view)
    if view.state is TransactionState.ACTIVE:
        age = format_duration(view.at - (view.started or view.at))
        votes = _votes(view.participants)
        waits = f"; it waits for {view.awaited}" if view.awaited else ""
        return (
            f"{id_} is being written: begun {age} ago, and not decided{waits}{votes}."
        )
    if view.state is TransactionState.QUARANTINED:
        reason = (view.reason or "no reason on record")[:200]
        return (
            f"{id_} is decided {view.decision} and quarantined: an answer contradicts "
            f"the decision ({reason}). Work on it has "
            f"stopped, and {id_.application} begins no batch until a person has looked."
        )
    if view.state is TransactionState.CONCLUDED:
        return f"{id_} was decided {view.decision}, and closed by a person as it was."
    if view.finished is not None:
        return f"{id_} is {view.state}{_ending(view)}"
    names = [d.participant for d in view.deliveries if d.pending]
    have = f"{join_names(names)} {'have' if len(names) > 1 else 'has'} not acknowledged"
    if view.undelivered:
        have = f"its driver is gone, and has not told {join_names(names)}"
    grave = any(finding.grave for finding in view.findings)
    lost = "" if grave else "; nothing is lost"
    return (
        f"{id_} is decided {view.decision} and not finished: {have} yet. "
        f"The decision is durable{lost}."
    )


def _votes(reports: Sequence[ParticipantReport]) -> str:
    known = [r for r in reports if r.state is not None]
    votes = describe_votes(
        [r.participant for r in known if r.oldest is not None],
        [r.participant for r in known if r.oldest is None],
        [r.participant for r in reports if r.state is None],
    )
    return f"; {votes}" if votes else ""


def describe_abort(cause: str, detail: str | None) -> str:
    """Return the cause of an abort, with its details on record."""
    text = {**CAUSES, "operator": "a person decided it"}.get(cause, cause)
    return f"{text} ({detail.rstrip('.')})" if detail else text


def describe_near(view: TransactionView) -> str:
    """Name the attempts at its batch before and after it; empty for none."""
    attempts = (
        f"attempt {other.transaction.attempt} "
        f"{'follows' if other.transaction > view.transaction else 'was before'}, "
        f"{other.state}"
        for other in view.near
    )
    return "; ".join(attempts)


def describe_no_action(view: TransactionView) -> str:
    """Explain that there is nothing to do about a transaction itself."""
    if not view.is_replayed:
        return "Nothing: it needs nobody."
    if view.record.get("launch_namespace"):
        return (
            "Nothing about this attempt. Mend why it was rolled back, and launch the "
            "file again: changed, or by --again."
        )
    return (
        f"Nothing about this attempt. Batch {view.transaction.batch} waits for its "
        "query: if that has ended, mend why the attempt was aborted, and start it."
    )


def _ending(view: TransactionView) -> str:
    untold = [d.participant for d in view.deliveries if d.untold is not None]
    if untold:
        names = join_names(untold)
        return f", and {names} was not told all of it."
    if view.run == ADOPTED and view.decision is Decision.COMMIT:
        names = join_names(delivery.participant for delivery in view.deliveries)
        have = f"{names} had it when it was adopted, with its log lost"
        return f": {have}. Nobody else was asked."
    took = format_duration((view.finished or 0.0) - (view.started or 0.0))
    outcome = f"It took {took}."
    if view.cause is not None:
        cause = describe_abort(view.cause, view.detail)
        outcome = f"It was decided because {cause}. {outcome}"
    if view.decision is Decision.COMMIT:
        outcome = f"It wrote {format_rows(view.rows, view.rejected)} in {took}."
    doubt = " Not every participant could be read." if view.unsure else ""
    return f": every participant has acknowledged. {outcome}{doubt}"


def _without_record(view: TransactionView) -> str:
    id_ = view.transaction
    if view.unknown:
        known = "" if view.known else f", and does not know {id_.application} at all"
        return f"Nobody knows {id_}: this log has no record of it{known}."
    if view.forgotten:
        return (
            f"{id_} is forgotten: it was finished, and its record dropped "
            f"(forgotten_through {view.forgotten_through})."
        )
    if view.in_doubt:
        return f"This log has no record of {id_}, and a participant holds some of it."
    return f"This log has no record of {id_}, and not every participant could be read."


def describe_report(report: ParticipantReport) -> str:
    """Return a participant's report of it in a line."""
    if report.own_sink:
        return "a sink of the job's own, which only the job can ask"
    if report.state is None:
        error = without_participant(report.participant, report.error)
        return f"cannot be read: {error}"
    by_hand = ", resolved there by hand" if report.resolved_by_hand else ""
    if report.oldest is not None:
        load = format_load(report.holds)
        since = format_duration(report.oldest)
        return f"holds it prepared for {since} and keeps busy {load}{by_hand}"
    rows = f", {format_count(report.rows, 'row')}" if report.rows else ""
    return f"{report.state}{rows}{by_hand}"


def describe_delivery(delivery: DeliveryRecord, now: float) -> str:
    """Return the delivery state of the decision at one participant, from the log."""
    if delivery.untold is not None:
        return "not told all of it"
    if delivery.acknowledged is not None:
        return f"acknowledged {format_duration(now - delivery.acknowledged)} ago"
    if delivery.given_up is not None:
        return f"given up {format_duration(now - delivery.given_up)} ago"
    if delivery.retries:
        return format_count(delivery.retries, "failed try", "failed tries")
    return "not told yet"
