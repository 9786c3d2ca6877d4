"""What the callback keeps of a query from one batch to the next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tracing_2pc.spark.context import StreamContext


class Stopped:
    """A SparkContext after `stop()`: it has no JVM to ask."""

    def getLocalProperty(self, key: str) -> str:  # noqa: N802 - Spark's name
        raise AttributeError(key)


def test_a_batch_of_a_new_session_is_of_another_run() -> None:
    """A callback goes on after `spark.stop()`; the stopped session is not asked."""
    df: Any = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=object()))
    assert not StreamContext(Stopped(), "run", "query").has(df)
