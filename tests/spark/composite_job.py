"""A job for the crash tests: numbers to a service, and to a folder by a sink of one's
own and another by `FileSink`, in one transaction.

composite_job.py FOLDER A_URL
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["TPC_FAILPOINT_GROUP"] = str(os.getpgrp())

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from support.folder_sink import Folder
from support.spark import new_session, read_numbers, started

from tracing_2pc import FileSink, ParticipantSink, Settings, traced_sink
from tracing_2pc.spark import two_phase_commit


@traced_sink
class Own(Folder):
    """As a user's, a class of the main program."""


folder, a = Path(sys.argv[1]), sys.argv[2]
spark = new_session("composite")
numbers = read_numbers(spark, folder).repartition(2)
callback = two_phase_commit(
    [
        ParticipantSink({"a": a}, token=None),
        Own(folder / "out", name="own"),
        FileSink(folder / "parquet", partition_by="part"),
    ],
    application="composite",
    log=f"sqlite:///{folder}/log.db",
    settings=Settings(backoff_cap=2.0),
)
numbers = numbers.withColumn("part", F.col("value") % 2)
writer = numbers.writeStream.foreachBatch(callback)
started(writer, f"{folder}/checkpoint").awaitTermination()
spark.stop()
