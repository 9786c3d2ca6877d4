"""What a reader of each member sees, by raw SQL and raw files; no product code."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq


def table(connection: Any) -> Counter[Any]:
    """Count the numbers of a service's view."""
    rows = connection.execute("SELECT value FROM numbers").fetchall()
    return Counter(value for (value,) in rows)


def rejected(connection: Any) -> Counter[Any]:
    """Count who rejected which number, in the table of rejected rows."""
    rows = connection.execute("SELECT participant, record FROM rejected").fetchall()
    return Counter((who, json.loads(record)["value"]) for who, record in rows)


def lines(folder: Path) -> Counter[Any]:
    """Count those of a folder of JSON, an object a line."""
    texts = [file.read_text() for file in _visible(folder, "*.json")]
    return Counter(json.loads(line)["value"] for t in texts for line in t.splitlines())


def parquet(folder: Path) -> Counter[Any]:
    """Count those of a folder of Parquet."""
    return _parquet(_visible(folder, "*.parquet"))


def delta(folder: Path) -> Counter[Any]:
    """Count those of a Delta table, by its log: what was added and not removed."""
    live: set[str] = set()
    for version in sorted((folder / "_delta_log").glob("*.json")):
        for line in version.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                live.add(action["add"]["path"])
            elif "remove" in action:
                live.discard(action["remove"]["path"])
    return _parquet(folder / unquote(path) for path in live)


def own(folder: Path) -> Counter[Any]:
    """Count those of the sink of one's own: a list in each file."""
    files = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    return Counter(number for file in files for number in file)


def topic(values: Iterable[bytes]) -> Counter[Any]:
    """Count those of the records of a topic."""
    return Counter(json.loads(value)["value"] for value in values)


def read(kind: str, folder: Path) -> Counter[Any]:
    """Count those of one of these kinds."""
    return {"lines": lines, "parquet": parquet, "delta": delta, "own": own}[kind](
        folder
    )


def differences(where: str, found: Counter[Any], wanted: Counter[Any]) -> Iterator[str]:
    """Say what is lost, and what is doubled or foreign; the first of them."""
    for one in itertools.islice(wanted - found, 20):
        yield f"{where}: lost: {one}"
    for one in itertools.islice(found - wanted, 20):
        yield f"{where}: doubled or foreign: {one}"


def _visible(folder: Path, pattern: str) -> Iterator[Path]:
    for file in folder.rglob(pattern):
        if not any(part[0] in "._" for part in file.relative_to(folder).parts):
            yield file


def _parquet(files: Iterable[Path]) -> Counter[Any]:
    # As it stands there: a folder's name is no column of the file.
    found: Counter[Any] = Counter()
    for file in files:
        with file.open("rb") as opened:
            columns = pq.ParquetFile(opened).read(columns=["value"])
        found.update(columns.column("value").to_pylist())
    return found
