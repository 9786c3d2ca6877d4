"""A job that writes numbers to what a round's plan names: python mixed_job.py FOLDER.

`plan.json` there says by which way, and to which services, folders and tables.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable

from support.folder_sink import Folder
from support.spark import new_session, read_numbers
from support.waiting import PAUSE

from participants.job import tick
from tracing_2pc import DeltaSink, FileSink, ParticipantSink
from tracing_2pc.core.errors import RejectedRowsError
from tracing_2pc.core.model import RejectedRow
from tracing_2pc.core.settings import Settings
from tracing_2pc.spark import TwoPhaseCommitDataSource, two_phase_commit

FOLDER = Path(sys.argv[1])
PLAN = json.loads((FOLDER / "plan.json").read_text())
ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
COLUMNS = "value", "value % 3 AS part", "value % 10 AS slot"


class Picky(Folder):
    """Refuses some numbers."""

    def __init__(self, path, name, which):
        super().__init__(path, name)
        self.which = which

    def pre_commit(self, handle):
        x, y, z = self.which
        odd = [n for n, value in enumerate(handle["rows"]) if value * x % y == z]
        if odd:
            raise RejectedRowsError([RejectedRow(n, "value", "odd") for n in odd])
        super().pre_commit(handle)


def sinks(plan, folder, services):
    which = plan["refuses"]
    made = {
        "parquet": lambda: FileSink(folder / "parquet", "parquet", "part", "parquet"),
        "lines": lambda: FileSink(folder / "lines", "json", name="lines"),
        "delta": lambda: DeltaSink(folder / "delta"),
        "own": lambda: (
            Picky(folder / "own", "own", which)
            if which
            else Folder(folder / "own", "own")
        ),
    }
    return [services, *(made[name]() for name in plan["places"])]


class Mixed(TwoPhaseCommitDataSource):
    own_options = ("folder", "plan")

    @classmethod
    def name(cls):
        return "mixed"

    def sink(self, settings):
        plan = json.loads(self.options["plan"])
        return sinks(plan, Path(self.options["folder"]), super().sink(settings))


def about(**more):
    participants = ",".join(f"{name}={url}" for name, url in PLAN["services"].items())
    given = {"application": "mixed", "log": PLAN["log"], "participants": participants}
    if PLAN["rejects"]:
        given["rejects"] = "rejected"
    return {**given, "folder": str(FOLDER), "plan": json.dumps(PLAN), **more}


def by_scheduler(spark):
    """Write a file at a time, as a scheduler that notes what it has done."""
    noted = FOLDER / "noted"
    while True:
        number = int(noted.read_text()) if noted.exists() else 0
        file = FOLDER / "in" / f"{number}.json"
        if file.exists():
            numbers = spark.read.schema("value long").json(str(file))
            write = numbers.repartition(2).selectExpr(*COLUMNS).write.format("mixed")
            write.options(**about(batch=str(number))).mode("append").save()
            new = FOLDER / f"noted.{os.getpid()}"
            new.write_text(str(number + 1))
            new.replace(noted)
        elif os.environ.get("DEMO_EVERY"):
            time.sleep(PAUSE)
        else:
            return


def by_stream(spark):
    numbers = read_numbers(spark, FOLDER)
    if PLAN["state"]:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS_DB)
        numbers = numbers.dropDuplicates(["value"])
    writer = numbers.repartition(2).selectExpr(*COLUMNS).writeStream
    if PLAN["way"] == "source":
        writer = writer.format("mixed").options(**about())
    else:
        services = ParticipantSink(PLAN["services"], token=Settings.load().token)
        names = [n for n in (*PLAN["services"], *PLAN["places"]) if n != "rejected"]
        routes = {name: lambda numbers: numbers.where("value >= 0") for name in names}
        callback = two_phase_commit(
            sinks(PLAN, FOLDER, services),
            application="mixed",
            log=PLAN["log"],
            routes=routes if PLAN["way"] == "routes" else None,
            rejects="rejected" if PLAN["rejects"] else None,
        )
        writer = writer.foreachBatch(callback)
    writer = writer.option("checkpointLocation", f"{FOLDER}/checkpoint")
    writer.trigger(**tick()).start().awaitTermination()


session = new_session("mixed", "local[2,4]", {"spark.sql.shuffle.partitions": "2"})
session.dataSource.register(Mixed)
(by_scheduler if PLAN["way"] == "scheduler" else by_stream)(session)
session.stop()
