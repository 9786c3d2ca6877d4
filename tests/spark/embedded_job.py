"""A job without services: python embedded_job.py MASTER FOLDER DATABASE.

Numbers to the table `numbers` and a folder: by foreachBatch with routes, where the
folder gets the even ones, by the data source, and by `df.write`. No token is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from support.spark import new_session, read_numbers, started

from tracing_2pc import FileSink, TableSink
from tracing_2pc.spark import TwoPhaseCommitDataSource, two_phase_commit

master, folder, database = sys.argv[1:]


def sinks(of: str) -> list:
    return [TableSink(database, f"by_{of}", key="value", name="numbers"), folder_of(of)]


def folder_of(of: str) -> FileSink:
    return FileSink(Path(folder) / f"by_{of}", name="out")


class Numbers(TwoPhaseCommitDataSource):
    """Writes to a table and a folder."""

    own_options = ("of",)

    def sink(self, settings):
        return sinks(self.options["of"])


spark = new_session("embedded", master, {"spark.executor.memory": "1g"})
numbers = read_numbers(spark, folder).repartition(2)
log = f"sqlite:///{folder}/log.db"
callback = two_phase_commit(
    sinks("callback"),
    application="callback",
    log=log,
    routes={"numbers": lambda df: df, "out": lambda df: df.where("value % 2 = 0")},
)
query = started(numbers.writeStream.foreachBatch(callback), f"{folder}/ck-callback")
query.awaitTermination()
spark.dataSource.register(Numbers)


def by_data_source(writer, of: str):
    return writer.format("two_phase_commit").options(
        application=of, log=log, of=of, token=""
    )


writer = by_data_source(numbers.writeStream, "source")
started(writer, f"{folder}/ck-source").awaitTermination()
frame = spark.range(0, 20, 1, 4).toDF("value")
by_data_source(frame.write, "frame").mode("append").save()
spark.stop()
