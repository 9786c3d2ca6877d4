"""A job for the crash tests: numbers to a service, and to a folder by a sink of one's
own and another by `FileSink`, in one transaction.

composite_job.py FOLDER A_URL
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["TPC_FAILPOINT_GROUP"] = str(os.getpgrp())

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from support.spark import new_session

from tracing_2pc import FileSink, ParticipantSink, Settings, traced_sink
from tracing_2pc.spark import two_phase_commit


@traced_sink
class Folder:
    """A file per branch: written aside, durable before the vote, moved at commit."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name

    def begin(self, context: Any) -> dict[str, Any]:
        id_ = str(context.transaction_id)
        return {"transaction": id_, "file": f"{context.branch}.json", "rows": []}

    def invoke(self, handle: dict[str, Any], record: dict[str, Any]) -> None:
        handle["rows"].append(record["value"])

    def pre_commit(self, handle: dict[str, Any]) -> None:
        aside = self._aside(handle)
        aside.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("w") as file:
            json.dump(handle.pop("rows"), file)
            file.flush()
            os.fsync(file.fileno())

    def commit(self, handle: dict[str, Any]) -> None:
        visible = self.path / f"{handle['transaction']}-{handle['file']}"
        if not visible.exists():
            self._aside(handle).rename(visible)

    def abort(self, handle: dict[str, Any]) -> None:
        self._aside(handle).unlink(missing_ok=True)

    def abort_transaction(
        self, transaction_id: str, keep: Sequence[dict[str, Any]]
    ) -> None:
        kept = {handle["file"] for handle in keep}
        for file in (self.path / ".tpc" / transaction_id).glob("*.json"):
            if file.name not in kept:
                file.unlink()

    def _aside(self, handle: dict[str, Any]) -> Path:
        return self.path / ".tpc" / str(handle["transaction"]) / str(handle["file"])


folder, a = Path(sys.argv[1]), sys.argv[2]
spark = new_session("composite")
numbers = (
    spark.readStream.schema("value long")
    .option("maxFilesPerTrigger", 1)
    .json(f"{folder}/in")
    .repartition(2)
    .withColumn("part", F.col("value") % 2)
)
query = (
    numbers.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .foreachBatch(
        two_phase_commit(
            [
                ParticipantSink({"a": a}, token=None),
                Folder(folder / "out", name="own"),
                FileSink(folder / "parquet", partition_by="part"),
            ],
            application="composite",
            log=f"sqlite:///{folder}/log.db",
            settings=Settings(backoff_cap=2.0),
        )
    )
    .start()
)
query.awaitTermination()
spark.stop()
