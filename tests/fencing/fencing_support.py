"""A streaming query without Spark and its participants, for the fencing tests.

Everything else of it is real: a `Coordinator` on a real log, tasks that prepare over
HTTP, their receipts. The checkpoint is a stand-in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from support.checkpoint import Checkpoint
from support.service import create_app
from support.spark import ROWS, held, serving
from support.waiting import AT_LAST, AT_ONCE, PATIENT, until

from participants.processes import Process
from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.model import (
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.ports import DecisionLog
from tracing_2pc.core.states import TransactionState
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.sinks.job import Job
from tracing_2pc.spark.tasks import read_receipts
from tracing_2pc.testing.sink_job import Tasks
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

APPLICATION = "fence"
PARTITIONS = 2
BATCHES = 4
HERE = Path(__file__).parent
Write = Callable[[TransactionRecord], list[Receipt]]
QUICK = Settings(backoff_base=AT_ONCE, backoff_cap=0.5)


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """How a batch ended for its driver: an error's class and words, or neither."""

    batch: int
    error: str = ""
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """One life of a streaming query. Batch n holds the numbers n*ROWS and up.

    Args:
        run: which life.
        checkpoint: where it goes on from.
        log: the decision log.
        sink: where it writes to.
        application: its name.
        settings: of the coordinator.
        after: how many batches of the source lie before its batch 0.
    """

    run: str
    checkpoint: Checkpoint
    log: DecisionLog
    sink: ParticipantSink
    application: str = APPLICATION
    settings: Settings = QUICK
    after: int = 0

    def start(self, batches: int) -> None:
        """Apply a source of so many batches, as Spark does: the first error ends it."""
        for batch in range(self.checkpoint.next(), batches):
            self.apply(batch)

    def ended(self, batch: int) -> Ending:
        """Apply one batch, and tell how that ended."""
        try:
            self.apply(batch)
        except TwoPhaseError as error:
            return Ending(batch, type(error).__name__, str(error))
        return Ending(batch)

    def apply(self, batch: int, write: Write | None = None) -> None:
        """Begin a batch, apply it, commit it: the checkpoint's steps and ours."""
        self.checkpoint.begin(batch)
        self.coordinator.apply(
            batch,
            run=self.run,
            query=self.checkpoint.query,
            write=write or self.write,
            cancel=lambda record: None,
        )
        self.checkpoint.commit(batch)

    def decide(self) -> TransactionRecord:
        """Write the next batch and decide commit; send nothing."""
        batch = self.checkpoint.next()
        self.checkpoint.begin(batch)
        record = self.begin(batch)
        return self.coordinator.decide(record, self.write(record))

    def begin(self, batch: int) -> TransactionRecord:
        return self.coordinator.begin(batch, self.run, self.checkpoint.query).record

    @property
    def coordinator(self) -> Coordinator:
        job = Job(self.sink, self.application, self.settings)
        return job.coordinator(self.log, OpenTelemetryTracing(), lambda: False)

    def write(self, record: TransactionRecord) -> list[Receipt]:
        """Run the tasks, one after another, and read their receipts."""
        written = [r for p in range(PARTITIONS) for r in self.task(record, p)]
        return read_receipts(r.to_json() for r in written)

    def task(
        self, record: TransactionRecord, partition: int, task_attempt: int | None = None
    ) -> tuple[Receipt, ...]:
        """Write one partition as a branch of its own, and vote."""
        branch = f"{partition}.{partition if task_attempt is None else task_attempt}"
        read = numbers(self.after + record.id.batch)
        rows = [{"value": value} for value in read[partition::PARTITIONS]]
        batch = pa.RecordBatch.from_pylist(rows)
        return Tasks(self.sink, record).write_arrow(branch, [batch])


def sink_to(a: str, b: str) -> ParticipantSink:
    """Return a sink that waits for its two participants, as long as it takes."""
    return ParticipantSink({"a": a, "b": b}, token=None, timeout=PATIENT)


def numbers(batch: int) -> list[int]:
    """Return what a batch of the source holds."""
    return list(range(ROWS * batch, ROWS * (batch + 1)))


def state(log: DecisionLog, transaction: str) -> TransactionState | None:
    """Return what the log holds of a transaction; None if nothing."""
    record = log.read(TransactionId.parse(transaction))
    return record and record.state


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """A participant that serves from a thread of the test."""

    url: str
    database: Path
    resource: Any

    @property
    def address(self) -> str:
        return f"sqlite:///{self.database}"

    def held(self) -> Counter[int]:
        """Return what its readers see, each row as often as it is there."""
        return held(self.database)

    def age(self) -> None:
        """Let what is prepared be an hour old."""
        with contextlib.closing(sqlite3.connect(self.database)) as journal:
            journal.execute("UPDATE numbers_tpc_branch SET since = since - 3600")
            journal.commit()

    def in_doubt(self) -> int:
        """Count the branches that wait for a decision."""
        return int(self.resource.gauges()["tpc.in_doubt.branches"])


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """Participants a and b."""

    a: Service
    b: Service

    def sink(self) -> ParticipantSink:
        return sink_to(self.a.url, self.b.url)

    def held(self) -> tuple[Counter[int], Counter[int]]:
        return self.a.held(), self.b.held()

    def in_doubt(self) -> tuple[int, int]:
        return self.a.in_doubt(), self.b.in_doubt()


@contextlib.contextmanager
def services(folder: Path) -> Iterator[Services]:
    """Serve two participants, each with a SQLite file in the folder."""
    with contextlib.ExitStack() as stack:
        yield Services(*(stack.enter_context(_service(folder, n)) for n in "ab"))


@contextlib.contextmanager
def _service(folder: Path, name: str) -> Iterator[Service]:
    database = folder / f"{name}.db"
    app = create_app(f"sqlite:///{database}")
    resource = app.extensions["resource"]
    resource.open()
    with contextlib.closing(resource), serving(app) as url:
        yield Service(url, database, resource)


class Driver(Process):
    """`driver.py`: one run of the query, in a process and a session of its own."""

    def __init__(
        self,
        run: str,
        folder: Path,
        log: str,
        to: tuple[str, str],
        *,
        batches: int = BATCHES,
        seconds: float = 0.0,
    ) -> None:
        self._folder = folder
        path = os.pathsep.join(map(str, (HERE.parents[1], HERE.parent)))
        command = [
            *(sys.executable, str(HERE / "driver.py"), str(folder), log),
            *(*to, run, str(batches), str(seconds)),
        ]
        super().__init__(run, command, folder / f"{run}.log", {"PYTHONPATH": path})

    def pause_at(self, failpoint: str) -> None:
        """Start it, and return when all of it has stopped there."""
        self.start(
            TPC_FAILPOINT=failpoint,
            TPC_FAILPOINT_FILE=str(self._folder / "paused"),
            TPC_FAILPOINT_SIGNAL="STOP",
        )
        look = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        found = until(lambda: os.waitid(os.P_PID, self.pid, look))
        assert found
        assert found.si_code == os.CLD_STOPPED, self.tail()

    def killed_at(self, failpoint: str) -> None:
        """Run it until it is killed there."""
        about = {"TPC_FAILPOINT_FILE": str(self._folder / "fired")}
        self.start(TPC_FAILPOINT=failpoint, **about)
        assert self.wait(AT_LAST) == -signal.SIGKILL, self.tail()

    def wake(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def endings(self) -> list[Ending]:
        """Wait for its end, and return how its batches ended."""
        code = self.wait(AT_LAST)
        assert code in {0, 1}, self.tail()
        text = (self._folder / f"{self.name}.json").read_text()
        return [Ending(**item) for item in json.loads(text)]
