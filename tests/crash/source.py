"""The source that a job reads: files that hold which record is in which batch.

Executors read it to write; the oracle reads it to judge. Nothing else is shared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

BATCHES = 3
PARTITIONS = 2
PARTS = ((0, 1), (), (2,), (3,))
"""Records of one partition, as the Arrow batches that it arrives in; one is empty."""

ROWS = sum(map(len, PARTS))


def write(folder: Path, applications: Sequence[str], batches: int = BATCHES) -> None:
    """Write the source of each application: a file a batch, a list a partition."""
    for application in applications:
        target = _of(folder, application)
        target.mkdir(parents=True)
        for batch in range(batches):
            partitions = [_values(batch, partition) for partition in range(PARTITIONS)]
            (target / f"{batch}.json").write_text(json.dumps(partitions))


def batches(folder: Path, application: str) -> int:
    """Return how many batches there are."""
    return len(list(_of(folder, application).iterdir()))


def read(
    folder: Path, application: str, batch: int, partition: int
) -> Iterator[list[dict[str, Any]]]:
    """Yield a partition's records, part by part."""
    text = (_of(folder, application) / f"{batch}.json").read_text()
    for part in json.loads(text)[partition]:
        yield [
            {"application": application, "batch": batch, "value": value}
            for value in part
        ]


def _of(folder: Path, application: str) -> Path:
    return folder / "source" / application


def _values(batch: int, partition: int) -> list[list[int]]:
    first = (batch * PARTITIONS + partition) * ROWS
    return [[first + value for value in part] for part in PARTS]
