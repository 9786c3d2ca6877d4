"""How a transaction stands, in sentences: for the command line and the console."""

from __future__ import annotations

from tracing_2pc.core.model import ADOPTED, DeliveryRecord
from tracing_2pc.core.names import CAUSES
from tracing_2pc.core.states import Decision, TransactionState
from tracing_2pc.inspection.participants import ParticipantReport
from tracing_2pc.inspection.view import TransactionView
from tracing_2pc.inspection.wording import (
    format_count,
    format_duration,
    format_load,
    join_names,
    without_participant,
)


def summarize(view: TransactionView) -> str:
    """Return in a sentence or two how it stands."""
    id_ = view.transaction
    if view.state is None:
        return _without_record(view)
    if view.state is TransactionState.ACTIVE:
        age = format_duration(view.at - (view.started or view.at))
        return f"{id_} is being written: begun {age} ago, and not decided."
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
    have = f"{join_names(names)} {'have' if len(names) > 1 else 'has'}"
    grave = any(finding.grave for finding in view.findings)
    lost = "" if grave else "; nothing is lost"
    return (
        f"{id_} is decided {view.decision} and not finished: {have} not acknowledged "
        f"yet. The decision is durable{lost}."
    )


def describe_abort(cause: str, detail: str | None) -> str:
    """Return why a transaction was aborted, with what is on record of that."""
    text = {**CAUSES, "operator": "a person decided it"}.get(cause, cause)
    return f"{text} ({detail.rstrip('.')})" if detail else text


def describe_near(view: TransactionView) -> str:
    """Return which attempts at its batch were before and after it; empty for none."""
    attempts = (
        f"attempt {other.transaction.attempt} "
        f"{'follows' if other.transaction > view.transaction else 'was before'}, "
        f"{other.state}"
        for other in view.near
    )
    return "; ".join(attempts)


def describe_no_action(view: TransactionView) -> str:
    """Return why there is nothing to do about a transaction itself."""
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
    what = f"It took {took}."
    if view.cause is not None:
        what = (
            f"It was decided because {describe_abort(view.cause, view.detail)}. {what}"
        )
    if view.decision is Decision.COMMIT:
        what = f"It wrote {format_count(view.rows, 'row')} in {took}."
    doubt = " Not every participant could be read." if view.unsure else ""
    return f": every participant has acknowledged. {what}{doubt}"


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
    """Return what a participant says of it, in a line."""
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
    """Return how far the decision has got with one participant, as the log has it."""
    if delivery.untold is not None:
        return "not told all of it"
    if delivery.acknowledged is not None:
        return f"acknowledged {format_duration(now - delivery.acknowledged)} ago"
    if delivery.given_up is not None:
        return f"given up {format_duration(now - delivery.given_up)} ago"
    if delivery.retries:
        return f"told in vain {format_count(delivery.retries, 'time')}"
    return "not told yet"
