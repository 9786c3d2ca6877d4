"""`python -m rules`: take out each rule, run its test, exit 1 unless all turn red."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence

from rules import runs
from rules.mutants import MUTANTS, Mutant, table
from rules.runs import Tried

HEAD = ("rule", "red?", "mutation", "test")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what the command line asks for; return the exit code."""
    chosen = _parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop all, as Ctrl-C
    if chosen.table:
        _say(table(MUTANTS))
        return 0
    mutants = _chosen(chosen.rule)
    started = time.monotonic()
    _say(_line(HEAD))
    bad = 0
    try:
        with runs.pristine() as source:
            for tried in runs.every(source, mutants, chosen.at_once):
                _say(_line(_cells(tried)))
                if chosen.why or not tried.red:
                    _say(f"    {tried.why}")
                bad += not tried.red
    except KeyboardInterrupt:
        return 130
    how = f"{bad} NOT RED" if bad else "each rule has a test that turns red"
    _say(f"{len(mutants)} mutants, {time.monotonic() - started:.0f} s: {how}")
    return 1 if bad else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rules", description=__doc__)
    parser.add_argument("--rule", action="append", help="only this; repeatable")
    parser.add_argument("--at-once", type=int, default=2, help="mutants at a time")
    parser.add_argument("--why", action="store_true", help="what each test said")
    parser.add_argument("--table", action="store_true", help="print it; try nothing")
    return parser.parse_args(arguments)


def _chosen(rules: Sequence[str] | None) -> list[Mutant]:
    return [m for m in MUTANTS if rules is None or str(m.rule) in rules]


def _cells(tried: Tried) -> tuple[str, ...]:
    mutant = tried.mutant
    return (str(mutant.rule), tried.word, mutant.words, mutant.test)


def _line(row: Sequence[str]) -> str:
    """Return a line of the table; the last cell is as long as it is."""
    fixed = zip(row, (17, 4, 72), strict=False)
    return "  ".join([*(cell.ljust(width) for cell, width in fixed), row[-1]])


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
