"""A driver for many queries: one process, and a session for each configuration.

`tests/spark` has a session of its own in the process of the tests, and a process has
one only.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from cluster_job import Job
from standalone import APPLICATION
from support.spark import new_session
from support.waiting import AT_LAST

Configuration = Mapping[str, str]

OFF: Configuration = {
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
}
"""Named always: a JVM remembers what its first session was given."""

_spark: tuple[Configuration, Any] | None = None
_queries: dict[str, Any] = {}


class Driver:
    """The process, as tests see it.

    Args:
        pool: its only process.
        master: URL of the cluster's master.
        log: file with all that it says.
        traces: file with its spans and those of its tasks.
    """

    def __init__(
        self, pool: ProcessPoolExecutor, master: str, log: Path, traces: Path
    ) -> None:
        self.log, self.traces = log, traces
        self._pool, self._master = pool, master

    def start(
        self, job: Job, configuration: Configuration | None = None, python: str = ""
    ) -> None:
        """Start a query in a session of that configuration; executors run `python`."""
        given = {**APPLICATION, **OFF, **(configuration or {})}
        self._call(_start, self._master, given, python, job)

    def end(self, job: Job) -> str:
        """Return when the query has ended by itself; why, if it was by an error."""
        return self._call(_end, job.application)

    def stop(self, job: Job) -> None:
        """Stop the query."""
        self._call(_stop, job.application)

    def run(
        self, job: Job, configuration: Configuration | None = None, python: str = ""
    ) -> None:
        """Run a query to the end of its source, in a session as `start` makes it."""
        self.start(job, configuration, python)
        assert self.end(job) == ""

    def close(self) -> None:
        self._call(_close)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._pool.submit(function, *arguments).result(AT_LAST)


@contextlib.contextmanager
def driver(master: str, folder: Path) -> Iterator[Driver]:
    """Run one as long as the block."""
    log, traces = folder / "driver.log", folder / "spans.jsonl"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, _begin, (log, traces)) as pool:
        made = Driver(pool, master, log, traces)
        yield made
        made.close()


def _begin(log: Path, traces: Path) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    output = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["TPC_TRACE_FILE"] = str(traces)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _start(master: str, configuration: Configuration, python: str, job: Job) -> None:
    _queries[job.application] = job.start(_session(master, configuration, python))


def _session(master: str, configuration: Configuration, python: str) -> Any:
    global _spark
    wanted = {**configuration, "python": python}
    if _spark and _spark[0] == wanted:
        return _spark[1]
    _close()
    kept = os.environ["PYSPARK_PYTHON"]
    os.environ["PYSPARK_PYTHON"] = python or kept
    _spark = wanted, new_session("cluster", master, configuration)
    os.environ["PYSPARK_PYTHON"] = kept
    return _spark[1]


def _end(application: str) -> str:
    query = _queries[application]
    with contextlib.suppress(Exception):  # it is returned
        query.awaitTermination()
    return str(query.exception() or "")


def _stop(application: str) -> None:
    _queries[application].stop()


def _close() -> None:
    global _spark
    if _spark:
        _spark[1].stop()
    _spark = None
