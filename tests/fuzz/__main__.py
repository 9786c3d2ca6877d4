"""`python -m fuzz`: bodies that nobody meant, to each kind of participant."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext

from support import memory
from support.kinds import KINDS, POSTGRESQL_ONLY
from support.postgres import postgresql

from fuzz import runs
from fuzz.bodies import draw


def main(arguments: Sequence[str] | None = None) -> int:
    """Send what the command line asks for; return the exit code."""
    chosen = _parse(arguments)
    memory.use()
    bad = 0
    for kind in chosen.kind or KINDS:
        if kind in POSTGRESQL_ONLY and not chosen.postgresql:
            continue
        started = time.monotonic()
        numbers = range(chosen.first, chosen.first + chosen.cases)
        cases = (draw(chosen.seed, number) for number in numbers)
        with postgresql() if chosen.postgresql else nullcontext() as url:
            for fault in runs.faults(kind, cases, url):
                bad += 1
                _say(
                    f"{kind}, seed {chosen.seed}, case {fault.case.number}: {fault.why}"
                )
        where = "PostgreSQL" if chosen.postgresql else "SQLite"
        seconds = time.monotonic() - started
        _say(f"{kind} on {where}: {chosen.cases} cases, {seconds:.0f} s")
    _say(f"{bad} FAULTS" if bad else "no process ended, no fault, no lost success")
    return 1 if bad else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="for each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--kind", action="append", choices=KINDS, help="repeatable")
    parser.add_argument(
        "--postgresql", action="store_true", help="on PostgreSQL instead of SQLite"
    )
    return parser.parse_args(arguments)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - what it is for


if __name__ == "__main__":
    sys.exit(main())
