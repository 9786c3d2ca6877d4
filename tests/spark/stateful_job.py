"""A job whose query keeps state: readings to participants a and b, until the end.

stateful_job.py FOLDER A_URL B_URL QUERY

QUERY is the name of a function below. A batch is a file of readings.
"""

from __future__ import annotations

import os
import sys

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["TPC_FAILPOINT_GROUP"] = str(os.getpgrp())

from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming import StatefulProcessor
from support.spark import new_session, started

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.spark import two_phase_commit

ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def totals_per_window(readings):
    window = F.window("at", "10 seconds")
    total = F.sum("amount").alias("total")
    grouped = readings.groupBy(window, F.expr("id % 2").alias("kind")).agg(total)
    start = F.col("window.start").cast("long").alias("start")
    return grouped.select(start, "kind", "total")


def windows(readings):
    return totals_per_window(readings).writeStream.outputMode("append")


def latest_totals(readings):
    return totals_per_window(readings).writeStream.outputMode("update")


def distinct(readings):
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS_DB)
    once = readings.dropDuplicatesWithinWatermark(["id"]).select("id", "amount")
    return once.writeStream.outputMode("append")


class RunningTotal(StatefulProcessor):
    """Tells of each kind what it has come to, with every batch."""

    def init(self, handle):
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - Spark's
        before = self.total.get() if self.total.exists() else (0,)
        total = before[0] + sum(row.amount for row in rows)
        self.total.update((total,))
        yield Row(kind=key[0], total=total)

    def close(self):
        pass


def running_totals(readings):
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS_DB)
    by_kind = readings.withColumn("kind", F.expr("id % 2")).groupBy("kind")
    told = by_kind.transformWithState(
        RunningTotal(), "kind long, total long", "append", "none"
    )
    return told.writeStream.outputMode("append")


folder, a, b, name = sys.argv[1:]
spark = new_session("stateful")
readings = (
    spark.readStream.schema("second long, id long, amount long")
    .option("maxFilesPerTrigger", 1)
    .json(f"{folder}/in")
    .withColumn("at", F.timestamp_seconds("second"))
    .withWatermark("at", "10 seconds")
)
callback = two_phase_commit(
    ParticipantSink({"a": a, "b": b}, token=None),
    application="stateful",
    log=f"sqlite:///{folder}/log.db",
    settings=Settings(backoff_cap=2.0),
)
writer = globals()[name](readings).foreachBatch(callback)
started(writer, f"{folder}/checkpoint").awaitTermination()
spark.stop()
