"""`python -m bench NAME`: measure; exit 1 where it must hold."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench import backends, deco, micro_batches
from bench.counts import FAMILIES, count_all
from bench.counts.count import HEAD, Count
from bench.deco import ROUNDS

MEASURED = {
    "deco": deco.measure,
    "backends": backends.measure,
    "micro-batches": micro_batches.measure,
}


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    counts = commands.add_parser("counts", help="exact counts, which must hold")
    counts.add_argument(
        "families",
        nargs="*",
        metavar="FAMILY",
        choices=[*FAMILIES, []],
        help=f"all of them, or some of {', '.join(FAMILIES)}",
    )
    counts.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write one JSON object: to FILE, or instead of the table",
    )
    for name, help_text in (
        ("deco", "what the decorator costs, as ratios"),
        ("backends", "what SkyWalking costs beside OTLP, as ratios"),
        ("micro-batches", "what a batch costs on real Spark, beside others' sinks"),
    ):
        command = commands.add_parser(name, help=help_text)
        command.add_argument("--rounds", type=int, default=ROUNDS, help="of every goal")
        command.add_argument("--json", metavar="FILE", help="write the lines there too")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    if options.command in MEASURED:
        return show_goals(MEASURED[options.command](options.rounds), options.json)
    return show(options.families or list(FAMILIES), options.json)


def show_goals(goals: Iterable[dict[str, Any]], to: str | None) -> int:
    """Print a line for each goal when it is known; 1 if one of them is missed."""
    lines = []
    for goal in goals:
        lines.append(goal)
        print(json.dumps(goal), flush=True)
    if to is not None:
        Path(to).write_text("".join(f"{json.dumps(goal)}\n" for goal in lines))
    return 1 if any(goal["verdict"] == "fail" for goal in lines) else 0


def show(families: list[str], to: str | None) -> int:
    """Count, print each row when it is known, and say whether everything held."""
    counts: list[Count] = []
    if to != "-":
        print(HEAD)
    for count in count_all(families):
        counts.append(count)
        if to != "-":
            print(count.as_row(), flush=True)
    ok = all(count.ok for count in counts)
    if to is not None:
        text = json.dumps({"ok": ok, "counts": [c.as_json() for c in counts]})
        print(text) if to == "-" else Path(to).write_text(text + "\n")
    return 0 if ok else 1


if __name__ == "__main__":
    # As Ctrl-C does: what has been started is stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
