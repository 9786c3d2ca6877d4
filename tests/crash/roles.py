"""What each process runs: partner, participant, driver, executor, recovery."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pyarrow as pa
from flask import Flask
from support.checkpoint import Checkpoint
from support.nats import near
from support.waiting import PAUSE
from werkzeug.serving import make_server

from crash import source
from participants.partner import create_app
from tracing_2pc import FileSink, ParticipantSink, Settings
from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.model import BranchContext, BranchId, Receipt, TransactionRecord
from tracing_2pc.grpc import server as grpc_server
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.nats import serve_nats
from tracing_2pc.operations.recover import recover
from tracing_2pc.operations.wiring import open_configured_log
from tracing_2pc.participant.engine import ParticipantEngine
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.sinks import CompositeSink
from tracing_2pc.sinks.base import write_branch
from tracing_2pc.sinks.job import Job as SinkJob
from tracing_2pc.sinks.rejecting import rejecting
from tracing_2pc.spark.tasks import read_receipts
from tracing_2pc.store import open_log
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

BEFORE_TASKS = "before tasks"
AFTER_TASKS = "after tasks"
_LINE = "%(asctime)s %(name)s %(message)s"
REJECTED = "rejected"
MIDDLE = 1
"""The batch in which something is done to a job from outside."""


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What a driver and its executors are told.

    Args:
        folder: source, checkpoints, and the files that the processes meet by.
        application: whose batches these are.
        log: URL of the decision log.
        participants: name to base URL.
        gate: where the driver waits to be let on, in the middle batch; empty: nowhere.
        retries: a lost task is started again in the batch, as Spark does.
        raises: one task raises, once.
        takes_driver: a failpoint in an executor kills the driver.
        behind: seconds by which the clock of the driver's log is slow.
        files: a folder that is a participant, too.
        rejects: there is a participant `rejected`, which keeps what others refuse.
    """

    folder: Path
    application: str
    log: str
    participants: dict[str, str]
    gate: str = ""
    retries: bool = False
    raises: bool = False
    takes_driver: bool = False
    behind: float = 0.0
    files: Path | None = None
    rejects: bool = False

    @property
    def arrived(self) -> Path:
        """A file that says that the driver waits at its gate."""
        return self.folder / "gate.arrived"

    @property
    def opened(self) -> Path:
        """A file that lets the driver on."""
        return self.folder / "gate.opened"

    @property
    def raised(self) -> Path:
        """A file that says that a task has raised."""
        return self.folder / "raised"

    def sink(self) -> ParticipantSink | CompositeSink:
        """Return the sink, in the process that uses it."""
        services = ParticipantSink(self.participants)
        if self.rejects:
            return rejecting(services, REJECTED, Settings().rejects_at_most)
        if self.files is None:
            return services
        return CompositeSink([services, FileSink(self.files, partition_by="batch")])


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """One attempt to write one partition, and whom a failpoint takes along."""

    record: TransactionRecord
    branch: BranchId
    driver: int


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """A task raised."""

    error: str


class TaskLostError(Exception):
    """A task raised or its executor died, and it is not tried again."""


def partner(database: Path, port: int) -> None:
    """Be the partner that an outbox posts to."""
    _serve(create_app(str(database)), port)


def participant(
    make: Callable[..., ParticipantEngine],
    about: tuple[str, ...],
    where: Any,
    transport: str = "http",
) -> None:
    """Be a participant."""
    app = Flask("participant")
    app.register_blueprint(participant_blueprint(make(*about), insecure=True))
    _SERVERS[transport](app, where)


