"""A client of Spark Connect: files of numbers to a and b, by the data source.

connect_job.py URL FOLDER A_URL B_URL

With STOP in its environment it stops the query as soon as the first batch is planned.
"""

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from tracing_2pc.spark import TwoPhaseCommitDataSource

url, folder, a, b = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
spark.dataSource.register(TwoPhaseCommitDataSource)
query = (
    spark.readStream.schema("value long")
    .option("maxFilesPerTrigger", 1)
    .json(f"{folder}/in")
    .repartition(2)
    .writeStream.format("two_phase_commit")
    .options(
        application="connect",
        log=f"sqlite:///{folder}/log.db",
        participants=f"a={a},b={b}",
        token="",
    )
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
if "STOP" in os.environ:
    while not Path(folder, "checkpoint", "offsets", "0").exists():
        time.sleep(0.05)
    query.stop()
query.awaitTermination()
assert query.exception() is None
assert "SparkContext" not in str(type(spark)), "this is no client of Connect"
