"""Reads a query's next batch from Spark's checkpoint; changes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from tracing_2pc.core.errors import ConfigurationError


class Checkpoint(NamedTuple):
    """Spark's record of a query: its id, and the newest batch that it has begun."""

    folder: Path
    query: str
    last: int
    in_flight: bool  # not committed: the next start of the query runs it again

    @property
    def next(self) -> int:
        """The batch that the next start of the query begins with."""
        return self.last if self.in_flight else self.last + 1


def read_checkpoint(reference: str) -> Checkpoint:
    """Read `metadata`, `offsets/` and `commits/`, whose files are named by batch.

    Spark writes `offsets/N` before it runs batch N, and `commits/N` after that. It runs
    only the newest again, so one below it that has no commit means an incomplete copy.

    Raises:
        ConfigurationError: it cannot be read, is not whole, or nothing has begun in it.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", reference):
        raise ConfigurationError(
            f"--checkpoint: {reference} is a URL, and only a folder is read: copy "
            "`metadata`, `offsets` and `commits` from there (they are small) into a "
            "folder on this machine, and name that"
        )
    folder = Path(reference)
    try:
        checkpoint, problem = _read(folder)
    except OSError as error:
        raise ConfigurationError(
            f"--checkpoint: {error.filename}: {error.strerror}"
        ) from None
    if problem is not None:
        raise ConfigurationError(f"--checkpoint {folder}: {problem}")
    return checkpoint


def _read(folder: Path) -> tuple[Checkpoint, str | None]:
    """Return its content, and the reason for which it cannot be used."""
    query = _json_of(folder / "metadata", line=0)
    query = query.get("id") if isinstance(query, dict) else None
    begun, committed = _batches(folder / "offsets"), _batches(folder / "commits")
    last, newest = max(begun, default=-1), max(committed, default=-1)
    checkpoint = Checkpoint(folder, str(query), last, last > newest)
    copied = "it was not copied whole"
    if not query:
        return checkpoint, f"`metadata` has no query id: {copied}"
    if not begun:
        return checkpoint, "no batch has begun in it: start the query"
    if newest not in (last, last - 1):
        ends = f"offsets/ ends with {last} and commits/ with {newest}"
        return checkpoint, f"{ends}: {copied}"
    for part in ("offsets", "commits")[: 1 if checkpoint.in_flight else 2]:
        if _json_of(folder / part / str(last), line=1) is None:
            return checkpoint, f"{part}/{last} is empty or torn: {copied}"
    return checkpoint, None


def _batches(folder: Path) -> set[int]:
    """Return the batches that have a file; checksums and halves begin with a dot."""
    names = (entry.name for entry in folder.iterdir())
    return {int(name) for name in names if re.fullmatch("[0-9]+", name)}


def _json_of(file: Path, line: int) -> object:
    """Return the content of a line of a file of Spark's; None where it is torn."""
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    try:
        return json.loads(lines[line])
    except (ValueError, IndexError):
        return None
