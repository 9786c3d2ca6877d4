"""Exact counts: each is a number that the code alone decides, on any machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.counts import (
    branches,
    connections,
    coordinator_flushes,
    participant_flushes,
    per_record,
    requests,
    spark_jobs,
)
from bench.counts.count import Count

Family = Callable[[Path], Iterator[Count]]
"""Counts that are taken together, in a folder of their own."""

FAMILIES: Final[Mapping[str, Family]] = {
    "requests": requests.counts,
    "per-record": per_record.counts,
    "branches": branches.counts,
    "coordinator-flushes": coordinator_flushes.counts,
    "participant-flushes": participant_flushes.counts,
    "connections": connections.counts,
    "spark-jobs": spark_jobs.counts,
}
"""Spark last: a process that has a JVM keeps it."""


def count_all(families: Sequence[str]) -> Iterator[Count]:
    """Yield the counts of these families, each when it is known."""
    for name in families:
        with tempfile.TemporaryDirectory(prefix="tpc-counts-") as folder:
            yield from FAMILIES[name](Path(folder))
