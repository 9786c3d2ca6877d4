"""`format("two_phase_commit")`: streams and whole DataFrames, by Spark's data source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from support.spark import numbers_of, write_numbers
from support.stream_world import World, failing_query

from tracing_2pc.core.states import TransactionState
from tracing_2pc.spark import TwoPhaseCommitDataSource

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def _registered(spark: Any) -> None:
    spark.dataSource.register(TwoPhaseCommitDataSource)


def options(world: World, **more: str) -> dict[str, str]:
    """Return what a user gives to `.options(...)`."""
    return {
        "application": "test",
        "log": world.log_url,
        "participants": f"a={world.a},b={world.b}",
        "token": "",
        "request_timeout": "2",
        "backoff_base": "0.2",
        "backoff_cap": "0.5",
    } | more


def start(world: World, source: Any = None, **more: str) -> Any:
    return (
        (world.source() if source is None else source)
        .writeStream.format("two_phase_commit")
        .options(**options(world, **more))
        .option("checkpointLocation", str(world.folder / "ck"))
        .trigger(availableNow=True)
        .start()
    )


def run(world: World, source: Any = None, **more: str) -> None:
    start(world, source, **more).awaitTermination()


def test_each_batch_of_a_stream_lands_in_both(world: World) -> None:
    """The simplest promise: three batches, two services, each row once in each."""
    write_numbers(world.folder, range(3))
    run(world, world.source().repartition(2))
    assert world.held() == (numbers_of(3), numbers_of(3))
    states = [world.state(f"test.{batch}.1") for batch in range(3)]
    assert states == [TransactionState.COMMITTED] * 3
    with world.log() as log:
        assert log.unfinished() == []


def test_a_batch_that_spark_repeats_is_not_written_again(world: World) -> None:
    """As after a crash just before Spark's own commit."""
    write_numbers(world.folder, range(2))
    run(world)
    world.forget_sparks_commit_of(1)
    write_numbers(world.folder, range(2, 3))
    run(world)
    assert world.held() == (numbers_of(3), numbers_of(3))
    assert world.state("test.1.2") is None
