"""The demo's Spark job: a month of flights, one day a batch, to two participants.

    TPC_TOKEN=... python -m participants.job FOLDER LEDGER NOTIFIER

writes to these addresses: a table that the job opens itself, or a service. It
reads FOLDER/in, or the topic of flights of the broker `DEMO_KAFKA`, keeps
FOLDER/checkpoint and FOLDER/decisions.db, and ends when everything that was there at
its start is written. The environment may change that:
`DEMO_SEARCH` names the URL of a third service, which gets what the ledger gets.
`DEMO_REJECTED` names a table for the rows that a participant refuses.
`DEMO_LOG` names another decision log, `DEMO_EVERY` (as in `10 seconds`) keeps it
running with a day at each tick, `SPARK_MASTER` and `DEMO_DRIVER` a cluster, and the
name by which that finds this driver. With `DEMO_DRIVER` there is Spark's page, too.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import decode, from_json

from tracing_2pc import ParticipantSink
from tracing_2pc.core.settings import Settings
from tracing_2pc.spark import two_phase_commit
from tracing_2pc.tracing.sdk.log_records import write_to_stderr

from .flights import APPLICATION, SCHEMA, to_ledger, to_notifier
from .topics import FLIGHTS, SOURCE_JARS

RECORDS = 800
"""In a batch of a topic: no more than in most days."""


def main(folder: Path, ledger: str, notifier: str) -> None:
    """Run the query until its source is exhausted, or for ever where it ticks."""
    write_to_stderr()
    logging.getLogger("tracing_2pc").setLevel(logging.INFO)
    spark = session()
    flights = read(spark, folder)
    services = {"ledger": ledger, "notifier": notifier}
    routes = {"ledger": to_ledger, "notifier": to_notifier}
    if search := os.environ.get("DEMO_SEARCH"):
        services["search"], routes["search"] = search, to_ledger
    rejects = None
    if rejected := os.environ.get("DEMO_REJECTED"):
        rejects, services["rejected"] = "rejected", rejected
    sink = ParticipantSink(services, token=Settings.load().token)
    query = (
        flights.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(**tick())
        .foreachBatch(
            two_phase_commit(
                sink,
                application=APPLICATION,
                log=os.environ.get("DEMO_LOG", f"sqlite:///{folder / 'decisions.db'}"),
                routes=routes,
                rejects=rejects,
            )
        )
        .start()
    )
    query.awaitTermination()
    spark.stop()


def read(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the source: a file a batch, or so many records of a topic."""
    if servers := os.environ.get("DEMO_KAFKA"):
        messages = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", FLIGHTS)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", RECORDS)
            .load()
        )
        flight = from_json(decode("value", "utf-8"), SCHEMA).alias("flight")
        return messages.select(flight).select("flight.*")
    files = spark.readStream.schema(SCHEMA).options(header=True)
    return files.option("maxFilesPerTrigger", 1).csv(str(folder / "in"))


def session() -> SparkSession:
    """Return a session on this machine alone, or on the cluster that is named."""
    driver = os.environ.get("DEMO_DRIVER")
    jars = map(str, SOURCE_JARS.glob("*.jar") if "DEMO_KAFKA" in os.environ else ())
    bound = "0.0.0.0" if driver else "127.0.0.1"  # noqa: S104 - a container's network
    return (
        SparkSession.builder.appName(APPLICATION)
        .master(os.environ.get("SPARK_MASTER", "local[2]"))
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.jars", ",".join(jars))
        .config("spark.ui.enabled", str(bool(driver)).lower())
        .config("spark.driver.bindAddress", bound)
        .config("spark.driver.host", driver or "127.0.0.1")
        .getOrCreate()
    )


def tick() -> dict[str, Any]:
    """Return the trigger: all that is there and no more, or a batch at each tick."""
    every = os.environ.get("DEMO_EVERY")
    return {"processingTime": every} if every else {"availableNow": True}


if __name__ == "__main__":
    # Before Spark starts: tasks run in this Python, and a failpoint in a task takes
    # the driver along.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["TPC_FAILPOINT_GROUP"] = str(os.getpgrp())
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
