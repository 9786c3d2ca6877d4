"""A batch of real Spark, of ever more rows or partitions, beside its JDBC sink.

A point is a batch of the library beside two appends of that sink: by the path that it
chooses where rows grow, by executors where partitions do.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.growth.sizes import Sizes
from bench.micro_batches import PARTITIONS, time_arms
from bench.pair import compare, point

ADVISED: Final = {"spark.python.unix.domain.socket.enabled": "true"}
"""What the manual says of a batch of many partitions."""


def measure_rows(folder: Path, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield a point for each number of rows."""
    series = _Series("rows", "library", folder, sizes.row_rounds, {})
    for rows in sizes.rows:
        yield series.point(rows, rows, PARTITIONS)


def measure_partitions(folder: Path, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield a point for each number of partitions: without and with what is advised."""
    for name, settings in (("partitions", {}), ("partitions-socket", ADVISED)):
        series = _Series(name, "executors", folder, sizes.row_rounds, settings)
        for partitions in sizes.partitions:
            rows = sizes.partition_rows // partitions * partitions
            yield series.point(partitions, rows, partitions)


@dataclasses.dataclass
class _Series:
    """What is along it is measured one after another, each beside the JDBC sink."""

    name: str
    ours: str
    folder: Path
    rounds: int
    settings: Mapping[str, str]
    unit: float | None = None

    def point(self, x: int, rows: int, partitions: int) -> dict[str, Any]:
        seconds = time_arms(
            self.folder / f"{self.name}-{x}",
            rows,
            self.rounds,
            [self.ours, "jdbc"],
            partitions=partitions,
            settings=self.settings,
        )
        medians = {name: statistics.median(seconds[name]) for name in seconds}
        self.unit = self.unit or medians[self.ours]
        heights = {name: median / self.unit for name, median in medians.items()}
        ratio = compare(seconds[self.ours], seconds["jdbc"])
        settings = {"rows": rows, "partitions": partitions}
        return point(self.name, x, ratio, heights, settings)
