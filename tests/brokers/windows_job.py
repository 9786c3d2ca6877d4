"""A job that reads a topic: sums of windows to participants a and b, until its end.

windows_job.py FOLDER A_URL B_URL SERVERS TOPIC
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["TPC_FAILPOINT_GROUP"] = str(os.getpgrp())

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from support.spark import new_session, started

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.spark import two_phase_commit

folder, a, b, servers, topic = sys.argv[1:]
jars = Path(os.environ["TPC_KAFKA"], "spark").glob("*.jar")
spark = new_session("windows", settings={"spark.jars": ",".join(map(str, jars))})
messages = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("kafka.isolation.level", "read_committed")
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .option("includeHeaders", True)
    .option("maxOffsetsPerTrigger", 60)
    .load()
)
sale = F.from_json(F.decode("value", "utf-8"), "second long, shop string, amount long")
sales = messages.select(sale.alias("sale"), "headers").select("sale.*", "headers")
totals = (
    sales.withColumn("at", F.timestamp_seconds("second"))
    .withWatermark("at", "10 seconds")
    .groupBy(F.window("at", "10 seconds"), "shop")
    .agg(F.sum("amount").alias("total"), F.max_by("headers", "at").alias("headers"))
    .select(F.expr("CAST(window.start AS LONG) AS start"), "shop", "total", "headers")
)
callback = two_phase_commit(
    ParticipantSink({"a": a, "b": b}, token=None),
    application="windows",
    log=f"sqlite:///{folder}/log.db",
    settings=Settings(backoff_cap=2.0),
    links="headers",
)
writer = totals.writeStream.outputMode("append").foreachBatch(callback)
started(writer, f"{folder}/checkpoint").awaitTermination()
spark.stop()
