"""The job: orders from files, a batch at each tick. `spark-submit orders.py FOLDER`.

Addresses, token and log are settings: the same program runs on every platform.
"""

import logging
import sys

from pyspark.sql import SparkSession

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.spark import two_phase_commit
from tracing_2pc.tracing.sdk.log_records import write_to_stderr

write_to_stderr()
logging.getLogger("tracing_2pc").setLevel(logging.INFO)
folder, settings = sys.argv[1], Settings.load()
sink = ParticipantSink(settings.participants, token=settings.token)
spark = SparkSession.builder.getOrCreate()
orders = spark.readStream.schema("id long, amount double").json(f"{folder}/in")
query = (
    orders.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(processingTime="10 seconds")
    .foreachBatch(two_phase_commit(sink, application="orders", settings=settings))
    .start()
)
query.awaitTermination()
