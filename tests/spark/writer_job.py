"""A job whose data source is its own, decorated: python writer_job.py FOLDER.

Its writers are classes of the main program, as a user's are at first: Spark pickles
them by value. Each query writes two batches; of the last one a partition always fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path

from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from support.spark import new_session
from support.waiting import PAUSE, until

from tracing_2pc import traced_sink

WRITTEN = Path(sys.argv[1]) / "written"


@dataclasses.dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The message of the user's own making."""

    partition: int
    rows: int


@traced_sink
class Rows(DataSourceStreamWriter):
    """Takes rows, one by one."""

    def write(self, iterator):
        rows = sum(1 for _ in iterator)
        return Written(TaskContext.get().partitionId(), rows)

    def commit(self, messages, batchId):  # noqa: N803
        assert {m.partition for m in messages} == {0, 1}
        assert sum(m.rows for m in messages) == 10
        assert Written(0, 5) in messages

    def abort(self, messages, batchId):  # noqa: N803
        pass


@traced_sink
class Batches(DataSourceStreamArrowWriter):
    """Takes batches of Arrow."""

    def write(self, iterator):
        return Written(0, sum(batch.num_rows for batch in iterator))

    def commit(self, messages, batchId):  # noqa: N803
        assert sum(m.rows for m in messages) == 10


@traced_sink
class Failing(Rows):
    """One of its partitions cannot be written."""

    def write(self, iterator):
        next(iterator)
        if TaskContext.get().partitionId() == 1:
            # The other one is done by its second try: abort gets its message.
            until(WRITTEN.exists)
            raise ValueError("a customer's name")
        WRITTEN.touch()
        return Written(0, 1)


class Source(DataSource):
    """Chooses the writer by an option."""

    @classmethod
    def name(cls):
        return "own"

    def streamWriter(self, schema, overwrite):  # noqa: N802
        return {"Rows": Rows, "Batches": Batches, "Failing": Failing}[
            self.options["writer"]
        ]()


def run(spark, folder: Path, writer: str, batches: int) -> None:
    source = spark.readStream.format("rate-micro-batch")
    numbers = source.option("rowsPerBatch", 10).option("numPartitions", 2).load()
    query = (
        numbers.writeStream.format("own")
        .option("writer", writer)
        .option("checkpointLocation", str(folder / writer))
        .start()
    )
    with contextlib.suppress(StreamingQueryException):
        while (query.lastProgress or {"batchId": -1})["batchId"] < batches - 1:
            query.awaitTermination(PAUSE)
    query.stop()


def main(folder: Path) -> None:
    spark = new_session("writers")
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(Source)
    for writer in ("Rows", "Batches", "Failing"):
        run(spark, folder, writer, 2)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
