"""`tracing-2pc show`: the content of `explain`, with all records, in tables."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tracing_2pc.cli import explain
from tracing_2pc.cli.terminal import headed, safe, table, when
from tracing_2pc.core.model import DeliveryRecord
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.summary import (
    describe_abort,
    describe_delivery,
    describe_near,
)
from tracing_2pc.inspection.view import TransactionView
from tracing_2pc.inspection.wording import (
    format_count,
    format_duration,
    format_rows,
    format_time,
    without_participant,
)

_MOST: Final = 20
"""Branches, receipts and events of each kind that are printed; JSON has more."""


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Print all that is known of one transaction."""
    return explain.print_transaction(options, settings, lines)


def lines(view: TransactionView, links: Mapping[str, str]) -> Iterator[str]:
    """Return it for people: explained, then the record, branches, votes and steps."""
    yield from explain.lines(view, links, _sides)
    yield from headed("What is on record", table([*_record(view)], "  "))
    yield from headed("Branches", _branches(view))
    yield from headed("Votes", _receipts(view))
    yield from headed("What happened", _timeline(view))


def _record(view: TransactionView) -> Iterator[tuple[str, str]]:
    yield "looked at", format_time(view.at)
    yield "state", str(view.state or "no record")
    if view.started is not None:
        yield "begun", when(view.started, view.at)
    if view.decided is not None:
        rows = format_rows(view.rows, view.rejected)
        if view.receipts_of or not view.rows:
            rows += f" in {format_count(view.branches_of, 'branch', 'branches')}"
        yield f"decided {view.decision}", f"{when(view.decided, view.at)}; {rows}"
    if view.finished is not None:
        yield "closed", when(view.finished, view.at)
    if view.run is not None:
        yield "run", safe(view.run)
    if view.reason is not None:
        yield "quarantined for", view.reason
    if view.cause is not None:
        yield "aborted because", describe_abort(view.cause, view.detail)
    if view.near:
        yield "attempts", describe_near(view)
    yield "trace", view.trace or "none"


def _sides(view: TransactionView) -> Iterator[str]:
    if not view.participants:
        yield "  none: `participants` in the settings is empty"
        return
    deliveries = {delivery.participant: delivery for delivery in view.deliveries}
    rows = [("NAME", "ON RECORD", "SAYS", "ROWS", "CLOCK", "IN DOUBT FOR", "REMARK")]
    for report in view.participants:
        delivery = deliveries.get(report.participant)
        answer = str(report.state or "cannot be read")
        remark = "resolved by hand" if report.resolved_by_hand else ""
        if report.error:
            remark = without_participant(report.participant, report.error)
        rows.append(
            (
                report.participant,
                _on_record(delivery, view.at),
                "the job's own" if report.own_sink else answer,
                str(report.rows) if report.state else "",
                format_skew(report.skew),
                "" if report.oldest is None else format_duration(report.oldest),
                remark,
            )
        )
    yield from table(rows, "  ")


def format_skew(skew: float | None) -> str:
    """Write by how much a participant's clock is ahead of ours."""
    return "" if skew is None else f"{skew:+.1f} s"


def _on_record(delivery: DeliveryRecord | None, now: float) -> str:
    if delivery is None:
        return "not on record"
    text = describe_delivery(delivery, now)
    details = delivery.untold
    if delivery.pending and delivery.retries:
        details = without_participant(delivery.participant, delivery.error)
    return f"{text}: {details}" if details else text


def _branches(view: TransactionView) -> Iterator[str]:
    rows = [
        (report.participant, b.branch, b.state, b.rows, when(b.prepared_at, view.at))
        for report in view.participants
        for b in report.branches
    ]
    head = ("PARTICIPANT", "BRANCH", "STATE", "ROWS", "PREPARED")
    yield from _first(head, rows, sum(report.of for report in view.participants))


def _receipts(view: TransactionView) -> Iterator[str]:
    rows = [(r.branch, r.participant, r.vote, r.rows) for r in view.receipts]
    yield from _first(("BRANCH", "PARTICIPANT", "VOTE", "ROWS"), rows, view.receipts_of)


def _first(
    head: Sequence[object], rows: Sequence[Sequence[object]], total: int
) -> Iterator[str]:
    if rows:
        yield from table([head, *rows[:_MOST]], "  ")
    if total > _MOST:
        yield f"  … {total - _MOST} more; --json shows more"


def _timeline(view: TransactionView) -> Iterator[str]:
    if not view.timeline:
        return
    events = view.timeline[-_MOST:]
    begin = view.started if view.started is not None else view.timeline[0].at
    times = [f"{event.at - begin:+.1f} s" for event in events]
    widest = max(map(len, times))
    rows = zip(times, events, strict=True)
    yield from table([(time.rjust(widest), e.who, e.what) for time, e in rows], "  ")
