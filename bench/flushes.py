"""How often a piece of work makes the disk flush: by strace, or as PostgreSQL says.

A workload gets the URL of an empty database and a `Measured`, with which it marks what
is to be counted. On SQLite it runs in a process of its own, under strace.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

CHECKPOINTS: Final = "checkpoints"
"""Flushes of SQLite's database file itself: what was flushed before is moved there."""

_SYNC: Final = re.compile(r"\bf(?:data)?sync\(\d+<([^>]*)>")
_MARK: Final = ".mark"


class Measured(Protocol):
    """Counts the flushes inside a block, under a name."""

    def __call__(
        self, name: str, release: Callable[[], object]
    ) -> AbstractContextManager[None]:
        """Open the block; `release` closes the workload's connections."""


Workload = Callable[[str, Measured], None]


def on_sqlite(workload: Workload, folder: Path) -> dict[str, int]:
    """Run it on a SQLite file; return the flushes by name, and all checkpoints.

    Raises:
        RuntimeError: there is no strace, or the workload failed.
    """
    if shutil.which("strace") is None:
        raise RuntimeError(
            "SQLite's flushes are counted with strace, which is not installed: "
            "apt-get install strace"
        )
    database, trace = folder / "counted.db", folder / "strace"
    where = f"{workload.__module__}:{workload.__name__}"
    ran = subprocess.run(
        [
            *("strace", "-f", "-y", "-qq", "-o", str(trace)),
            *("-e", "trace=fsync,fdatasync"),
            *(sys.executable, "-m", "bench.flushes", where, str(database)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if ran.returncode:
        raise RuntimeError(f"{where} under strace:\n{ran.stderr}")
    return read_trace(trace.read_text(), database)


def read_trace(trace: str, database: Path) -> dict[str, int]:
    """Count the flushes between the two marks of each name."""
    flushes: dict[str, int] = {CHECKPOINTS: 0}
    inside = None
    for path in _SYNC.findall(trace):
        if path.endswith(_MARK):
            inside = None if inside else Path(path).stem
            flushes.setdefault(Path(path).stem, 0)
        elif inside:
            flushes[CHECKPOINTS if path == str(database) else inside] += 1
    return flushes


def on_postgresql(workload: Workload, url: str) -> dict[str, int]:
    """Run it on a server that nobody else uses; return the flushes by name."""
    flushes: dict[str, int] = {}

    @contextlib.contextmanager
    def measured(name: str, release: Callable[[], object]) -> Iterator[None]:
        release()
        before = _sessions_flushed(url)
        yield
        release()
        flushes[name] = _sessions_flushed(url) - before

    workload(url, measured)
    return flushes


def _sessions_flushed(url: str) -> int:
    """Return how often all sessions have flushed. One reports at its end: wait for it.

    What the server flushes in the background, nobody waits for, and is not in it.
    """
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        open_sessions = (
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = "
            "'client backend' AND pid <> pg_backend_pid()"
        )
        while connection.execute(open_sessions).fetchone() != (0,):
            time.sleep(0.01)
        row = connection.execute(
            "SELECT sum(fsyncs) FROM pg_stat_io "
            "WHERE object = 'wal' AND backend_type = 'client backend'"
        ).fetchone()
    if row is None or row[0] is None:
        raise RuntimeError("PostgreSQL 18 counts flushes of the WAL; this one does not")
    return int(row[0])


@contextlib.contextmanager
def _marked(folder: Path, name: str) -> Iterator[None]:
    """Flush a file before and after, which shows in the trace among the others."""
    with (folder / f"{name}{_MARK}").open("w") as mark:
        os.fsync(mark.fileno())
        yield
        os.fsync(mark.fileno())


def main(where: str, database: str) -> None:
    """Run a workload, `module:function`, on a SQLite file; strace looks on."""
    module, _, function = where.partition(":")
    workload: Workload = getattr(importlib.import_module(module), function)
    folder = Path(database).parent
    workload(f"sqlite:///{database}", lambda name, release: _marked(folder, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
