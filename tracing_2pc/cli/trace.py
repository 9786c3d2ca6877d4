"""`tracing-2pc trace`: the spans of a transaction, as a tree with words."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Final

from tracing_2pc.cli.arguments import DONE, LEFT, USAGE
from tracing_2pc.cli.terminal import headed, paint, print_either, prose, safe
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.trace import NO_PROOF, TraceRow, TraceView
from tracing_2pc.inspection.trace_sources import (
    TRACE_ID,
    find_trace,
    read_trace,
    transaction_named,
)
from tracing_2pc.inspection.wording import format_count, format_elapsed
from tracing_2pc.operations.wiring import open_configured_log

_MOST: Final = 500
"""Spans that are printed; JSON has all."""

_NARROWEST: Final = 30


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Print the tree; 1 if there is no span of it, 2 if it is unknown."""
    about, view = _find(options.transaction, settings)
    transaction = None if TRACE_ID.fullmatch(about) else about
    item = {"transaction": transaction, **view.to_json()}
    print_either(options, item, lines(about, view))
    if view.rows:
        return DONE
    return LEFT if view.known else USAGE


def _find(typed: str, settings: Settings) -> tuple[str, TraceView]:
    """Return what was meant, and its trace."""
    if TRACE_ID.fullmatch(typed):
        return typed, read_trace(settings, typed)
    named = transaction_named(typed)
    with open_configured_log(settings, may_be_down=True) as log:
        transaction = named(log)
        return str(transaction), find_trace(log, transaction, settings)


def lines(about: str, view: TraceView) -> Iterator[str]:
    """Return it for people: the tree, missing parts, and sources without an answer."""
    yield paint(safe(f"{about}  trace {view.trace or 'not known'}"), "bold")
    if view.rows:
        counted = format_count(len(view.rows), "span")
        yield from prose(f"{counted} from {view.source}: {view.services}.")
        yield ""
        yield from _tree(view.rows[:_MOST])
        if (more := len(view.rows) - _MOST) > 0:
            yield f"… {more} more; --json has all"
    else:
        nobody = "" if view.known else ", and nobody knows of it"
        yield f"No span of it was found{nobody}."
    missing = [line for gap in view.gaps for line in prose(f"{gap}.", "    ", "  - ")]
    if view.gaps or not view.rows:
        missing += prose(NO_PROOF, "  ")
    yield from headed("What is missing", missing)
    notes = [line for n in view.notes for line in prose(f"{n}.", "    ", "  - ")]
    yield from headed("Asked in vain", notes)


def _tree(rows: tuple[TraceRow, ...]) -> Iterator[str]:
    cells = [
        (
            f"+{format_elapsed(row.offset)}",
            format_elapsed(row.lasted),
            safe(row.span.service, 20),
            safe(f"{' ' * min(row.depth, 12)}{row.span.name}", 40),
        )
        for row in rows
    ]
    head = ("AFTER", "LASTED", "WHERE", "SPAN")
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    before = sum(widths) + 2 * len(widths)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 160
    left = max(_NARROWEST, width - before)

    def line(row: tuple[str, ...], text: str) -> str:
        offset, lasted, *names = row
        numbers = f"{offset:>{widths[0]}}  {lasted:>{widths[1]}}  "
        shown = [f"{n:<{w}}  " for n, w in zip(names, widths[2:], strict=True)]
        return (numbers + "".join(shown) + text).rstrip()

    yield paint(line(head, "WHAT IT IS"), "bold")
    for row, shown in zip(rows, cells, strict=True):
        first, *rest = textwrap.wrap(safe(row.words, 600), left) or [""]
        colour = "red" if row.span.error else None
        yield paint(line(shown, first), colour)
        yield from (paint(" " * before + more, colour) for more in rest)
