"""`tracing-2pc explain`: how a transaction stands, on one screen."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from tracing_2pc.cli.acting import describe_action
from tracing_2pc.cli.arguments import DONE, LEFT, USAGE
from tracing_2pc.cli.terminal import (
    asking,
    headed,
    paint,
    print_either,
    prose,
    safe,
)
from tracing_2pc.core.links import links_of
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision, Severity
from tracing_2pc.inspection import kinds
from tracing_2pc.inspection.summary import (
    describe_delivery,
    describe_near,
    describe_no_action,
    describe_report,
    summarize,
)
from tracing_2pc.inspection.trace_sources import transaction_named
from tracing_2pc.inspection.view import TransactionView, view_transaction
from tracing_2pc.inspection.wording import (
    format_count,
    format_distance,
    format_duration,
    join_names,
)
from tracing_2pc.operations.wiring import open_configured_log, open_participants

_MOST: Final = 5
"""Participants that are described; more are counted."""

Lines: TypeAlias = Callable[[TransactionView, Mapping[str, str]], Iterable[str]]


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Print a transaction's faults, its next steps, and the safe actions."""
    return print_transaction(options, settings, lines)


def print_transaction(
    options: argparse.Namespace, settings: Settings, lines: Lines
) -> int:
    """Ask log and participants about the transaction that was typed; print it.

    `lines` shows a view and its links to people. Programs get all of it.
    """
    named = transaction_named(options.transaction)
    participants = open_participants(settings)
    with open_configured_log(settings) as log, asking(participants):
        view = view_transaction(log, participants, named(log), settings)
    links = links_of(settings.links, view.transaction, view.trace)
    item = {**view.to_json(), "summary": summarize(view), "links": links}
    print_either(options, item, lines(view, links))
    return code_of(view)


def code_of(view: TransactionView) -> int:
    """Return 2 for an unknown transaction, 1 for a fault or an unread source."""
    if view.unknown:
        return USAGE
    return LEFT if view.findings else DONE


def lines(
    view: TransactionView,
    links: Mapping[str, str],
    sides: Callable[[TransactionView], Iterable[str]] | None = None,
) -> Iterator[str]:
    """Return it in sentences; `sides` adds the answers of log and participants."""
    hint = " `tracing-2pc ls` lists those that it has."
    no_record = view.state is None and not view.forgotten
    near = f" Of its batch {text}." if (text := describe_near(view)) else ""
    yield from prose(summarize(view) + (hint if no_record else near))
    yield from headed("What is wrong", _wrong(view))
    yield from headed("What each side says", (sides or _sides)(view))
    if view.state is not None or view.in_doubt:
        yield from headed("What comes next by itself", _next(view))
        yield from headed("What you can do", _actions(view))
    yield from headed("See it", (f"  {safe(n)}  {safe(u)}" for n, u in links.items()))


def _wrong(view: TransactionView) -> Iterator[str]:
    for finding in (*view.beside, *view.wrong):
        colour = "red" if finding.severity is Severity.CRITICAL else "yellow"
        about = "" if finding in view.wrong else f"{finding.about}: "
        for line in prose(f"{about}{finding.text}.", "  "):
            yield paint(line, colour)
        if finding.kind is kinds.HELD_BACK:
            for cause in view.left_alone[-1:]:
                yield from prose(f"Not called stuck yet: {cause}.", "  ")
    if view.wrong or view.unknown:
        return
    if view.state is None and not view.in_doubt:
        yield "  Nothing, as far as participants could be asked."
    else:
        text = "Nothing of its own" if view.beside else "Nothing"
        cause = f" yet: {view.left_alone[0]}" if view.left_alone else ""
        yield from prose(f"{text}{cause}.", "  ")


def _sides(view: TransactionView) -> Iterator[str]:
    sides = [] if view.unknown else [("the log", _log(view))]
    deliveries = {d.participant: d for d in view.deliveries if view.decision}
    for report in view.participants[:_MOST]:
        text = describe_report(report)
        if (delivery := deliveries.get(report.participant)) is not None:
            text += f"; {describe_delivery(delivery, view.at)}"
        sides.append((report.participant, f"{text}."))
    names = [name for name, _ in sides]
    indent = " " * (min(20, max(map(len, ["the log", *names]))) + 4)
    for name, text in sides:
        yield from prose(text, indent, f"  {safe(name, 20)}")
    if (more := len(view.participants) - _MOST) > 0:
        yield f"  … and {more} more; `tracing-2pc show` has all"


def _log(view: TransactionView) -> str:
    if view.state is None:
        return "no record."
    if view.decided is None:
        return f"{view.state}; not decided."
    commit = view.decision is Decision.COMMIT
    rows = f"; {format_count(view.rows, 'row')}" if commit else ""
    ago = format_duration(view.at - view.decided)
    return f"{view.state}; decided {view.decision} {ago} ago{rows}."


def _next(view: TransactionView) -> Iterator[str]:
    for step in view.next:
        due = ""
        if step.at is not None:
            due = format_distance(step.at, view.at) if step.at > view.at else "due"
            due += ": "
        yield from prose(f"{due}{step.what}.", "    ", "  - ")


def _actions(view: TransactionView) -> Iterator[str]:
    cures = [finding.cure for finding in view.wrong if finding.is_at_outbox]
    cures += [f"{finding.about}: {finding.cure}" for finding in view.beside]
    if not view.actions and not cures:
        yield from prose(describe_no_action(view), "  ")
    for cure in cures:
        yield from prose(f"{cure}.", "    ", "  - ")
    if view.unread:
        first = f"first: see to it that {join_names(view.unread)} can be read: until "
        yield from prose(f"{first}then no decision arrives there.", "  ")
    for action in view.actions:
        yield from describe_action(action)
