"""What the Spark tests share: a small session, sources, participants to look at."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support import spark_defaults

spark_defaults.use()
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

ROWS = 10
"""Rows in a batch: batch n holds n * 10 to n * 10 + 9."""


def new_session(
    name: str, master: str = "local[2,2]", settings: Mapping[str, str] | None = None
) -> Any:
    from pyspark.sql import SparkSession

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        return (
            SparkSession.builder.appName(name)
            .master(master)
            .config(map=dict(settings or {}))
            .getOrCreate()
        )


def numbers_of(batches: int) -> Counter[int]:
    """Return what each participant must hold after so many batches, each once."""
    return Counter(range(ROWS * batches))


def write_numbers(folder: Path, batches: range) -> None:
    """Write the source: one file a batch, read in this order."""
    (folder / "in").mkdir(parents=True, exist_ok=True)
    for batch in batches:
        lines = [f'{{"value": {ROWS * batch + n}}}' for n in range(ROWS)]
        file = folder / "in" / f"{batch}.json"
        file.write_text("\n".join(lines))
        os.utime(file, (1_600_000_000 + batch, 1_600_000_000 + batch))


def read_numbers(spark: Any, folder: Path | str) -> Any:
    """Stream the source, a file a batch."""
    reader = spark.readStream.schema("value long").option("maxFilesPerTrigger", 1)
    return reader.json(f"{folder}/in")


def started(writer: Any, checkpoint: Path | str) -> Any:
    """Start a query that ends with its source."""
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def held(database: Path) -> Counter[int]:
    """Return what a reader of a participant's table sees."""
    if not database.exists():
        return Counter()
    with contextlib.closing(sqlite3.connect(database)) as file:
        try:
            return Counter(v for (v,) in file.execute("SELECT value FROM numbers"))
        except sqlite3.OperationalError:
            return Counter()


@contextlib.contextmanager
def serving(app: Any, port: int = 0) -> Iterator[str]:
    """Serve an application from a thread; yield its URL."""
    from werkzeug.serving import make_server

    from support.served import served

    with served(make_server("127.0.0.1", port, app, threaded=True)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def serve_numbers(stack: contextlib.ExitStack, folder: Path, **asked: Any) -> list[str]:
    """Serve a and b, each with its file, to the stack's end; return the URLs."""
    from support.service import create_app

    urls = []
    for name in "ab":
        app = create_app(f"sqlite:///{folder / name}.db", asked.get("tokens"))
        stack.callback(app.extensions["resource"].close)
        app.after_request(asked.get("note", lambda answer: answer))
        urls.append(stack.enter_context(serving(app)))
    return urls
