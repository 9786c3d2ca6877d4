"""Spark's checkpoint, where a query runs without Spark: which batch begins a start."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """What Spark keeps of a query, in files like Spark's: id, batches begun, committed.

    Weaker than Spark's on purpose: it refuses nobody, so that what holds two drivers
    apart here is never Spark.
    """

    folder: Path
    query: str

    @classmethod
    def at(cls, folder: Path) -> Checkpoint:
        """Open it, or make one with a query id of its own."""
        for part in ("offsets", "commits"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        metadata, new = folder / "metadata", folder / f".{uuid.uuid4()}.tmp"
        new.write_text(json.dumps({"id": str(uuid.uuid4())}))
        with contextlib.suppress(FileExistsError):
            metadata.hardlink_to(new)
        new.unlink()
        return cls(folder, json.loads(metadata.read_text())["id"])

    def next(self) -> int:
        """Return what a start begins with: the last batch again, if uncommitted."""
        last = max(self._in("offsets"), default=-1)
        return last if last in self._in("offsets") - self._in("commits") else last + 1

    def begin(self, batch: int) -> None:
        (self.folder / "offsets" / str(batch)).write_text("v1\n{}\n{}")

    def commit(self, batch: int) -> None:
        (self.folder / "commits" / str(batch)).write_text("v1\n{}")

    def lose_commit(self, batch: int) -> None:
        """Do what a crash just before Spark's own commit does."""
        (self.folder / "commits" / str(batch)).unlink()

    def _in(self, part: str) -> set[int]:
        return {int(file.name) for file in (self.folder / part).iterdir()}
