"""The oracle's command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from . import __doc__ as about
from . import judge


def days_of(text: str) -> list[int]:
    """Read `1-31` or `1,2,5-7`."""
    days: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        days += range(int(first), int(last or first) + 1)
    return days


def main() -> None:
    """Judge; exit 0 when all is good, 1 when not."""
    parser = argparse.ArgumentParser(prog="oracle", description=about)
    parser.add_argument("--ledger", required=True, help="URL of the ledger's database")
    parser.add_argument(
        "--partner", required=True, help="URL of the partner, or a topic"
    )
    parser.add_argument("--days", type=days_of, default="1-31", help="e.g. 1-31")
    parser.add_argument(
        "--rejects", action="store_true", help="read the table of rejected rows, too"
    )
    parser.add_argument("--wait", type=float, default=60.0, help="seconds at most")
    parser.add_argument("--json", action="store_true", help="one object instead")
    chosen = parser.parse_args()
    places = chosen.ledger, chosen.partner, chosen.days
    verdict = judge(*places, timeout=chosen.wait, rejects=chosen.rejects)
    if chosen.json:
        print(json.dumps({**dataclasses.asdict(verdict), "good": verdict.good}))
    else:
        print(*verdict.lines(), sep="\n")
    sys.exit(0 if verdict.good else 1)


if __name__ == "__main__":
    main()