def _serve(app: Flask, port: int) -> None:
    with socket.socket() as listening:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            listening.setsockopt(socket.SOL_SOCKET, option, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(128)
        fd = listening.fileno()
        make_server("127.0.0.1", port, app, threaded=True, fd=fd).serve_forever()


def _serve_grpc(app: Flask, port: int) -> None:
    # The port is held for it: see `world._reserve_port`.
    options = {**dict(grpc_server._OPTIONS), "grpc.so_reuseport": 1}
    grpc_server._OPTIONS = tuple(options.items())
    grpc_server.serve_grpc(app, f"127.0.0.1:{port}")


def _serve_nats(app: Flask, url: str) -> None:
    with near(app) as served:
        serve_nats(served, url)


_SERVERS: dict[str, Callable[[Flask, Any], None]] = {
    "http": _serve,
    "grpc": _serve_grpc,
    "nats": _serve_nats,
}


def recovery(log: str, participants: dict[str, str]) -> None:
    """Run `tracing-2pc recover` once, as an operator's timer would."""
    logging.basicConfig(level=logging.INFO, format=_LINE)
    settings = Settings(log=log, participants=participants)
    with open_configured_log(settings) as opened:
        for item in recover(opened, settings, None):
            logging.info("%s: %s", item.record.id, item.remark)


def driver(job: Job, executors: list[Connection]) -> None:
    """Run batches to the last, as Spark's stream thread would; an error ends it."""
    logging.basicConfig(level=logging.INFO, format=_LINE)
    checkpoint = Checkpoint.at(job.folder / "checkpoint" / job.application)
    tasks = _Tasks(job, executors)
    coordinator = _coordinator(job)
    run = uuid.uuid4().hex
    last = source.batches(job.folder, job.application)
    while (batch := checkpoint.next()) < last:
        checkpoint.begin(batch)
        coordinator.apply(
            batch,
            run=run,
            query=f"query of {job.application}",
            write=tasks.write,
            cancel=lambda _: None,
        )
        checkpoint.commit(batch)


def _coordinator(job: Job) -> Coordinator:
    log = open_log(job.log, now=lambda: time.time() - job.behind)
    if job.behind:  # the log's own clock judges the deadline, so it is set back, too
        log._database.clock = f"{log._database.clock} - {job.behind}"
    keeper = REJECTED if job.rejects else None
    settings = Settings(backoff_base=0.02, backoff_cap=0.3, rejects=keeper)
    of_sink = SinkJob(job.sink(), job.application, settings)
    of_sink.check()  # makes the tables of a participant without a service
    return of_sink.coordinator(log, OpenTelemetryTracing(), lambda: False)


class _Tasks:
    """Hands the partitions of a batch to executors, as Spark's scheduler would.

    Args:
        job: what is written where.
        executors: connections to them; more than partitions are spare ones.
    """

    def __init__(self, job: Job, executors: list[Connection]) -> None:
        self._job = job
        self._executors = executors
        self._attempts = 0

    def write(self, record: TransactionRecord) -> list[Receipt]:
        """Run one task per partition, and read their receipts.

        Raises:
            TaskLostError: one of them did not return a receipt.
        """
        self._wait_at(BEFORE_TASKS, record)
        written = self._run(record)
        self._wait_at(AFTER_TASKS, record)
        return read_receipts(written)

    def _wait_at(self, gate: str, record: TransactionRecord) -> None:
        if (self._job.gate, MIDDLE) != (gate, record.id.batch):
            return
        self._job.arrived.touch()
        while not self._job.opened.exists():
            time.sleep(PAUSE / 10)

    def _run(self, record: TransactionRecord) -> list[str]:
        written: list[str] = []
        working = {self._send(record, p): p for p in range(source.PARTITIONS)}
        while working:
            for executor in wait(list(working)):
                assert isinstance(executor, Connection)
                partition = working.pop(executor)
                if (answer := _answer(executor)) is not None:
                    written += answer
                    continue
                self._lost(executor)
                working[self._send(record, partition)] = partition
        return written

    def _send(self, record: TransactionRecord, partition: int) -> Connection:
        """Start a task attempt, with a number that no other has in this run."""
        branch = BranchId(partition, self._attempts)
        self._attempts += 1
        executor = self._executors[partition]
        executor.send(Task(record, branch, os.getpgrp()))
        return executor

    def _lost(self, executor: Connection) -> None:
        """Put a spare executor in the place of a dead one, if tasks are retried."""
        if not self._job.retries:
            raise TaskLostError("an executor has died")
        self._executors[self._executors.index(executor)] = self._executors.pop()


def _answer(executor: Connection) -> list[str] | None:
    """Return a task's receipts, or None if the executor is dead.

    Raises:
        TaskLostError: the task has raised.
    """
    try:
        answer = executor.recv()
    except (EOFError, ConnectionError):
        return None
    if isinstance(answer, Failed):
        raise TaskLostError(answer.error)
    return list(answer)


def executor(job: Job, tasks: Connection) -> None:
    """Run tasks until the driver is gone."""
    logging.basicConfig(level=logging.INFO, format=_LINE)
    sink = job.sink()
    while True:
        try:
            task = tasks.recv()
            tasks.send(_run(job, sink, task))
        except (EOFError, ConnectionError):
            return


def _run(
    job: Job, sink: ParticipantSink | CompositeSink, task: Task
) -> list[str] | Failed:
    if job.takes_driver:
        os.environ["TPC_FAILPOINT_GROUP"] = str(task.driver)
    record = task.record
    names = tuple(sink.participants)
    context = BranchContext(record.id, task.branch, names, record.carrier)
    try:
        receipts = write_branch(sink, context, _batches(job, task))
        return [receipt.to_json() for receipt in receipts]
    except (TwoPhaseError, RuntimeError) as error:
        logging.exception("task failed: %s %s", record.id, task.branch)
        return Failed(f"{type(error).__name__}: {error}")


def _batches(job: Job, task: Task) -> Iterator[pa.RecordBatch]:
    batch, partition = task.record.id.batch, task.branch.partition
    for part in source.read(job.folder, job.application, batch, partition):
        yield _arrow(part)
        if job.raises and (batch, partition) == (MIDDLE, 1) and _first(job.raised):
            raise RuntimeError("a user's function has raised")


def _arrow(records: list[dict[str, Any]]) -> pa.RecordBatch:
    fields = [
        ("application", pa.string()),
        ("batch", pa.int64()),
        ("value", pa.int64()),
        ("text", pa.string()),
    ]
    return pa.RecordBatch.from_pylist(records, schema=pa.schema(fields))


def _first(flag: Path) -> bool:
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
