"""A job on a cluster whose batch is another one whenever it is computed, to a and b.

routed_job.py FOLDER MASTER A_URL B_URL

Between the routes it waits until FOLDER/go-on is there.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from support.spark import new_session
from support.waiting import until

from tracing_2pc import ParticipantSink
from tracing_2pc.spark import two_phase_commit


def some_rows(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch.take([n for n in range(batch.num_rows) if random.random() < 0.5])


def after_a(df: Any) -> Any:
    (folder / "between-routes").touch()
    until((folder / "go-on").exists, seconds=300)
    return df


folder, master = Path(sys.argv[1]), sys.argv[2]
spark = new_session("routed", master)
numbers = spark.readStream.schema("value long").json(f"{folder}/in")
query = (
    numbers.repartition(4)
    .mapInArrow(some_rows, "value long")
    .writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .foreachBatch(
        two_phase_commit(
            ParticipantSink(dict(zip("ab", sys.argv[3:], strict=True)), token=None),
            application="routed",
            log=f"sqlite:///{folder}/log.db",
            routes={"a": lambda df: df, "b": after_a},
        )
    )
    .start()
)
query.awaitTermination()
spark.stop()
