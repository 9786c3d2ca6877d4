"""Spark jobs of a batch, as Spark's own event log has them.

The queries have no shuffle: for each of those Spark runs a job of its own, before it
calls us with the batch.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.counts.count import Count, Expected
from bench.served import application, serving
from tracing_2pc import ParticipantSink
from tracing_2pc.participant import TaggedRows
from tracing_2pc.spark import two_phase_commit

NAMES: Final = ("a", "b")
FILES: Final = {
    "rows": '{"value": 1}\n{"value": 2}\n',
    "no rows": "\n",
    "no partitions": "",
    "rows after that": '{"value": 3}\n',
}
"""What each batch has, and the file it is read from."""

PLAIN: Final = Expected(
    1,
    "the tasks write, vote and return receipts in one action: another would write "
    "again",
)
ROUTED: Final = Expected(
    1 + len(NAMES),
    "one computes the batch, once; each route is an action of its own over that",
)
ROUTED_NOTHING: Final = Expected(
    len(NAMES), "a batch without partitions has nothing to compute"
)


def counts(folder: Path) -> Iterator[Count]:
    """Count the jobs of each batch of two queries: without routes, and with two."""
    queries = _run(folder)
    started = _jobs(folder / "events")
    for what, usual in (("no routes", PLAIN), ("two routes", ROUTED)):
        for batch, has in enumerate(FILES):
            actual = started[queries[what], batch]
            nothing = usual is ROUTED and has == "no partitions"
            expected = ROUTED_NOTHING if nothing else usual
            yield expected.count(f"Spark jobs, {what}: batch of {has}", actual)


def _run(folder: Path) -> Mapping[str, str]:
    """Run both queries to their end; return their ids."""
    _write(folder / "in")
    spark = _session(folder / "events")
    try:
        with _participants(folder) as sink:
            same = dict.fromkeys(NAMES, lambda df: df)
            return {
                "no routes": _query(spark, sink, folder, "plain"),
                "two routes": _query(spark, sink, folder, "routed", routes=same),
            }
    finally:
        spark.stop()


def _query(
    spark: Any, sink: ParticipantSink, folder: Path, name: str, **options: Any
) -> str:
    write = two_phase_commit(
        sink, application=name, log=f"sqlite:///{folder / 'log.db'}", **options
    )
    numbers = spark.readStream.schema("value long").option("maxFilesPerTrigger", 1)
    query = (
        numbers.json(str(folder / "in"))
        .writeStream.option("checkpointLocation", str(folder / name))
        .trigger(availableNow=True)
        .foreachBatch(write)
        .start()
    )
    query.awaitTermination()
    return str(query.id)


def _write(folder: Path) -> None:
    folder.mkdir()
    for batch, text in enumerate(FILES.values()):
        file = folder / f"{batch}.json"
        file.write_text(text)
        os.utime(file, (1_600_000_000 + batch,) * 2)


@contextlib.contextmanager
def _participants(folder: Path) -> Iterator[ParticipantSink]:
    with contextlib.ExitStack() as stack:
        urls = {}
        for name in NAMES:
            rows = TaggedRows(f"sqlite:///{folder / name}.db", "numbers")
            stack.callback(rows.close)
            urls[name] = stack.enter_context(serving(application(rows)))
        yield ParticipantSink(urls, token=None)


def _session(events: Path) -> Any:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    events.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        builder = SparkSession.builder.master("local[2]").appName("counts")
        session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def _jobs(events: Path) -> collections.Counter[tuple[str, int]]:
    """Count the jobs that were started, by query and batch."""
    started: collections.Counter[tuple[str, int]] = collections.Counter()
    (log,) = events.iterdir()
    with log.open() as lines:
        for event in map(json.loads, lines):
            if event["Event"] == "SparkListenerJobStart":
                about = event["Properties"]
                query = about.get("sql.streaming.queryId", "")
                started[query, int(about.get("streaming.sql.batchId", -1))] += 1
    return started
