"""`tracing-2pc ls`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import asking, by, iso, paint, safe, say, table, tell
from tracing_2pc.model import TransactionId, check_application, trace_id_of
from tracing_2pc.operations.listing import Listed, Orphan, list_transactions
from tracing_2pc.operations.observation import reachable
from tracing_2pc.operations.recover import configured_log, unknown_application
from tracing_2pc.operations.view import plain
from tracing_2pc.protocol.diagnosis import count, lasting
from tracing_2pc.settings import Settings
from tracing_2pc.states import TransactionState
from tracing_2pc.store.overview import Filters, Summary

_HEAD: Final = ("TRANSACTION", "STATE", "AGE", "ROWS", "WAITING FOR", "REMARK")
_ATTEMPT: Final = "its driver"
_PERSON: Final = "a person"


def run(options: argparse.Namespace) -> int:
    """Print the list; 1 if something in it needs a person, or cannot be read."""
    settings = Settings.load(options.config, log=options.log)
    if options.application is not None:
        check_application(options.application)
    filters = Filters(
        options.application,
        TransactionState(options.state) if options.state else None,
        options.older_than,
        unfinished=options.unfinished,
        limit=options.limit,
    )
    participants = {} if options.log_only else reachable(settings)
    with configured_log(settings) as log, asking(participants):
        found = list_transactions(log, participants, filters, settings)
        known = log.applications() if options.application else ()
    if options.json:
        for item in items(found, options.limit):
            tell(options, item, "")
    else:
        say((*lines(found, options.limit), *_unknown(options.application, known)))
    return LEFT if _needs_a_person(found) else DONE


def _unknown(application: str | None, known: Sequence[str]) -> Iterator[str]:
    """Say that a filter found nothing because the log knows no such application."""
    if application is not None and application not in known:
        yield paint(unknown_application(application, known), "yellow")


def _needs_a_person(found: Listed) -> bool:
    quarantined = any(
        one.state is TransactionState.QUARANTINED for one in found.unfinished
    )
    return bool(quarantined or found.unreadable or any(o.old for o in found.orphans))


def lines(found: Listed, limit: int) -> Iterator[str]:
    """Return the table, who could not be read, and a line of counts."""
    coloured = [(_row(one, found), _colour(one)) for one in found.unfinished]
    coloured += [(_orphan_row(one), _colour_of_orphan(one)) for one in found.orphans]
    coloured += [
        (_row(one, found), "yellow" if one.untold else None) for one in found.finished
    ]
    shown = coloured[:limit]
    if shown:
        rows = table([_HEAD, *(row for row, _ in shown)])
        yield paint(rows[0], "bold")
        for line, (_, colour) in zip(rows[1:], shown, strict=True):
            yield paint(line, colour)
    for name, why in found.unreadable.items():
        yield paint(f"{safe(name)}: {safe(by(name, why))}", "yellow")
    yield _counts(found, len(shown), len(coloured), limit)


def _row(one: Summary, found: Listed) -> tuple[str, ...]:
    return (
        str(one.transaction),
        str(one.state),
        lasting(max(0.0, found.at - one.started)),
        "" if one.rows is None else str(one.rows),
        _waiting_for(one),
        _remark(one, found),
    )


def _orphan_row(orphan: Orphan) -> tuple[str, ...]:
    return (
        str(orphan.transaction),
        "orphaned" if orphan.old else "no record",
        lasting(orphan.age),
        str(orphan.rows),
        _PERSON if orphan.old else "",
        f"prepared at {', '.join(orphan.held)}; {orphan.why}",
    )


def _waiting_for(one: Summary) -> str:
    if one.state is TransactionState.ACTIVE:
        return _ATTEMPT
    if one.state is TransactionState.QUARANTINED:
        return _PERSON
    return ", ".join(one.pending)


def _remark(one: Summary, found: Listed) -> str:
    if one.reason and one.finished is None:
        return one.reason
    if one.untold:
        return f"not told all of it: {', '.join(one.untold)}"
    told = [
        d for d in found.deliveries.get(str(one.transaction), {}).values() if d.pending
    ]
    tried = [f"{d.participant}: {by(d.participant, d.error)}" for d in told if d.error]
    return "; ".join(tried) or one.reason or ""


def _colour(one: Summary) -> str | None:
    return "red" if one.state is TransactionState.QUARANTINED else "yellow"


def _colour_of_orphan(one: Orphan) -> str:
    return "red" if one.old else "yellow"


def _counts(found: Listed, shown: int, of_all: int, limit: int) -> str:
    states = Counter(str(one.state) for one in found.unfinished)
    of = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    parts = [f"{len(found.unfinished)} unfinished{f' ({of})' if of else ''}"]
    if found.orphans:
        parts.append(count(len(found.orphans), "orphan"))
    if found.finished:
        # The log was asked for no more than fit; how many there are nobody counted.
        newest = " (the newest)" if of_all >= limit else ""
        parts.append(f"{len(found.finished)} finished{newest}")
    if shown < of_all:
        parts.append(f"{shown} shown: --limit shows more")
    return "; ".join(parts)


def items(found: Listed, limit: int) -> Iterator[dict[str, Any]]:
    """Return the same as JSON, an object for each line; the kind says which fields."""
    every = [_item(one, found.at) for one in found.unfinished]
    every += [_orphan_item(one) for one in found.orphans]
    every += [_item(one, found.at) for one in found.finished]
    yield from every[:limit]
    for name, why in found.unreadable.items():
        yield {"kind": "unreadable", "participant": name, "why": why}
    yield {
        "kind": "counts",
        "unfinished": len(found.unfinished),
        "orphans": len(found.orphans),
        "finished": len(found.finished),
    }


def _item(one: Summary, at: float) -> dict[str, Any]:
    item = plain(one)
    del item["carrier"]
    times = ("started", "decided", "finished")
    return {
        "kind": "transaction",
        **_parts(one.transaction),
        **item,
        "age": at - one.started,
        "trace": trace_id_of(one.carrier),
        "iso": {name: iso(item[name]) for name in times},
    }


def _parts(transaction: TransactionId) -> dict[str, Any]:
    """Return what an id consists of, so that nobody needs to cut it."""
    return {
        "application": transaction.application,
        "batch": transaction.batch,
        "attempt": transaction.attempt,
    }


def _orphan_item(one: Orphan) -> dict[str, Any]:
    item = {**_parts(one.transaction), **plain(one)}
    return {"kind": "orphan", **item, "age": one.age, "rows": one.rows}
