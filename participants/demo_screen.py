"""What the demo shows while it runs: how far it is, and one flight at both places."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator

from tracing_2pc.cli.terminal import is_smart, paint, progress

from .oracle.actual import deliveries, ledger_rows, received_by
from .oracle.expected import (
    Key,
    Values,
    expected_notices,
    expected_sums,
    is_rejected,
    read_day,
)

WIDTH = 31
"""Characters of the bar."""

BUSY = 2.0
"""Processes that want to run, for each core, from which a machine counts as slow."""


def say(line: str, colour: str | None = None) -> None:
    """Tell the person who watches; the result itself goes to standard output."""
    progress("")
    print(paint(line, colour, on=sys.stderr), file=sys.stderr, flush=True)


def show_start(seconds: float) -> None:
    """Show on a terminal that Spark is starting."""
    progress(f"Spark is starting: {seconds:.0f} s; a slow machine takes a minute")


def show_batch(count: int, of: int | None) -> None:
    """Show that one more batch is committed: by a bar on a terminal, else by a line."""
    among = "" if of is None else f" of {of}"
    if of is None or not is_smart(sys.stderr):
        say(f"batch {count:>2}{among} is committed in both")
        return
    done = WIDTH * count // of
    bar = paint("#" * done, "green", on=sys.stderr) + "." * (WIDTH - done)
    progress("")
    print(f"[{bar}] {count}{among} days are at both", end="", file=sys.stderr)
    sys.stderr.flush()


def why_slow() -> str:
    """Say whether the machine itself explains that nothing moves."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    shown = f"load {load:.1f} on {cores} cores"
    if load > BUSY * cores:
        return (
            f"This machine is busy ({shown}), so it may be slow and nothing else: try "
            "again when it has less to do, or with --batches 6"
        )
    return f"This machine is not busy ({shown}), so that is not the reason"


@dataclasses.dataclass(frozen=True)
class Flight:
    """One flight that both must have: late, or cancelled."""

    key: Key
    values: Values

    @classmethod
    def of_day(cls, day: int, *, rejects: bool = False) -> Flight:
        """Return the first one of a day of January 2013 that the ledger takes."""
        flights = read_day(f"2013-01-{day:02}")
        sums = expected_sums(flights)
        of_day = (cls(key, values) for key, values in expected_notices(flights).items())
        return next(f for f in of_day if not (rejects and is_rejected(sums[f.group])))

    @property
    def group(self) -> Key:
        """The ledger's row that it is a part of."""
        day, carrier, _ = self.key
        return day, str(self.values[0]), carrier

    def __str__(self) -> str:
        (day, carrier, number), (origin, to, *_) = self.key, self.values
        return f"flight {carrier} {number} from {origin} to {to} on {day}"

    def places(self, ledger: str, partner: str) -> tuple[int, int]:
        """Return how often readers find it at the ledger and at the partner."""
        rows = [key for key, _ in ledger_rows(ledger) if key == self.group]
        told = [key for key, _ in deliveries(received_by(partner)[0])]
        return len(rows), told.count(self.key)

    def lines(self, places: tuple[int, int]) -> Iterator[tuple[str, str]]:
        """Say it to a person: lines and their colours."""
        yield f"  {self}", "bold"
        for name, times in zip(("ledger", "partner"), places, strict=True):
            what, colour = ("NOT THERE", "red") if not times else ("there", "green")
            often = {0: "", 1: ", once"}.get(times, f", {times} TIMES")
            yield f"    at the {name:<8} {what}{often}", colour
