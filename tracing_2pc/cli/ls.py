"""`tracing-2pc ls`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import (
    asking,
    paint,
    safe,
    table,
)
from tracing_2pc.core.log_reader import (
    MOST,
    TransactionFilter,
    TransactionSummary,
)
from tracing_2pc.core.model import TransactionId, check_application, trace_id_of
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import TransactionState
from tracing_2pc.inspection.diagnosis import DRIVER, Finding
from tracing_2pc.inspection.listing import Orphan, TransactionList, list_transactions
from tracing_2pc.inspection.summary import describe_abort
from tracing_2pc.inspection.view import to_plain
from tracing_2pc.inspection.wording import (
    format_count,
    format_duration,
    format_iso,
    format_rejected,
    without_participant,
)
from tracing_2pc.operations.recover import describe_unknown
from tracing_2pc.operations.wiring import open_configured_log, open_participants

_HEAD: Final = ("TRANSACTION", "STATE", "AGE", "ROWS", "WAITING FOR", "REMARK")
_PERSON: Final = "a person"


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Print the list; 1 if something is wrong, or cannot be read."""
    if options.application is not None:
        check_application(options.application)
    filters = TransactionFilter(
        options.application,
        TransactionState(options.state) if options.state else None,
        options.unfinished,
        options.limit,
        options.batch,
        options.participant,
        options.since,
        None if options.older_than is None else time.time() - options.older_than,
        () if options.beyond is None else (options.beyond,),
    )
    participants = {} if options.log_only else open_participants(settings)
    with open_configured_log(settings) as log, asking(participants):
        listing = list_transactions(log, participants, filters, settings)
        named, unknown = options.application, ""
        if named is not None and named not in (known := log.applications()):
            unknown = describe_unknown(named, known)
    if options.json:
        for item in items(listing, options.limit):
            print(json.dumps(item))
        if unknown:
            item = {"kind": "unknown", "application": named, "detail": unknown}
            print(json.dumps(item))
    else:
        print("\n".join(lines(listing, options.limit)))
        if unknown:
            print(paint(unknown, "yellow"))
    return LEFT if listing.findings else DONE


def lines(listing: TransactionList, limit: int) -> Iterator[str]:
    """Return the table, further faults, and a line of counts."""
    rows: list[tuple[str | None, tuple[str, ...]]] = []
    rows += (("red", _row(row, listing)) for row in listing.lost)
    for row in listing.unfinished:
        quarantined = row.state is TransactionState.QUARANTINED
        rows.append(("red" if quarantined else "yellow", _row(row, listing)))
    for orphan in listing.orphans:
        rows.append(("red" if orphan.old else "yellow", _orphan_row(orphan)))
    for row in listing.finished:
        rows.append(("yellow" if row.untold else None, _row(row, listing)))
    if shown := rows[:limit]:
        colours = ["bold", *(colour for colour, _ in shown)]
        text = table([_HEAD, *(cells for _, cells in shown)])
        yield from map(paint, text, colours)
    for finding in _beside(listing)[:limit]:
        message = f"{finding.about}: {finding.text}"
        line = f"{message}; {finding.cure}" if finding.cure else message
        yield paint(safe(line, 2000), "yellow")
    yield _counts(listing, len(shown), len(rows), limit)


def _row(row: TransactionSummary, listing: TransactionList) -> tuple[str, ...]:
    waiting_for, detail = ", ".join(row.pending), _detail(row, listing)
    if row in listing.lost:
        waiting_for = _PERSON
    elif (awaited := listing.awaited.get(row.transaction)) is not None:
        waiting_for = awaited.names
    elif row.state is TransactionState.ACTIVE:
        waiting_for = DRIVER
    elif row.state is TransactionState.QUARANTINED:
        waiting_for = _PERSON
    return (
        str(row.transaction),
        str(row.state),
        format_duration(max(0.0, listing.at - row.started)),
        "" if row.rows is None else f"{row.rows}{format_rejected(row.rejected)}",
        waiting_for,
        "; ".join(filter(None, [*_kinds(row.transaction, listing), detail])),
    )


