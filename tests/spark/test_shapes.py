"""Queries of other shapes: several at once, many partitions or rows, repartitioned.

`TASKS=2000` and `ROWS=10000000` in the environment are what they were made for.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.spark import numbers_of, write_numbers
from support.stream_world import World, failing_query

from tracing_2pc.core.states import TransactionState

pytestmark = pytest.mark.spark
TASKS = int(os.environ.get("TASKS", "200"))
ROWS = int(os.environ.get("ROWS", "1000000"))


def test_two_queries_of_one_session_share_the_participants(world: World) -> None:
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


def test_another_number_of_partitions_after_a_restart(world: World) -> None:
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


def test_a_batch_of_many_partitions(world: World) -> None:
    """Each is a branch with a row; the decision names them all."""
    world.run(world.callback(), stream(world, TASKS, TASKS))
    assert [summary(world.folder / f"{name}.db") for name in "ab"] == [
        (TASKS, TASKS * (TASKS - 1) // 2)
    ] * 2


def test_a_batch_of_many_rows(world: World) -> None:
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
