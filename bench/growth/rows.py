"""A batch of real Spark, of ever more rows, beside two appends of its JDBC sink."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.growth.sizes import Sizes
from bench.micro_batches import PARTITIONS, time_arms
from bench.pair import compare, point


def measure(folder: Path, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield a point for each number of rows."""
    unit = None
    for rows in sizes.rows:
        arms = time_arms(
            folder / str(rows),
            rows,
            sizes.row_rounds,
            ["jdbc", "library"],
        )
        medians = {name: statistics.median(arms[name]) for name in ("library", "jdbc")}
        unit = unit or medians["library"]
        heights = {name: median / unit for name, median in medians.items()}
        ratio = compare(arms["library"], arms["jdbc"])
        yield point("rows", rows, ratio, heights, {"partitions": PARTITIONS})
