"""`tracing-2pc show`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from tracing_2pc.cli.looking import code_of, looked
from tracing_2pc.cli.terminal import (
    by,
    headed,
    paint,
    prose,
    safe,
    say,
    table,
    tell,
    when,
)
from tracing_2pc.links import links_of
from tracing_2pc.model import DeliveryRecord
from tracing_2pc.operations.said import Said
from tracing_2pc.operations.view import View
from tracing_2pc.protocol.diagnosis import count, lasting

_BRANCHES = 20
"""Branches, receipts and events of each kind that are printed; JSON has more."""


def run(options: argparse.Namespace) -> int:
    """Print all that is known of one transaction."""
    view, settings = looked(options)
    links = links_of(settings.links, view.transaction, view.trace)
    if options.json:
        tell(options, {**view.to_json(), "links": links}, "")
    else:
        say(lines(view, links))
    return code_of(view)


def lines(view: View, links: Mapping[str, str]) -> Iterator[str]:
    """Return it for people, from the record to what can be done."""
    yield paint(f"{view.transaction}  {_state(view)}", "bold")
    yield from table([*_record(view), *links.items()], "  ")
    yield from headed("what is wrong", _wrong(view))
    yield from headed("participants", _participants(view))
    yield from headed("branches", _branches(view))
    yield from headed("receipts", _receipts(view))
    yield from headed("timeline", _timeline(view))


def _state(view: View) -> str:
    if view.state is not None:
        return str(view.state)
    if view.forgotten:
        return f"forgotten (watermark {view.watermark})"
    return "no record" if view.known else "no record, and its application is not known"


def _record(view: View) -> Iterator[tuple[str, str]]:
    yield "looked at", when(view.at, view.at).partition("(")[2].rstrip(")")
    if view.started is not None:
        yield "begun", when(view.started, view.at)
    if view.decided is not None:
        rows = count(view.rows, "row")
        if view.receipts_of or not view.rows:
            rows += f" in {count(view.receipts_of, 'branch', 'branches')}"
        yield f"decided {view.decision}", f"{when(view.decided, view.at)}; {rows}"
    if view.finished is not None:
        yield "closed", when(view.finished, view.at)
    if view.run is not None:
        yield "run", safe(view.run)
    if view.reason is not None:
        yield "quarantined for", view.reason
    yield "trace", view.trace or "none"


def _wrong(view: View) -> Iterator[str]:
    for one in view.diagnoses:
        yield from prose(f"{one.diagnosis} ({one.severity}): {one.why}", "  ")
    for told in view.untold:
        yield from prose(f"not told: {told.untold}", "  ")
    if view.held_back and not view.diagnoses:
        yield from prose(view.held_back, "  ")


def _participants(view: View) -> Iterator[str]:
    if not view.participants:
        yield "  none: `participants` in the settings is empty"
        return
    told = {one.participant: one for one in view.deliveries}
    head = ("NAME", "ON RECORD", "SAYS", "ROWS", "CLOCK", "IN DOUBT FOR", "REMARK")
    rows = [head]
    for one in view.participants:
        rows.append(
            (
                one.participant,
                heard(told.get(one.participant), view.at),
                "the job's own" if one.own_sink else str(one.state or "cannot be read"),
                str(one.rows) if one.state else "",
                "" if one.skew is None else f"{one.skew:+.1f} s",
                "" if one.oldest is None else lasting(one.oldest),
                by(one.participant, one.error)
                if one.error
                else ("resolved by hand" if one.resolved_by_hand else ""),
            )
        )
    yield from table(rows, "  ")


def heard(told: DeliveryRecord | None, now: float) -> str:
    """Say how far the decision has got with one participant, as the log has it."""
    if told is None:
        return "not on record"
    if told.untold is not None:
        return f"not told: {safe(told.untold)}"
    if told.acknowledged is not None:
        return f"acknowledged {lasting(now - told.acknowledged)} ago"
    if told.given_up is not None:
        return f"given up {lasting(now - told.given_up)} ago"
    if told.retries:
        tries = count(told.retries, "try", "tries")
        return f"{tries}: {by(told.participant, told.error)}"
    return "not acknowledged"


def _branches(view: View) -> Iterator[str]:
    held = [(said, branch) for said in view.participants for branch in said.branches]
    if not held:
        return
    rows = [("PARTICIPANT", "BRANCH", "STATE", "ROWS", "PREPARED")]
    for said, branch in held[:_BRANCHES]:
        prepared = when(branch.prepared_at, view.at)
        rows.append(
            (
                said.participant,
                str(branch.branch),
                str(branch.state),
                str(branch.rows),
                prepared,
            )
        )
    yield from table(rows, "  ")
    yield from _more(sum(map(_of, view.participants)))


def _of(said: Said) -> int:
    return said.of


def _receipts(view: View) -> Iterator[str]:
    if not view.receipts:
        return
    rows = [("BRANCH", "ROWS", "VOTES")]
    for one in view.receipts[:_BRANCHES]:
        votes = ", ".join(f"{name} {vote}" for name, vote in one.votes.items())
        rows.append((str(one.branch), str(one.rows), votes))
    yield from table(rows, "  ")
    yield from _more(view.receipts_of)


def _more(of: int) -> Iterator[str]:
    if of > _BRANCHES:
        yield f"  … {of - _BRANCHES} more; --json shows more"


def _timeline(view: View) -> Iterator[str]:
    if not view.timeline:
        return
    begin = view.started if view.started is not None else view.timeline[0].at
    rows = [
        (f"{event.at - begin:+.1f} s", event.who, event.what)
        for event in view.timeline[-_BRANCHES:]
    ]
    widest = max(len(at) for at, _, _ in rows)
    yield from table([(at.rjust(widest), *rest) for at, *rest in rows], "  ")