def _orphan_row(orphan: Orphan) -> tuple[str, ...]:
    return (
        str(orphan.transaction),
        "orphaned" if orphan.old else "no record",
        format_duration(orphan.age),
        str(orphan.rows),
        _PERSON if orphan.old else "",
        f"prepared at {', '.join(orphan.held)}; {orphan.why}",
    )


def _beside(listing: TransactionList) -> list[Finding]:
    """Return the faults that are about no row of the list."""
    rows = (*listing.lost, *listing.unfinished, *listing.finished)
    ids = {row.transaction for row in rows} | {o.transaction for o in listing.orphans}
    return [finding for finding in listing.findings if finding.about not in ids]


def _kinds(transaction: TransactionId, listing: TransactionList) -> list[str]:
    return [str(f.kind) for f in listing.findings if f.about == transaction]


def _detail(row: TransactionSummary, listing: TransactionList) -> str:
    if row in listing.lost:
        return f"Spark has begun batch {row.passed_by} without it"
    if row.reason and row.finished is None:
        return row.reason
    if row.untold:
        return f"not told all of it: {', '.join(row.untold)}"
    if row.state is TransactionState.ACTIVE:
        return listing.votes.get(row.transaction, "")
    errors = [
        f"{d.participant}: {without_participant(d.participant, d.error)}"
        for d in listing.deliveries.get(str(row.transaction), {}).values()
        if d.pending and d.error
    ]
    aborted = describe_abort(row.cause, row.detail) if row.cause else ""
    return "; ".join(errors) or row.reason or aborted


def _counts(listing: TransactionList, shown: int, of_all: int, limit: int) -> str:
    states = sorted(Counter(str(row.state) for row in listing.unfinished).items())
    by_state = ", ".join(f"{number} {state}" for state, number in states)
    by_state = f" ({by_state})" if by_state else ""
    # The log lists no more; how many there are is not known.
    oldest = "the oldest " if len(listing.unfinished) >= MOST else ""
    parts = [f"{oldest}{len(listing.unfinished)} unfinished{by_state}"]
    if listing.lost:
        parts.append(f"{len(listing.lost)} lost")
    if listing.orphans:
        parts.append(format_count(len(listing.orphans), "orphan"))
    if listing.finished:
        # The log was asked for no more than fit; how many there are is not known.
        newest = " (the newest)" if of_all >= limit else ""
        parts.append(f"{len(listing.finished)} finished{newest}")
    if shown < of_all:
        parts.append(f"{shown} shown: --limit shows more")
    return "; ".join(parts)


def items(listing: TransactionList, limit: int) -> Iterator[dict[str, Any]]:
    """Return the same as JSON, an object for each line; fields depend on the kind."""
    every = [_item(row, listing) for row in (*listing.lost, *listing.unfinished)]
    every += [
        {
            "kind": "orphan",
            **dataclasses.asdict(orphan.transaction),
            **to_plain(orphan),
            "age": orphan.age,
            "rows": orphan.rows,
            "findings": ["orphaned"] if orphan.old else [],
        }
        for orphan in listing.orphans
    ]
    every += [_item(row, listing) for row in listing.finished]
    yield from every[:limit]
    for finding in _beside(listing)[:limit]:
        yield {**finding.to_json(), "kind": "finding", "finding": str(finding.kind)}
    yield {
        "kind": "counts",
        "lost": len(listing.lost),
        "unfinished": len(listing.unfinished),
        "orphans": len(listing.orphans),
        "finished": len(listing.finished),
    }


def _item(row: TransactionSummary, listing: TransactionList) -> dict[str, Any]:
    item = to_plain(row)
    del item["carrier"]
    times = ("started", "decided", "finished")
    return {
        "kind": "transaction",
        **dataclasses.asdict(row.transaction),  # so that no program needs to cut it
        **item,
        "age": listing.at - row.started,
        "findings": _kinds(row.transaction, listing),
        "trace": trace_id_of(row.carrier),
        "iso": {name: format_iso(item[name]) for name in times},
    }
