"""A job without Spark: the real coordinator, and real tasks in processes of their own.

    TPC_TOKEN=... python -m backends.job FOLDER APPLICATION BATCHES NAME=URL...

writes so many batches of two partitions to participants, keeps its log and checkpoint
in FOLDER, and says at the end how many spans were lost. It begins where Spark would.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path

import pyarrow as pa
from support.checkpoint import Checkpoint
from support.waiting import PATIENT, until

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.core.model import Receipt, TransactionRecord
from tracing_2pc.sinks.base import Sink
from tracing_2pc.sinks.job import Job
from tracing_2pc.spark.tasks import make_task, read_receipts
from tracing_2pc.store import open_log
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.sdk import lifecycle
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

PARTITIONS = 2
ROWS = 3
"""Records of a partition; every record of a job has a value of its own."""

AWAITED = "SPANS_ARE_AWAITED"
"""Set in the environment where a collector is sure to take them, sooner or later."""

HELD = "RECORDS_HOLD"
"""Set to a text that each record has beside its value."""


def decisions(folder: Path) -> str:
    """Return the URL of the decision log."""
    return f"sqlite:///{folder / 'decisions.db'}"


def values(batches: int) -> list[int]:
    """Return what each participant holds after so many batches."""
    return list(range(batches * PARTITIONS * ROWS))


def main(
    folder: Path, application: str, batches: int, participants: dict[str, str]
) -> None:
    """Run batches to the last; an error ends it, as it ends a query."""
    lifecycle.start(application)
    instruments.start(application)
    checkpoint = Checkpoint.at(folder / "checkpoint")
    sink, run = ParticipantSink(participants, timeout=PATIENT), uuid.uuid4().hex
    with get_context("spawn").Pool(PARTITIONS) as executors:
        settings = Settings(backoff_base=0.1, backoff_cap=1.0)
        coordinator = Job(sink, application, settings).coordinator(
            open_log(decisions(folder)), OpenTelemetryTracing(), lambda: False
        )
        tasks = Tasks(executors, sink)
        while (batch := checkpoint.next()) < batches:
            checkpoint.begin(batch)
            coordinator.apply(
                batch,
                run=run,
                query=application,
                write=tasks.write,
                cancel=lambda _: None,
            )
            checkpoint.commit(batch)
    _flush()
    said = {"done": batches, "dropped": lifecycle.dropped()}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


class Tasks:
    """Hands the partitions of a batch to executors, as Spark's scheduler would.

    Args:
        executors: processes that go on from batch to batch.
        sink: what they write to.
    """

    def __init__(self, executors: Pool, sink: Sink) -> None:
        self._executors = executors
        self._sink = sink
        self._attempts = 0

    def write(self, record: TransactionRecord) -> list[Receipt]:
        """Run one task per partition, and read their receipts."""
        about = []
        for partition in range(PARTITIONS):
            about.append((self._sink, record, partition, self._attempts))
            self._attempts += 1
        written = self._executors.starmap(task, about, chunksize=1)
        return read_receipts(r for receipts in written for r in receipts)


def task(
    sink: Sink, record: TransactionRecord, partition: int, attempt: int
) -> list[str]:
    """Run one task attempt, as Spark's Python worker would; return its receipts."""
    from pyspark import TaskContext

    context = TaskContext._getOrCreate()
    context._partitionId, context._taskAttemptId = partition, attempt
    (written,) = make_task(sink, record)(_records(record.id.batch, partition))
    _flush()
    return [str(receipt) for receipt in written["receipt"].to_pylist()]


def _flush() -> None:
    """Have all spans leave: on a busy machine a task's half second is not enough."""
    if AWAITED in os.environ:
        until(lambda: lifecycle.flush(PATIENT))
    else:
        lifecycle.flush()


def _records(batch: int, partition: int) -> Iterator[pa.RecordBatch]:
    first = (batch * PARTITIONS + partition) * ROWS
    columns: dict[str, list[object]] = {"value": list(range(first, first + ROWS))}
    if text := os.environ.get(HELD):
        columns["text"] = [text] * ROWS
    yield pa.RecordBatch.from_pydict(columns)


if __name__ == "__main__":
    os.environ["TPC_FAILPOINT_GROUP"] = str(os.getpgrp())
    named = dict(argument.split("=", 1) for argument in sys.argv[4:])
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), named)
