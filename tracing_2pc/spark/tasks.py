"""The half of the protocol that runs on executors."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tracing_2pc import names
from tracing_2pc.errors import ContractError
from tracing_2pc.failpoints import failpoint
from tracing_2pc.model import BranchContext, BranchId, Receipt, TransactionRecord
from tracing_2pc.sinks.base import Sink, participants_of, write_branch
from tracing_2pc.telemetry import lifecycle
from tracing_2pc.telemetry.spans import span

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

RECEIPT_SCHEMA: Final = "receipt string"
FLUSH_SECONDS: Final = 0.5


@contextlib.contextmanager
def computed_once(df: DataFrame) -> Iterator[DataFrame]:
    """Compute a batch in a Spark job of its own; every reader sees that result.

    Not `persist`: of a persisted batch Spark computes again what an executor takes
    along, and a plan that is not deterministic gives other rows then. Here a reader
    of a lost part raises.
    """
    batch = df.localCheckpoint(eager=True)
    try:
        yield batch
    finally:
        # A private API, and the JVM may be gone; else Spark drops it some time later.
        with contextlib.suppress(Exception):
            batch._jdf.queryExecution().logical().rdd().unpersist(False)  # noqa: FBT003


def write_partitions(
    df: DataFrame, sink: Sink, record: TransactionRecord
) -> list[Receipt]:
    """Write a DataFrame in one Spark job; return one receipt per partition.

    Exactly one action: any other (count, isEmpty, take) would write again.

    Raises:
        ContractError: the receipts don't add up to one vote of everybody each.
    """
    task = make_task(sink, record)
    rows = df.mapInArrow(task, RECEIPT_SCHEMA).collect()
    return read_receipts((row.receipt for row in rows), sink, record)


def read_receipts(
    written: Iterable[str], sink: Sink, record: TransactionRecord
) -> list[Receipt]:
    """Read what the tasks returned: one receipt per partition, all votes in (rule 1).

    Raises:
        ContractError: the receipts don't add up to one vote of everybody each.
    """
    receipts = []
    for text in written:
        receipts.append(Receipt.from_json(text))
        failpoint("driver.during_collection")
    expected = set(participants_of(sink))
    partitions = [r.branch.partition for r in receipts]
    if len(set(partitions)) != len(partitions) or any(
        set(r.votes) != expected for r in receipts
    ):
        raise ContractError(
            f"{record.id}: expected one receipt per partition with the votes of "
            f"{', '.join(sorted(expected))}",
            transaction_id=str(record.id),
        )
    return receipts


def make_task(sink: Sink, record: TransactionRecord) -> Callable[..., Any]:
    """Return the function for `mapInArrow`: plain data in its closure, nothing open."""
    job = Job(sink, record, lifecycle.telemetry_settings())

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        receipt = job.run(batches)
        yield pa.RecordBatch.from_pydict({"receipt": [receipt.to_json()]})

    return task


@dataclasses.dataclass(frozen=True)
class Job:
    """What a task is told. Pickled into the closure: no secrets, no connections."""

    sink: Sink
    record: TransactionRecord
    telemetry: Mapping[str, str]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Receipt:
        """Write one partition as a branch of its own, and vote."""
        from pyspark import TaskContext

        task = TaskContext.get()
        if task is None:
            raise ContractError("this runs inside a Spark task")
        branch = BranchId(task.partitionId(), task.taskAttemptId())
        context = BranchContext(
            self.record.id,
            branch,
            tuple(participants_of(self.sink)),
            self.record.carrier,
        )
        lifecycle.apply(self.telemetry)
        lifecycle.start(self.record.id.application)
        about: dict[str, str | int | float | bool] = {
            "tpc.transaction.id": str(self.record.id),
            "tpc.branch": str(branch),
        }
        try:
            with span(
                names.BRANCH, carrier=self.record.carrier, attributes=about
            ) as open_span:
                receipt = write_branch(self.sink, context, batches)
                open_span.set("tpc.rows", receipt.rows)
        finally:
            # Before the receipt is out: then the worker may be killed at any moment.
            lifecycle.flush(FLUSH_SECONDS)
        return receipt
