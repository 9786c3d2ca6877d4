"""Queries of other shapes: several at once, many partitions or rows, repartitioned.

`TASKS=2000` and `ROWS=10000000` in the environment are what they were made for.
"""

from __future__ import annotations

import inspect
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.spark import numbers_of, write_numbers
from support.stream_world import World, failing_query
from support.waiting import until

from participants import flights
from participants.oracle import expected
from tracing_2pc.core.states import TransactionState

pytestmark = pytest.mark.spark
TASKS = int(os.environ.get("TASKS", "200"))
ROWS = int(os.environ.get("ROWS", "1000000"))


def test_two_queries_of_one_session_share_the_participants(world):
    """At once, each with its own application, log record and checkpoint."""
    write_numbers(world.folder, range(3))
    names = ("left", "right")
    queries = [
        world.start(world.callback(application=name), checkpoint=f"ck-{name}")
        for name in names
    ]
    for query in queries:
        query.awaitTermination()
    assert world.held() == (numbers_of(3) + numbers_of(3),) * 2
    for name in names:
        assert world.state(f"{name}.2.1") is TransactionState.COMMITTED


def test_another_number_of_partitions_after_a_restart(world):
    """The batch in flight is aborted, and written anew, by as many tasks as it has."""
    write_numbers(world.folder, range(2))
    flag = world.folder / "mended"

    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        if not flag.exists():
            raise ValueError("not mended")
        yield from batches

    for partitions in (2, 7):
        numbers = world.source().repartition(partitions).mapInArrow(fail, "value long")
        if partitions == 2:
            with failing_query("not mended"):
                world.run(world.callback(), numbers)
        else:
            flag.touch()
            world.run(world.callback(), numbers)
    assert world.held() == (numbers_of(2), numbers_of(2))
    assert world.state("test.0.2") is TransactionState.COMMITTED


def test_a_batch_of_many_partitions(world):
    """Each is a branch with a row; the decision names them all."""
    world.run(world.callback(), stream(world, TASKS, TASKS))
    assert [summary(world.folder / f"{name}.db") for name in "ab"] == [
        (TASKS, TASKS * (TASKS - 1) // 2)
    ] * 2


def test_a_batch_of_many_rows(world):
    """No part of it is held in memory as a whole but Spark's own."""
    world.run(world.callback(), stream(world, ROWS, 4))
    assert [summary(world.folder / f"{name}.db") for name in "ab"] == [
        (ROWS, ROWS * (ROWS - 1) // 2)
    ] * 2


def stream(world: World, rows: int, partitions: int) -> Any:
    """Return a stream of one batch, 0 to `rows` - 1."""
    world.spark.range(0, rows, 1, partitions).toDF("value").write.parquet(
        str(world.folder / "parquet")
    )
    reader = world.spark.readStream.schema("value long")
    files = reader.parquet(str(world.folder / "parquet"))
    return files.repartition(partitions) if partitions > 4 else files


def summary(database: Path) -> tuple[int, int]:
    """Return how many rows a reader sees, and their sum."""
    with closing(sqlite3.connect(database)) as file:
        sql = "SELECT count(*), sum(value) FROM numbers"
        count, total = file.execute(sql).fetchone()
        return int(count), int(total)


ASYNCHRONOUS = {"asyncProgressTrackingEnabled": "true"}


@pytest.mark.parametrize(
    ("trigger", "options", "says"),
    [
        ({"continuous": "1 second"}, {}, "not supported with continuous trigger"),
        ({"realTime": "5 minutes"}, {}, "not in the sink allowlist for Real-Time"),
        ({"processingTime": "1 second"}, ASYNCHRONOUS, "async progress tracking"),
    ],
)
def test_spark_itself_refuses_what_is_no_micro_batch(world, trigger, options, says):
    """At `start()`, in one line: the callback is never called."""
    from pyspark.errors import PySparkException

    writer = world.spark.readStream.format("rate").load().writeStream
    writer = writer.option("checkpointLocation", str(world.folder / "ck"))
    if not trigger.keys() <= inspect.signature(writer.trigger).parameters.keys():
        pytest.skip(f"this PySpark has no {', '.join(trigger)}")
    writer = writer.options(**options).trigger(**trigger)
    with pytest.raises(PySparkException, match=says):
        writer.foreachBatch(world.callback()).start()
    assert world.state("test.0.1") is None


def test_asynchronous_progress_is_refused_where_spark_was_told_not_to(world):
    """By Spark's own switch it starts; its first batch is not begun."""
    write_numbers(world.folder, range(1))
    writer = world.source().writeStream.options(**ASYNCHRONOUS)
    writer = writer.option("_asyncProgressTrackingOverrideSinkSupportCheck", "true")
    writer = writer.option("checkpointLocation", str(world.folder / "ck"))
    query = writer.foreachBatch(world.callback()).start()
    until(lambda: not query.isActive or world.state("test.0.1"))
    query.stop()
    assert "Remove the option asyncProgressTrackingEnabled" in str(query.exception())
    assert world.state("test.0.1") is None
    assert [h.total() for h in world.held()] == [0, 0]


@pytest.mark.spark
def test_spark_gives_what_the_oracle_expects(spark):
    """The job's two frames of one day are the oracle's, with Spark's own types."""
    day = spark.read.csv(str(flights.file_of(1)), schema=flights.SCHEMA, header=True)
    sums = {tuple(r[:3]): tuple(r[3:]) for r in flights.to_ledger(day).collect()}
    told = {
        (r[0], r[1], str(r[2])): tuple(r[3:])
        for r in flights.to_notifier(day).collect()
    }
    source = expected.read_day("2013-01-01")
    assert sums == expected.expected_sums(source)
    assert told == expected.expected_notices(source)
