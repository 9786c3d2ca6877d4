"""Peak memory for a large batch and a small one: of a participant, and of a writer.

The participant is a ledger under gunicorn on PostgreSQL. The writer does what a Python
worker of Spark does with a partition, in a process without Spark: batches of 10,000
rows come one after another, and are sent as one branch. Both are started anew for each
batch, so that a peak (`VmHWM` of Linux) is that of this batch alone.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from bench import pair
from bench.goals import GOALS
from bench.growth.sizes import Sizes
from bench.ledgers import running
from bench.postgresql import NewDatabase, postgresql
from bench.stored import LEDGER, check_and_empty
from bench.writer import peak


def measure(folder: Path, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield a line for the participant, and one for the writer."""
    peaks: dict[str, list[tuple[int, int]]] = {"participant": [], "writer": []}
    numbers = itertools.count()
    with postgresql() as new_database:
        for _ in range(sizes.memory_rounds):
            small, large = (
                _peaks(folder / str(next(numbers)), new_database, rows)
                for rows in sizes.memory
            )
            for who in peaks:
                peaks[who].append((large[who], small[who]))
    for who, pairs in peaks.items():
        large_ones, small_ones = zip(*pairs, strict=True)
        ratio = pair.compare([*large_ones], [*small_ones])
        goal = f"I11-{who}"
        settings = {
            "rows": sizes.memory[1],
            "base_rows": sizes.memory[0],
            "mib": round(max(large_ones) / 1024),
            "base_mib": round(max(small_ones) / 1024),
        }
        yield pair.line(goal, ratio, GOALS[goal].limit, settings)


def _peaks(folder: Path, new_database: NewDatabase, rows: int) -> dict[str, int]:
    """Return the peaks, in KiB, of both processes in a batch of so many rows."""
    folder.mkdir()
    database = new_database()
    with running(folder, {"ledger": database}) as ledgers:
        log = f"sqlite:///{folder / 'log.db'}"
        command = [sys.executable, "-m", "bench.writer", log, ledgers.urls["ledger"]]
        done = subprocess.run(
            [*command, ledgers.token, str(rows)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        service = psutil.Process(ledgers.services["ledger"].pid)
        processes = [service, *service.children(recursive=True)]
        participant = max(peak(str(process.pid)) for process in processes)
        check_and_empty(database, rows, *LEDGER)
    return {"participant": participant, "writer": int(done.stdout)}
