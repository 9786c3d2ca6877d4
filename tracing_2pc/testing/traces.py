"""Traces, read back from memory or from a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry import trace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


def span_tree(spans: Iterable[ReadableSpan | Mapping[str, Any]]) -> list[str]:
    """Show spans as names, two blanks per level, siblings by start.

    A span whose parent is not among them stands at the left. A span exported twice
    is shown twice, its children once.

    Args:
        spans: as exported in memory, or as `read_trace_file` returns them.
    """
    rows = sorted({id(s): _row(s) for s in spans}.values(), key=lambda r: r.start)
    known = {row.id for row in rows}
    lines: list[str] = []
    shown: set[str] = set()

    def show(row: _Row, depth: int) -> None:
        lines.append("  " * depth + row.name)
        if row.id in shown:
            return
        shown.add(row.id)
        for child in rows:
            if child.parent == row.id:
                show(child, depth + 1)

    for row in rows:
        if row.parent not in known:
            show(row, 0)
    return lines


def read_trace_file(path: Path) -> list[dict[str, Any]]:
    """Read what processes with `TPC_TRACE_FILE` wrote, in the order they wrote it."""
    return [json.loads(line) for line in path.read_text().splitlines()]


class _Row(NamedTuple):
    start: int
    name: str
    id: str
    parent: str | None


def _row(span: ReadableSpan | Mapping[str, Any]) -> _Row:
    if isinstance(span, Mapping):
        return _Row(span["start"], span["name"], span["span_id"], span["parent_id"])
    context, parent = span.get_span_context(), span.parent
    return _Row(
        span.start_time or 0,
        span.name,
        trace.format_span_id(context.span_id) if context else "",
        trace.format_span_id(parent.span_id) if parent else None,
    )
