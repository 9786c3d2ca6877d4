"""`python -m crash`: run every point, print the table, exit 1 unless all are zeros."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from crash import report
from crash.report import Row
from crash.runs import Field, field, plan, points

_SHOWN = 3
"""Remarks of a point that are printed; all of them are in the JSON."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit code."""
    chosen = _parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop all, as Ctrl-C
    started = time.monotonic()
    _say(report.line(report.HEAD))
    rows = []
    try:
        with field(chosen.body) as where:
            for point in chosen.point or points():
                rows.append(_run(where, point, chosen.runs, chosen.seed))
    except KeyboardInterrupt:
        return 130
    if chosen.json:
        report.write_json(chosen.json, rows, chosen.runs, time.monotonic() - started)
    return _conclude(rows, time.monotonic() - started)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m crash", description=__doc__)
    parser.add_argument("--runs", type=int, default=1, help="of each point")
    parser.add_argument("--seed", type=int, default=0, help="which variants are first")
    parser.add_argument(
        "--point", action="append", choices=points(), help="only this; repeatable"
    )
    parser.add_argument(
        "--body", type=int, default=0, help="bytes of text in each branch"
    )
    parser.add_argument("--json", type=Path, help="file to write the result to")
    return parser.parse_args(arguments)


def _run(where: Field, point: str, runs: int, seed: int) -> Row:
    planned = plan(point, runs, seed)
    row = report.row(point, [where.run(*one) for one in planned])
    _say(report.line(row.cells()))
    for remark in row.remarks[:_SHOWN]:
        _say(f"    {remark}")
    if (more := len(row.remarks) - _SHOWN) > 0:
        _say(f"    and {more} more")
    return row


def _conclude(rows: Sequence[Row], seconds: float) -> int:
    bad = [row.point for row in rows if not row.clean]
    total = sum(row.runs for row in rows)
    how = f"NOT CLEAN: {', '.join(bad)}" if bad else "nothing lost, nothing twice"
    _say(f"{len(rows)} points, {total} runs, {seconds:.0f} s: {how}")
    return 1 if bad else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
