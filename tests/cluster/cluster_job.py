"""Queries on a cluster: files of numbers to participants a and b, until their end.

cluster_job.py MASTER JOB runs one, told as JSON, in a process that may be killed;
`cluster_driver.py` runs many in one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil

os.environ["PYSPARK_PYTHON"] = sys.executable

from standalone import APPLICATION
from support.spark import new_session, read_numbers, started
from support.waiting import AT_LAST, PAUSE

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.spark import two_phase_commit

BEFORE, AFTER = "before", "after"


@dataclasses.dataclass(frozen=True)
class Job:
    """One query, as plain data. Executors read the token from the file `token`.

    The first task that writes partition 0 waits `BEFORE` its prepare or `AFTER` it
    if `holds` says so, until FOLDER/go-on is there.
    """

    folder: str
    application: str
    log: str
    a: str
    b: str
    holds: str = ""

    @property
    def token(self) -> str:
        return f"file:{self.folder}/token"

    def sink(self) -> ParticipantSink:
        participants = {"a": self.a, "b": self.b}
        if not self.holds:
            return ParticipantSink(participants, token=self.token)
        return Holding(participants, self.token, Path(self.folder), self.holds)

    def start(self, spark: Any) -> Any:
        """Start the query; executors write all of its batches."""
        numbers = read_numbers(spark, self.folder).repartition(2)
        callback = two_phase_commit(
            self.sink(),
            application=self.application,
            log=self.log,
            settings=Settings(backoff_cap=2.0, driver_path_bytes=0),
        )
        return started(numbers.writeStream.foreachBatch(callback), f"{self.folder}/ck")


class Holding(ParticipantSink):
    """Holds one task at its prepare, and notes who has prepared in FOLDER/prepared.

    FOLDER/waiting has the process id of the executor whose task is held.
    """

    def __init__(self, urls: dict[str, str], token: str, folder: Path, at: str) -> None:
        super().__init__(urls, token=token)
        self._folder, self._at = folder, at

    def pre_commit(self, handle: Any) -> Any:
        branch = handle.context.branch
        if self._at == BEFORE:
            self._hold(branch.partition)
        receipts = super().pre_commit(handle)
        note(self._folder / "prepared", f"{branch} {executor()}")
        if self._at == AFTER:
            self._hold(branch.partition)
        return receipts

    def _hold(self, partition: int) -> None:
        if partition != 0 or not create(self._folder / "held"):
            return
        note(self._folder / "waiting", f"{executor()}")
        end = time.monotonic() + AT_LAST
        while not (self._folder / "go-on").exists() and time.monotonic() < end:
            time.sleep(PAUSE)


def executor() -> int:
    """Return the process id of the JVM that this task is of."""
    java = (p for p in psutil.Process().parents() if "java" in p.name())
    return next(java).pid


def note(file: Path, line: str) -> None:
    """Append a line at once: whole, whoever else writes, whoever is killed."""
    opened = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(opened, f"{line}\n".encode())
    os.close(opened)


def create(file: Path) -> bool:
    """Whether this is the first process to create it."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    spark = new_session("cluster", sys.argv[1], APPLICATION)
    Job(**json.loads(sys.argv[2])).start(spark).awaitTermination()
    spark.stop()
