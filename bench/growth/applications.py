"""Ever more applications on one decision log, each a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import pair
from bench.growth.sizes import Sizes
from bench.postgresql import postgresql

Processes = Sequence["subprocess.Popen[str]"]


def measure(folder: Path, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield a point for each number of applications."""
    most = max(sizes.applications)
    with postgresql() as new_database, _applications(new_database(), most) as every:
        _apply(every, 1)  # each connects, and the tables are made
        arms = {
            str(count): _block(every[:count], sizes.transactions)
            for count in sizes.applications
        }
        seconds = pair.measure(arms, sizes.rounds)
    one = seconds[str(sizes.applications[0])]
    for count in sizes.applications:
        # Seconds of each transaction, turned around: transactions per second.
        ratio = pair.compare(one, seconds[str(count)])
        height = {"transactions per second": ratio.ratio}
        settings = {"transactions": sizes.transactions}
        yield pair.point("applications", count, ratio, height, settings)


@contextlib.contextmanager
def _applications(url: str, count: int) -> Iterator[Processes]:
    command = [sys.executable, "-m", "bench.application", url]
    with contextlib.ExitStack() as stack:
        processes = []
        for number in range(count):
            process = subprocess.Popen(
                [*command, f"application-{number}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(stack.enter_context(process))
            stack.callback(process.terminate)
        yield processes


def _block(processes: Processes, transactions: int) -> pair.Block:
    def block() -> float:
        started = time.perf_counter()
        _apply(processes, transactions)
        elapsed = time.perf_counter() - started
        return elapsed / (transactions * len(processes))

    return block


def _apply(processes: Processes, transactions: int) -> None:
    """Let all of them apply so many batches at once; return when all have."""
    for process in processes:
        assert process.stdin
        process.stdin.write(f"{transactions}\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout
        if process.stdout.readline() != "done\n":
            raise RuntimeError("an application has ended")
