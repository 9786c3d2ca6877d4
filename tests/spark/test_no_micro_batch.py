"""Queries that do not run in micro-batches, one after another, are refused."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from support.spark import write_numbers
from support.stream_world import World
from support.waiting import until

pytestmark = pytest.mark.spark

ASYNCHRONOUS = {"asyncProgressTrackingEnabled": "true"}


@pytest.mark.parametrize(
    ("trigger", "options", "says"),
    [
        ({"continuous": "1 second"}, {}, "not supported with continuous trigger"),
        ({"realTime": "5 minutes"}, {}, "not in the sink allowlist for Real-Time"),
        ({"processingTime": "1 second"}, ASYNCHRONOUS, "async progress tracking"),
    ],
)
def test_spark_itself_refuses_what_is_no_micro_batch(
    world: World, trigger: Any, options: Any, says: str
) -> None:
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


def test_asynchronous_progress_is_refused_where_spark_was_told_not_to(
    world: World,
) -> None:
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
