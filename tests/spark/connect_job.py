"""A client of Spark Connect: files of numbers to a and b.

connect_job.py URL FOLDER A_URL B_URL

By foreachBatch if CALLBACK is in its environment, else by the data source. With TWICE
the callback is called for the even numbers of a batch, and then for the odd ones.
With STOP the query is stopped when that file is there. CHECKPOINT is the checkpoint's
name, B another URL of b. With DATAFRAME it writes ten numbers by `df.write`, no stream.
"""

import os
import sys
import time
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.errors.exceptions.connect import SparkException
from pyspark.sql import SparkSession
from support.waiting import PAUSE

from tracing_2pc import ParticipantSink
from tracing_2pc.spark import two_phase_commit


def by_callback(numbers):
    callback = two_phase_commit(
        ParticipantSink({"a": a, "b": b}, token=None),
        application="connect",
        log=f"sqlite:///{folder}/log.db",
    )

    def twice(df, batch):
        callback(df.where("value % 2 = 0"), batch)
        callback(df.where("value % 2 = 1"), batch)

    return numbers.writeStream.foreachBatch(
        twice if "TWICE" in os.environ else callback
    )


def by_data_source(numbers):
    return as_data_source(numbers.writeStream)


def as_data_source(writer):
    from tracing_2pc.spark import TwoPhaseCommitDataSource  # of PySpark 4.1 or newer

    spark.dataSource.register(TwoPhaseCommitDataSource)
    return writer.format("two_phase_commit").options(
        application="connect",
        log=f"sqlite:///{folder}/log.db",
        participants=f"a={a},b={b}",
        token="",
        inline_tries="2",
    )


url, folder, a, b = sys.argv[1:]
b = os.environ.get("B", b)
spark = SparkSession.builder.remote(url).getOrCreate()
if "DATAFRAME" in os.environ:
    numbers = spark.range(0, 10, 1, 2).toDF("value")
    as_data_source(numbers.write).option("batch", "0").mode("append").save()
    sys.exit()
numbers = (
    spark.readStream.schema("value long")
    .option("maxFilesPerTrigger", 1)
    .json(f"{folder}/in")
    .repartition(2)
)
way = by_callback if "CALLBACK" in os.environ else by_data_source
checkpoint = f"{folder}/{os.environ.get('CHECKPOINT', 'checkpoint')}"
stream = way(numbers).option("checkpointLocation", checkpoint)
for attempt in range(30):
    try:
        query = stream.trigger(availableNow=True).start()
        if "STOP" in os.environ:
            while query.isActive and not Path(os.environ["STOP"]).exists():
                time.sleep(PAUSE)
            query.stop()
        query.awaitTermination()
        assert query.exception() is None
        break
    except (SparkException, StreamingQueryException) as error:
        # Spark gives a Python worker ten seconds, no more.
        if "failed to connect back" not in str(error) or attempt == 29:
            raise
assert "SparkContext" not in str(type(spark)), "this is no client of Connect"
