"""A job on a cluster whose batch is another one whenever it is computed, to a and b.

routed_job.py MASTER JOB

Between the routes it waits until FOLDER/go-on is there.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster_job import Job
from standalone import APPLICATION
from support.spark import new_session, started
from support.waiting import until

from tracing_2pc.spark import two_phase_commit


def some_rows(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch.take([n for n in range(batch.num_rows) if random.random() < 0.5])


def after_a(df: Any) -> Any:
    folder = Path(job.folder)
    (folder / "between-routes").touch()
    until((folder / "go-on").exists)
    return df


job = Job(**json.loads(sys.argv[2]))
spark = new_session("routed", sys.argv[1], APPLICATION)
numbers = spark.readStream.schema("value long").json(f"{job.folder}/in")
callback = two_phase_commit(
    job.sink(),
    application=job.application,
    log=job.log,
    routes={"a": lambda df: df, "b": after_a},
)
some = numbers.repartition(4).mapInArrow(some_rows, "value long")
writer = some.writeStream.foreachBatch(callback)
started(writer, f"{job.folder}/ck").awaitTermination()
spark.stop()
