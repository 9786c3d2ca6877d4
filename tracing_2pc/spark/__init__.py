"""The ways in from Spark: `foreachBatch`, and a data source."""

from typing import TYPE_CHECKING, Any

from tracing_2pc.spark.foreach_batch import two_phase_commit

if TYPE_CHECKING:
    from tracing_2pc.spark.data_source import TwoPhaseCommitDataSource

__all__ = ["TwoPhaseCommitDataSource", "two_phase_commit"]


def __getattr__(name: str) -> Any:
    if name == "TwoPhaseCommitDataSource":  # it needs PySpark when it is imported
        from tracing_2pc.spark.data_source import TwoPhaseCommitDataSource

        return TwoPhaseCommitDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
