"""The driver path: a small batch is written by the driver, one branch per route.

Spark computes the rows, and hands them to the driver as Arrow. The largest costs of a
small batch are left out: a Python worker for each task, and the pickling of the sink
and of its receipts.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tracing_2pc.core.model import BranchId, TransactionRecord
from tracing_2pc.sinks.base import Sink, participants_of, until_stopped
from tracing_2pc.sinks.composite import CompositeSink
from tracing_2pc.sinks.members import option
from tracing_2pc.spark.links import write_linked_branch
from tracing_2pc.spark.tasks import Written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_LIMIT: Final = "spark.driver.maxResultSize"


class TooLargeError(Exception):
    """Spark did not hand over the batch: it exceeds `spark.driver.maxResultSize`."""

    def __init__(self) -> None:
        super().__init__(f"the batch is larger than {_LIMIT}")


@dataclasses.dataclass
class DriverPath:
    """Whether the driver writes the next batch itself, by the size of the last."""

    limit: int  # bytes in Arrow, at most; 0 means never
    run: str | None = None
    arrow_bytes: int | None = None  # of this run's last batch that had rows

    def fits(self, sink: Sink, run: str | None) -> bool:
        """Return whether a run's next batch takes it; `run` is None without a query.

        Each start begins with tasks: an error of this path alone happens once.
        """
        if run and run != self.run:
            self.run, self.arrow_bytes = run, None
        last = self.arrow_bytes
        small = self.limit > 0 and last is not None and last <= self.limit
        return small and allows_driver_path(sink)


def allows_driver_path(sink: Sink) -> bool:
    """Return whether a sink may be written in the driver.

    Nothing interrupts it there, as Spark does with a task, so its phases must end by
    themselves: those of `ParticipantSink` do. A sink of your own declares it by its
    attribute `driver_path = True`, and a `ParticipantSink` that you have changed
    declares the opposite by False.
    """
    if isinstance(sink, CompositeSink):
        return all(allows_driver_path(member) for member in sink.members)
    return option(sink, "driver_path") is True


def write_in_driver(
    df: DataFrame,
    sink: Sink,
    record: TransactionRecord,
    route: int,
    stopping: Callable[[], bool],
    links: str | None = None,
) -> Written:
    """Collect a DataFrame in one Spark job, and write it here, as one branch.

    The rows have the types that a task would see. As in a task, the sink is a copy:
    changes of its attributes do not reach `commit`. Its class is not copied: pickling
    by value, as for a task, would write over a class of the main program. Each route
    has a branch of its own, as jobs on executors have. `stopping` ends it early.

    Raises:
        TooLargeError: nothing was written; executors can write the batch.
        AbortedError: `stopping` ended it.
    """
    copied = copy.deepcopy(sink)
    batches = _collect(df)
    participants = tuple(participants_of(sink))
    # No task that comes later has 0: the job of `_collect` has taken it.
    branch = BranchId(route, 0)
    context = record.context_of(branch, participants, stopping)
    arrow_bytes = sum(batch.nbytes for batch in batches)
    written = until_stopped(batches, context)
    receipts = write_linked_branch(copied, context, written, links)
    return Written(list(receipts), arrow_bytes)


def _collect(df: DataFrame) -> list[pa.RecordBatch]:
    try:
        # Not `toArrow`: PySpark 3.5 has none.
        batches: list[pa.RecordBatch]
        if hasattr(df, "_to_table"):  # Spark Connect
            batches = df._to_table()[0].to_batches()
        else:
            batches = df._collect_as_arrow()
    except Exception as error:
        if _LIMIT in str(error):  # only the text of Spark's error tells it
            raise TooLargeError from error
        raise
    return batches
