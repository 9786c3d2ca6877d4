"""`python -m bench NAME`: measure; exit 1 where it must hold."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench import (
    backends,
    deco,
    growth,
    ingest,
    kafka,
    micro_batches,
    peers,
    rejects,
    report,
    results,
)
from bench.counts import FAMILIES, count_all
from bench.counts.count import HEAD, Count
from bench.deco import ROUNDS
from bench.goals import FAMILIES as MEASURED


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; its exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    match options.command:
        case "counts":
            return show(options.families or list(FAMILIES), options.json)
        case "all":
            return measure_all(options)
        case "report":
            report.write(results.read(options.results), options.page)
            return 0
    try:
        return show_goals(_measured(options), options.json)
    except Exception:  # noqa: BLE001 - another exit code than that of a missed goal
        traceback.print_exc()
        return 2


def _parser() -> argparse.ArgumentParser:
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
    everything = commands.add_parser("all", help="measure everything, write the page")
    everything.add_argument(
        "families",
        nargs="*",
        metavar="FAMILY",
        choices=[*MEASURED, []],
        help=f"these only, beside the results there are: {', '.join(MEASURED)}",
    )
    for name, help_text in (
        ("deco", "what the decorator costs, as ratios"),
        ("backends", "what SkyWalking costs beside OTLP, as ratios"),
        ("micro-batches", "what a batch costs on real Spark, beside others' sinks"),
        ("rejects", "what a row costs that is rejected, and what none does"),
        ("kafka", "what a batch to Kafka costs, beside a plain producer"),
        ("ingest", "what an event costs at a gateway, beside COPY and an empty route"),
        ("peers", "what others cost beside it: plain SQL, other tracing"),
        ("growth", "what grows with rows, participants, transactions, applications"),
    ):
        command = commands.add_parser(name, help=help_text)
        command.add_argument("--json", metavar="FILE", help="write the lines there too")
        _add_sizes(command)
        if name == "growth":
            command.add_argument(
                "series",
                nargs="*",
                metavar="SERIES",
                choices=[*growth.PARTS, []],
                help=f"all of them, or some of {', '.join(growth.PARTS)}",
            )
    _add_sizes(everything)
    page = commands.add_parser("report", help="write the page from the last results")
    for command in (everything, page):
        command.add_argument(
            "--results", metavar="FILE", type=Path, default=results.FILE
        )
        command.add_argument("--page", metavar="FILE", type=Path, default=report.PAGE)
    return parser


def _add_sizes(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--rounds", type=int, default=ROUNDS, help="of every goal, at most"
    )
    command.add_argument(
        "--tiny", action="store_true", help="sizes that only show that it works"
    )
    command.add_argument(
        "--rows", type=int, help="the most rows of a batch in growth (5000000)"
    )


def _measured(options: argparse.Namespace) -> Iterable[dict[str, Any]]:
    rounds: int = options.rounds
    match options.command:
        case "deco":
            return deco.measure(rounds)
        case "backends":
            return backends.measure(rounds)
        case "micro-batches":
            if options.tiny:
                return micro_batches.measure(rounds, (10,), warm_up=0)
            return micro_batches.measure(rounds)
        case "kafka" | "rejects":
            sizes = {"rows": 10, "warm_up": 0} if options.tiny else {}
            family = kafka if options.command == "kafka" else rejects
            return family.measure(rounds, **sizes)
        case "ingest":
            return ingest.measure(rounds, tiny=options.tiny)
        case "peers":
            return peers.measure(rounds, tiny=options.tiny)
    sizes = growth.sizes(rounds, tiny=options.tiny, rows=options.rows)
    return growth.measure(sizes, options.series or list(growth.PARTS))


def measure_all(options: argparse.Namespace) -> int:
    """Run families, each in a process of its own; write the results and the page.

    A line is in the file when it is known. A family that does not come to its end costs
    its own results only. 1 if a goal is missed, 2 if a family did not come to its end.
    """
    shared = ["--rounds", str(options.rounds)]
    shared += ["--tiny"] if options.tiny else []
    shared += ["--rows", str(options.rows)] if options.rows else []
    options.results.parent.mkdir(parents=True, exist_ok=True)
    codes = []
    with options.results.open("a" if options.families else "w") as file:

        def keep(line: dict[str, Any]) -> None:
            for to in (file, sys.stdout):
                print(json.dumps(line), file=to, flush=True)

        keep(results.about_this_run(options.families, trial=options.tiny))
        for family in options.families or MEASURED:
            with _running(family, shared) as process:
                assert process.stdout
                for text in process.stdout:
                    keep(json.loads(text))
            codes.append(process.returncode)
            if codes[-1] not in (0, 1):
                keep({"failed": family, "exit": codes[-1]})
    report.write(results.read(options.results), options.page)
    return max(2 if code not in (0, 1) else code for code in codes)


@contextlib.contextmanager
def _running(family: str, shared: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a family; it is stopped on the way out, as Ctrl-C does."""
    command = [sys.executable, "-m", "bench", family, *shared]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        except BaseException:
            process.terminate()
            raise


def show_goals(goals: Iterable[dict[str, Any]], to: str | None) -> int:
    """Print a line for each goal when it is known; 1 if one of them is missed."""
    lines = []
    for goal in goals:
        lines.append(goal)
        print(json.dumps(goal), flush=True)
    if to is not None:
        Path(to).write_text("".join(f"{json.dumps(goal)}\n" for goal in lines))
    return 1 if any(goal.get("verdict") == "fail" for goal in lines) else 0


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
