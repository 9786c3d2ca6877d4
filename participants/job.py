"""The demo's Spark job: a month of flights, one day a batch, to two services at once.

    TPC_TOKEN=... python -m participants.job FOLDER LEDGER_URL NOTIFIER_URL

reads FOLDER/in, keeps FOLDER/checkpoint and FOLDER/decisions.db, and ends when
everything that was there at its start is written.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tracing_2pc import ParticipantSink
from tracing_2pc.spark import two_phase_commit

from .flights import APPLICATION, SCHEMA, to_ledger, to_notifier


def main(folder: Path, ledger: str, notifier: str) -> None:
    """Run the query until its source is exhausted."""
    spark = (
        SparkSession.builder.appName(APPLICATION)
        .master("local[2]")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    flights = (
        spark.readStream.schema(SCHEMA)
        .options(header=True)
        .option("maxFilesPerTrigger", 1)
        .csv(str(folder / "in"))
    )
    sink = ParticipantSink({"ledger": ledger, "notifier": notifier})
    query = (
        flights.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(
            two_phase_commit(
                sink,
                application=APPLICATION,
                log=f"sqlite:///{folder / 'decisions.db'}",
                routes={"ledger": to_ledger, "notifier": to_notifier},
            )
        )
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    # Before Spark starts: tasks run in this Python, and a failpoint in a task takes
    # the driver along.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["TPC_FAILPOINT_GROUP"] = str(os.getpgrp())
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
