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

_LONGEST = 50_000
"""Bytes of a text, at most: the partner takes no more; for more there are more rows."""


def write(
    folder: Path, applications: Sequence[str], batches: int = BATCHES, body: int = 0
) -> None:
    """Write the source of each application: a file a batch, a list a partition.

    A partition's texts are of so many bytes, together.
    """
    times = max(1, -(-body // (ROWS * _LONGEST)))
    for application in applications:
        target = _of(folder, application)
        target.mkdir(parents=True)
        for batch in range(batches):
            partitions = [
                _values(batch * PARTITIONS + partition, times)
                for partition in range(PARTITIONS)
            ]
            held = {"text": body // (ROWS * times), "partitions": partitions}
            (target / f"{batch}.json").write_text(json.dumps(held))


def batches(folder: Path, application: str) -> int:
    """Return how many batches there are."""
    return len(list(_of(folder, application).iterdir()))


def read(
    folder: Path, application: str, batch: int, partition: int
) -> Iterator[list[dict[str, Any]]]:
    """Yield a partition's records, part by part."""
    held = json.loads((_of(folder, application) / f"{batch}.json").read_text())
    same = {"application": application, "batch": batch, "text": "x" * held["text"]}
    for part in held["partitions"][partition]:
        yield [{**same, "value": value} for value in part]


def _of(folder: Path, application: str) -> Path:
    return folder / "source" / application


def _values(place: int, times: int) -> list[list[int]]:
    return [
        [
            (place * ROWS + value) * times + number
            for value in part
            for number in range(times)
        ]
        for part in PARTS
    ]
