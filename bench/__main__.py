"""`python -m bench counts`: measure, print, and exit 1 if something does not hold."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
from pathlib import Path

from bench.counts import FAMILIES, count_all
from bench.counts.count import HEAD, Count


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
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    return show(given.families or list(FAMILIES), given.json)


def show(families: list[str], to: str | None) -> int:
    """Count, print each row when it is known, and say whether everything held."""
    counts: list[Count] = []
    if to != "-":
        print(HEAD)
    for count in count_all(families):
        counts.append(count)
        if to != "-":
            print(count.as_row(), flush=True)
    held = all(count.ok for count in counts)
    if to is not None:
        text = json.dumps({"ok": held, "counts": [c.as_json() for c in counts]})
        print(text) if to == "-" else Path(to).write_text(text + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    # As Ctrl-C does: what has been started is stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
