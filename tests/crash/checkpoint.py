"""What Spark's checkpoint says about batches, as a folder: begun, and committed."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """Makes a restarted driver replay what Spark would replay.

    Spark writes a batch into `offsets` before it runs and into `commits` after
    `foreachBatch` has returned. At a start it runs the last begun batch again unless
    that is committed. A file is there or is not: a kill leaves no half of one.
    """

    folder: Path

    def next_batch(self) -> int:
        """Return the batch that a driver runs next."""
        begun, committed = self._last("offsets"), self._last("commits")
        return begun if begun > committed else begun + 1

    def begin(self, batch: int) -> None:
        """Say that a batch is about to run."""
        self._write("offsets", batch)

    def commit(self, batch: int) -> None:
        """Say that a batch has run."""
        self._write("commits", batch)

    def _write(self, kind: str, batch: int) -> None:
        folder = self.folder / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(batch)).touch()

    def _last(self, kind: str) -> int:
        folder = self.folder / kind
        names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        return max(map(int, names), default=-1)
