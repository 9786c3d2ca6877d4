"""Traces, read back from memory or from a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


def span_tree(spans: Iterable[ReadableSpan | Mapping[str, Any]]) -> list[str]:
    """Show spans as names, two blanks per level, siblings by start.

    A span whose parent is not among them stands at the left. A span exported twice
    is shown twice, its children once.

    Args:
        spans: as exported in memory, or as `read_trace_file` returns them.
    """
    # The same object is shown once.
    rows = [_row(span) for span in {id(span): span for span in spans}.values()]
    rows.sort(key=lambda row: row["start"] or 0)
    known = {row["span_id"] for row in rows}
    lines: list[str] = []
    shown: set[str] = set()

    def show(row: Mapping[str, Any], depth: int) -> None:
        lines.append("  " * depth + row["name"])
        if row["span_id"] in shown:
            return
        shown.add(row["span_id"])
        for child in rows:
            if child["parent_id"] == row["span_id"]:
                show(child, depth + 1)

    for row in rows:
        if row["parent_id"] not in known:
            show(row, 0)
    return lines


def _row(span: ReadableSpan | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(span, Mapping):
        return span
    from tracing_2pc.tracing.sdk.exporting import as_json

    return as_json(span)


def read_trace_file(path: Path) -> list[dict[str, Any]]:
    """Read the spans that processes with `TPC_TRACE_FILE` wrote, in their order."""
    return [json.loads(line) for line in path.read_text().splitlines()]
