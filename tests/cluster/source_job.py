"""The same queries by the data source: a stream, and DataFrames that are none."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cluster_job
from cluster_job import Holding, Job
from pyspark import cloudpickle
from support.spark import read_numbers, started

from tracing_2pc import Settings
from tracing_2pc.sinks.base import Sink
from tracing_2pc.spark import TwoPhaseCommitDataSource


class HoldingSource(TwoPhaseCommitDataSource):
    """Writes to `cluster_job.Holding`."""

    own_options = ("folder", "holds")

    def sink(self, settings: Settings) -> Sink | Sequence[Sink]:
        if not (holds := self.options["holds"]):
            return super().sink(settings)
        folder = Path(self.options["folder"])
        return Holding(dict(settings.participants), settings.token, folder, holds)


class SourceJob(Job):
    """A stream."""

    def start(self, spark: Any) -> Any:
        numbers = read_numbers(spark, self.folder).repartition(2)
        writer = self._by_data_source(spark, numbers.writeStream)
        return started(writer, f"{self.folder}/ck")

    def _by_data_source(self, spark: Any, writer: Any) -> Any:
        # Neither the driver's own Python processes nor executors find these modules.
        for module in (cluster_job, sys.modules[__name__]):
            cloudpickle.register_pickle_by_value(module)
        spark.dataSource.register(HoldingSource)
        return writer.format("two_phase_commit").options(
            application=self.application,
            log=self.log,
            participants=f"a={self.a},b={self.b}",
            token=self.token,
            folder=self.folder,
            holds=self.holds,
            backoff_cap="2s",
        )


class FrameJob(SourceJob):
    """Ten numbers, written twice under one number."""

    def start(self, spark: Any) -> Any:
        numbers = spark.range(0, 10, 1, 4).toDF("value")
        for _ in range(2):
            writer = self._by_data_source(spark, numbers.write)
            writer.option("batch", "0").mode("append").save()
        return Ended()


class Ended:
    """What has ended by itself."""

    def awaitTermination(self) -> None:  # noqa: N802
        """Return at once."""

    def exception(self) -> None:
        """There was none."""
