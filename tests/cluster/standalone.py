"""Spark's own cluster on this machine: a master, and two workers on two addresses.

Spark keeps apart what is on one host; 127.0.0.2 and 127.0.0.3 are two.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark
from support.programs import descendants
from support.spark_defaults import JAVA
from support.waiting import until

from participants.processes import Process, free_ports, stopping

APPLICATION: Final = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
}
"""What an application takes: an executor on each worker. There is room for three."""

_EXECUTOR: Final = "CoarseGrainedExecutorBackend"
_HOME: Final = Path(pyspark.__file__).parent
_HOSTS: Final = ("127.0.0.2", "127.0.0.3")


class Cluster:
    """A master and its workers, each a process in a session of its own.

    Args:
        folder: for logs, and what the workers keep.
        python: folders in which executors find modules: they have the environment of
            their worker, not that of the driver.
    """

    def __init__(self, folder: Path, *python: Path) -> None:
        (port,) = free_ports(1)
        self.url = f"spark://127.0.0.1:{port}"
        self._folder = folder
        self._path = os.pathsep.join(map(str, python))
        self.master = self._process("127.0.0.1", "master.Master", "--port", str(port))
        self.workers = [
            self._process(
                host, "worker.Worker", "--cores", "3", "--memory", "1536m",
                *("--work-dir", str(folder / host), self.url),
            )
            for host in _HOSTS
        ]  # fmt: skip

    def _process(self, host: str, kind: str, *arguments: str) -> Process:
        environment = {
            "SPARK_HOME": str(_HOME),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JAVA,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": self._path,
        }
        program = [
            str(_HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
        ]
        command = [*program, "--host", host, "--webui-port", "0", *arguments]
        return Process(kind, command, self._folder / f"{kind}-{host}.log", environment)

    def start(self) -> None:
        """Start what does not run, and return when all workers are registered."""
        _start(self.master, "New state: ALIVE")
        for worker in self.workers:
            _start(worker, "Successfully registered with master")

    def executors(self) -> set[int]:
        """Return the process ids of all executors."""
        return {pid for worker in self.workers for pid in executors_of(worker)}

    def kill_executor(self, executor: int) -> None:
        """Kill an executor, and return when it is gone."""
        assert executor in self.executors()
        os.kill(executor, signal.SIGKILL)
        until(lambda: executor not in self.executors())

    def worker_of(self, executor: int) -> Process:
        """Return the worker that an executor is of."""
        (worker,) = (w for w in self.workers if executor in executors_of(w))
        return worker


def executors_of(worker: Process) -> list[int]:
    """Return the process ids of a worker's executors."""
    below = descendants(worker.pid) if worker.alive() else {}
    return [pid for pid, command in below.items() if _EXECUTOR in command]


@contextlib.contextmanager
def cluster(folder: Path, *python: Path) -> Iterator[Cluster]:
    """Run a cluster as long as the block."""
    made = Cluster(folder, *python)
    with stopping(made.master, *made.workers):
        made.start()
        yield made


def _start(process: Process, ready: str) -> None:
    if process.alive():
        return
    before = process.log.stat().st_size if process.log.exists() else 0
    process.start()
    until(
        lambda: ready in process.log.read_text()[before:] or not process.alive(),
        tell=lambda _: process.tail(),
    )
    assert process.alive(), process.tail()
