"""What must be there, computed from the source's files.

The job has rules of its own for this, in SQL: these were written a second time.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

Key: TypeAlias = tuple[str, ...]
Values: TypeAlias = tuple[object, ...]
Expected: TypeAlias = Mapping[Key, Values]

DATA: Final = Path(__file__).parents[1] / "data"


def read_day(date: str, data: Path | None = None) -> list[dict[str, str]]:
    """Read the source's flights of one day."""
    path = (data or DATA) / f"flights-{date}.csv.gz"
    with gzip.open(path, "rt", newline="") as file:
        return [{**row, "date": date} for row in csv.DictReader(file)]


def expected_sums(flights: list[dict[str, str]]) -> Expected:
    """Compute the ledger: flights, cancellations and delays by day, origin, carrier."""
    sums: dict[Key, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in flights:
        group = sums[row["date"], row["origin"], row["carrier"]]
        group[0] += 1
        group[1] += row["dep_time"] == ""
        group[2] += int(row["dep_delay"] or 0)
        group[3] += int(row["arr_delay"] or 0)
    return {key: tuple(values) for key, values in sums.items()}


def is_rejected(sums: Values) -> bool:
    """Say whether a row of the ledger breaks its constraint: no delay is negative."""
    _, _, dep_delay_sum, _ = sums
    return int(str(dep_delay_sum)) < 0


def expected_notices(flights: list[dict[str, str]]) -> Expected:
    """Compute whom the partner must be told of: cancelled, or over two hours late."""
    notices: dict[Key, Values] = {}
    for row in flights:
        delay = int(row["arr_delay"]) if row["arr_delay"] else None
        cancelled = row["dep_time"] == ""
        if cancelled or (delay is not None and delay > 120):
            key = (row["date"], row["carrier"], row["flight"])
            scheduled = int(row["sched_dep_time"])
            reason = "cancelled" if cancelled else "late"
            notices[key] = (row["origin"], row["dest"], scheduled, reason, delay)
    return notices
