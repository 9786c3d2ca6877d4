"""A job for the crash tests: files of numbers to participants a and b, until the end.

job.py FOLDER A_URL B_URL

With IN_DRIVER in its environment the driver writes each batch, else executors do. With
DATA_SOURCE a data source writes them. With OWN_CHECKPOINTS its files are as Spark
writes them by itself. With ALONE a failpoint kills its own process and
not all of the job.
"""

from __future__ import annotations

import os
import sys

os.environ["PYSPARK_PYTHON"] = sys.executable
if "ALONE" not in os.environ:
    os.environ["TPC_FAILPOINT_GROUP"] = str(os.getpgrp())

from support.spark import new_session, read_numbers, started
from support.spark_defaults import OWN_CHECKPOINTS

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.spark import two_phase_commit


def by_data_source(numbers):
    from tracing_2pc.spark import TwoPhaseCommitDataSource  # of PySpark 4.1 or newer

    spark.dataSource.register(TwoPhaseCommitDataSource)
    return numbers.writeStream.format("two_phase_commit").options(
        application="crash",
        log=f"sqlite:///{folder}/log.db",
        participants=f"a={a},b={b}",
        token="",
        backoff_cap="2s",
    )


def by_foreach_batch(numbers):
    in_driver = "IN_DRIVER" in os.environ
    path = {} if in_driver else {"driver_path_bytes": 0}
    callback = two_phase_commit(
        ParticipantSink({"a": a, "b": b}, token=None),
        application="crash",
        log=f"sqlite:///{folder}/log.db",
        settings=Settings(backoff_cap=2.0, **path),
    )
    if in_driver:
        callback._driver_path.fits = lambda *_: True  # as after a small batch
    return numbers.writeStream.foreachBatch(callback)


folder, a, b = sys.argv[1:]
own = OWN_CHECKPOINTS if "OWN_CHECKPOINTS" in os.environ else {}
spark = new_session("crash", settings=own)
numbers = read_numbers(spark, folder).repartition(2)
way = by_data_source if "DATA_SOURCE" in os.environ else by_foreach_batch
started(way(numbers), f"{folder}/checkpoint").awaitTermination()
spark.stop()
