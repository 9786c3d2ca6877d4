"""The half of the protocol that runs on executors."""

from __future__ import annotations

import contextlib
import gc
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracing_2pc.core.errors import ContractError, ParticipantRefusedError
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import (
    BranchId,
    Receipt,
    TransactionRecord,
)
from tracing_2pc.core.states import Vote
from tracing_2pc.sinks.base import Sink, participants_of, read_only
from tracing_2pc.sinks.values import year_month
from tracing_2pc.spark.links import write_linked_branch
from tracing_2pc.tracing.sdk import environment, lifecycle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FLUSH_SECONDS: Final = 0.5
NO_TASK: Final = BranchId(0, 10**18 - 1)
"""The branch of a job that had no partition at all: Spark counts its tasks from 0."""


@contextlib.contextmanager
def materialised(df: DataFrame) -> Iterator[DataFrame]:
    """Compute a batch in a Spark job of its own; every reader sees that result.

    Not `persist`: of a persisted batch Spark computes a part again that is lost with an
    executor, and a plan that is not deterministic gives other rows then. Here a reader
    of a lost part raises.
    """
    batch = df.localCheckpoint(eager=True)
    try:
        yield batch
    finally:
        # A private API, and the JVM may be gone; else Spark drops it some time later.
        with contextlib.suppress(Exception):
            batch._jdf.queryExecution().logical().rdd().unpersist(False)  # noqa: FBT003


class Written(NamedTuple):
    """The result of one Spark job: every vote, and the size of its rows in Arrow."""

    receipts: list[Receipt]
    arrow_bytes: int


def write_partitions(
    df: DataFrame,
    sink: Sink,
    record: TransactionRecord,
    links: str | None = None,
    route: int = 0,
) -> Written:
    """Write a DataFrame in one Spark job, each partition by a task.

    Exactly one action: any other (count, isEmpty, take) would write again.
    """
    columns = "receipt string, arrow_bytes long"
    try:
        rows = df.mapInArrow(make_task(sink, record, links), columns).collect()
    except Exception as error:
        if "KeyError: 21" in str(error):  # Arrow's number of the type
            raise_if_unread(df.schema)
        raise
    # A DataFrame without partitions has no task that could vote.
    no_task = BranchId(route, NO_TASK.task_attempt)
    receipts = read_receipts(row.receipt for row in rows) or read_only(
        no_task, participants_of(sink)
    )
    return Written([*receipts], sum(row.arrow_bytes for row in rows))


def raise_if_unread(schema: StructType) -> None:
    """Refuse the type at which PySpark fails before a task; it names the column."""
    for field in schema:
        if re.search("interval (year|month)", field.dataType.simpleString()):
            raise year_month(field.name)


def arrow_schema(schema: StructType, links: str | None) -> pa.Schema:
    """Return the columns of a DataFrame as its tasks see them, without `links`."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    raise_if_unread(schema)
    # Of time stamps a task's have the session's zone; not before PySpark 4.1.
    has_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    columns = to_arrow_schema(schema, **({"timezone": "UTC"} if has_zone else {}))
    return pa.schema([field for field in columns if field.name != links])


def read_receipts(written: Iterable[str]) -> list[Receipt]:
    """Read the tasks' results, one receipt per partition and participant."""
    receipts = []
    for text in written:
        receipts.append(Receipt.from_json(text))
        failpoint("driver.during_collection")
    return receipts


def make_task(
    sink: Sink, record: TransactionRecord, links: str | None = None
) -> Callable[..., Any]:
    """Return the function for `mapInArrow`: plain data in its closure, nothing open."""
    telemetry = environment.telemetry_settings()

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        sizes: list[int] = []
        counted = _count_bytes(batches, sizes)
        receipts = write_partition(sink, record, telemetry, counted, links)
        written = [receipt.to_json() for receipt in receipts]
        arrow_bytes = ([sum(sizes)] + [0] * len(written))[: len(written)]
        columns = {"receipt": written, "arrow_bytes": arrow_bytes}
        reported = pa.RecordBatch.from_pydict(columns)
        freeze_gc()
        yield reported

    return task


def _count_bytes(
    batches: Iterable[pa.RecordBatch], sizes: list[int]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sizes.append(batch.nbytes)
        yield batch


def write_partition(
    sink: Sink,
    record: TransactionRecord,
    telemetry: Mapping[str, str],
    batches: Iterator[pa.RecordBatch],
    links: str | None = None,
) -> tuple[Receipt, ...]:
    """Write one partition, in its task, as a branch of its own; return the votes.

    A refusal is a vote to abort, which no other try would change: returned, because
    Spark would retry a task that raises.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        raise ContractError("this runs inside a Spark task")
    # A retry and a twin are branches apart; commit names the one that reported.
    branch = BranchId(task.partitionId(), task.taskAttemptId())
    participants = tuple(participants_of(sink))
    context = record.context_of(branch, participants)
    environment.apply(telemetry)
    lifecycle.start(record.id.application)
    try:
        return write_linked_branch(sink, context, batches, links)
    except ParticipantRefusedError as error:
        name = error.participant or participants[0]
        return (Receipt(branch, name, 0, "", Vote.ABORT, reason=str(error)),)
    finally:
        # Before the receipt is out: then the worker may be killed at any moment.
        lifecycle.flush(FLUSH_SECONDS)


_kept = 0  # how many modules this process had when it last kept them from the collector


def freeze_gc() -> None:
    """Exclude this process's loaded modules from the garbage collector.

    PySpark collects after every task (`pyspark/daemon.py`), and that goes through all
    modules: longer than to write a small partition. Repeated when there are more of
    them: a worker may serve queries that load different ones.
    """
    global _kept
    if (modules := len(sys.modules)) > _kept:
        gc.collect()
        gc.freeze()
        _kept = modules
