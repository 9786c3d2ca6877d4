"""Events from an inbox into a ledger and a queue: one decision for both.

    INBOX_DATABASE=... TPC_TOKEN=... python -m participants.pipeline FOLDER \
        LEDGER_URL NOTIFIER_URL

Each event gets the time of its processing. FOLDER/checkpoint and FOLDER/decisions.db,
or the decision log `DEMO_LOG`, are kept. It goes on until it is stopped, with a batch
every `DEMO_EVERY`; where that is empty, it ends when all that was there is applied.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from pyspark.sql.functions import current_timestamp

from tracing_2pc import ParticipantSink
from tracing_2pc.core.settings import Settings
from tracing_2pc.spark import two_phase_commit
from tracing_2pc.spark.inbox_source import InboxSource
from tracing_2pc.tracing.sdk.log_records import write_to_stderr

from .job import session, tick

APPLICATION = "pipeline"

MOST = 5_000
"""Events of a batch: all of them are in the outgoing broker's memory at once."""


def main(folder: Path, ledger: str, notifier: str) -> None:
    """Apply what comes, until this process is ended."""
    write_to_stderr()
    logging.getLogger("tracing_2pc").setLevel(logging.INFO)
    spark = session()
    spark.dataSource.register(InboxSource)
    events = (
        spark.readStream.format("tpc_inbox")
        .option("url", "env:INBOX_DATABASE")
        .option("reader", APPLICATION)
        .option("maxEventsPerTrigger", MOST)
        .load()
        .select("position", "id", "producer", "body", "carrier")
        .withColumn("processed_at", current_timestamp())
    )
    sink = ParticipantSink(
        {"ledger": ledger, "notifier": notifier}, token=Settings.load().token
    )
    query = (
        events.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(**tick())
        .foreachBatch(
            two_phase_commit(
                sink,
                application=APPLICATION,
                log=os.environ.get("DEMO_LOG", f"sqlite:///{folder / 'decisions.db'}"),
                links="carrier",
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
    os.environ.setdefault("DEMO_EVERY", "1 second")
    os.environ["TPC_FAILPOINT_GROUP"] = str(os.getpgrp())
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
