"""The ways in from Spark."""

from tracing_2pc.spark.foreach_batch import two_phase_commit

__all__ = ["two_phase_commit"]
