"""A job that reads an inbox into a ledger: `FOLDER INBOX_URL LEDGER_URL`."""

from __future__ import annotations

import os
import sys

os.environ["PYSPARK_PYTHON"] = sys.executable

from participants.job import session, tick
from tracing_2pc import ParticipantSink
from tracing_2pc.core.settings import Settings
from tracing_2pc.spark import two_phase_commit
from tracing_2pc.spark.inbox_source import InboxSource

folder, inbox, ledger = sys.argv[1:]
spark = session()
spark.dataSource.register(InboxSource)
events = (
    spark.readStream.format("tpc_inbox")
    .option("url", inbox)
    .option("reader", "ledger")
    .option("maxEventsPerTrigger", 1_000)
    .load()
)
callback = two_phase_commit(
    ParticipantSink({"ledger": ledger}, token=Settings.load().token),
    application="events",
    log=os.environ["DEMO_LOG"],
)
rows = events.select("position", "id", "producer", "body")
writer = rows.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
writer.trigger(**tick()).foreachBatch(callback).start().awaitTermination()
spark.stop()
