"""A streaming query without Spark, for the fencing tests.

Everything else of it is real: a `Coordinator` on a real log, tasks that prepare over
HTTP, their receipts. The checkpoint is a stand-in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
from support.spark import ROWS
from support.waiting import AT_ONCE, PATIENT

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.model import (
    BranchContext,
    BranchId,
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.ports import DecisionLog, Participant, SystemClock
from tracing_2pc.core.states import TransactionState
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.sinks.base import participants_of, write_branch
from tracing_2pc.spark.tasks import read_receipts
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

APPLICATION = "fence"
PARTITIONS = 2
Write = Callable[[TransactionRecord], list[Receipt]]
QUICK = Settings(backoff_base=AT_ONCE, backoff_cap=0.5)


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """What Spark keeps of a query, in files like Spark's: id, batches begun, committed.

    Weaker than Spark's on purpose: it refuses nobody, so that what holds two drivers
    apart here is never Spark.
    """

    folder: Path
    query: str

    @classmethod
    def at(cls, folder: Path) -> Checkpoint:
        """Open it, or make one with a query id of its own."""
        for part in ("offsets", "commits"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        metadata, new = folder / "metadata", folder / f".{uuid.uuid4()}.tmp"
        new.write_text(json.dumps({"id": str(uuid.uuid4())}))
        with contextlib.suppress(FileExistsError):
            metadata.hardlink_to(new)
        new.unlink()
        return cls(folder, json.loads(metadata.read_text())["id"])

    def next(self) -> int:
        """Return what a start begins with: the last batch again, if uncommitted."""
        last = max(self._in("offsets"), default=-1)
        return last if last in self._in("offsets") - self._in("commits") else last + 1

    def begin(self, batch: int) -> None:
        (self.folder / "offsets" / str(batch)).write_text("v1\n{}\n{}")

    def commit(self, batch: int) -> None:
        (self.folder / "commits" / str(batch)).write_text("v1\n{}")

    def lose_commit(self, batch: int) -> None:
        """Do what a crash just before Spark's own commit does."""
        (self.folder / "commits" / str(batch)).unlink()

    def _in(self, part: str) -> set[int]:
        return {int(file.name) for file in (self.folder / part).iterdir()}


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
        self.coordinator(self.sink.participants).apply(
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
        coordinator = self.coordinator(self.sink.participants)
        return coordinator.decide(record, self.write(record))

    def begin(self, batch: int) -> TransactionRecord:
        coordinator = self.coordinator(self.sink.participants)
        return coordinator.begin(batch, self.run, self.checkpoint.query).record

    def coordinator(self, participants: Mapping[str, Participant]) -> Coordinator:
        """Put a coordinator together as `two_phase_commit` does."""
        settings, clock, tracing = self.settings, SystemClock(), OpenTelemetryTracing()
        base, cap = settings.backoff_base, settings.backoff_cap
        retry = RetryPolicy(clock, base, cap, settings.inline_tries)
        delivery = Delivery(self.log, participants, tracing=tracing, retry=retry)
        return Coordinator(
            self.application,
            tuple(participants),
            self.log,
            delivery,
            tracing,
            clock,
            settings,
            retry,
        )

    def write(self, record: TransactionRecord) -> list[Receipt]:
        """Run the tasks, one after another, and read their receipts."""
        written = [r for p in range(PARTITIONS) for r in self.task(record, p)]
        return read_receipts(r.to_json() for r in written)

    def task(
        self, record: TransactionRecord, partition: int, task_attempt: int | None = None
    ) -> tuple[Receipt, ...]:
        """Write one partition as a branch of its own, and vote."""
        branch = BranchId(
            partition, partition if task_attempt is None else task_attempt
        )
        names = tuple(participants_of(self.sink))
        context = BranchContext(record.id, branch, names, record.carrier)
        read = numbers(self.after + record.id.batch)
        rows = [{"value": value} for value in read[partition::PARTITIONS]]
        return write_branch(self.sink, context, [pa.RecordBatch.from_pylist(rows)])


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
