"""What grows with rows, participants, finished transactions and applications.

Each part yields the points of its series, and a line for each goal that it has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.growth import (
    applications,
    batches,
    finished,
    looking,
    memory,
    participants,
)
from bench.growth.sizes import FULL, TINY, Sizes

Part = Callable[[Path, Sizes], Iterator[dict[str, Any]]]
"""Measures in a folder of its own."""

PARTS: Final[Mapping[str, Part]] = {
    "participants": participants.measure,
    "finished": finished.measure,
    "looking": looking.measure,
    "applications": applications.measure,
    "memory": memory.measure,
    "partitions": batches.measure_partitions,
    "rows": batches.measure_rows,
}
"""Spark last: a process that has a JVM keeps it."""


def sizes(rounds: int, *, tiny: bool = False, rows: int | None = None) -> Sizes:
    """Return what to measure: so many rounds and rows of a batch at most."""
    chosen = (TINY if tiny else FULL).limited_to(rounds)
    return chosen if rows is None else chosen.up_to(rows)


def measure(sizes: Sizes, parts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of these parts, each when it is known."""
    for name in parts:
        with tempfile.TemporaryDirectory(prefix="tpc-growth-") as folder:
            yield from PARTS[name](Path(folder), sizes)
