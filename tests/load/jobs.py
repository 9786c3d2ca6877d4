"""Streaming queries without Spark: a real coordinator, one task a batch, over HTTP."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from support.service import create_app
from support.spark import serving
from support.waiting import AT_ONCE, PATIENT
from werkzeug.exceptions import NotFound
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.core.model import Receipt, TransactionRecord
from tracing_2pc.core.ports import DecisionLog
from tracing_2pc.sinks.job import Job
from tracing_2pc.testing.sink_job import Tasks
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

SETTINGS = Settings(keep_finished=AT_ONCE, backoff_base=AT_ONCE)


@dataclasses.dataclass(frozen=True)
class Query:
    """Writes one row a batch: its number, above `first`."""

    application: str
    log: DecisionLog
    urls: Mapping[str, str]
    first: int = 0

    def run(self, batches: range) -> None:
        """Apply them, as one life of the query."""
        sink = ParticipantSink(self.urls, token=None, timeout=PATIENT)

        def write(record: TransactionRecord) -> list[Receipt]:
            row = {"value": self.first + record.id.batch}
            return list(Tasks(sink, record).write("0.0", [row]))

        job = Job(sink, self.application, SETTINGS)
        coordinator = job.coordinator(self.log, OpenTelemetryTracing(), lambda: False)
        about = {"run": f"run-{batches.start}", "query": self.application}
        for batch in batches:
            coordinator.apply(batch, write=write, cancel=lambda _: None, **about)


@contextlib.contextmanager
def participants(databases: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Serve one for each database, all at one port; yield their URLs by name."""
    # pytest keeps each line, and a day of requests is many of them.
    lines = logging.getLogger("werkzeug")
    lines.setLevel(logging.WARNING)
    with contextlib.ExitStack() as stack:
        stack.callback(lines.setLevel, logging.NOTSET)
        apps: dict[str, Any] = {}
        for name, url in databases.items():
            apps[f"/{name}"] = app = create_app(url)
            stack.enter_context(contextlib.closing(app.extensions["resource"])).open()
        at = stack.enter_context(serving(DispatcherMiddleware(NotFound(), apps)))
        yield {name: f"{at}/{name}" for name in databases}


@contextlib.contextmanager
def reading(url: str) -> Iterator[sa.Connection]:
    """Connect beside everything, for SQL of one's own."""
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def counts(url: str) -> dict[str, int]:
    """Count the rows of each table."""
    with reading(url) as connection:
        names = sa.inspect(connection).get_table_names()
        ask = connection.exec_driver_sql
        return {n: ask(f'SELECT count(*) FROM "{n}"').scalar_one() for n in names}


def values(url: str) -> list[int]:
    """Read what a participant's readers see."""
    with reading(url) as connection:
        rows = connection.exec_driver_sql("SELECT value FROM numbers ORDER BY value")
        return [value for (value,) in rows]


def states(url: str) -> dict[tuple[str, str], int]:
    """Count a log's transactions by application and state."""
    text = "SELECT application, state, count(*) FROM tpc_transaction GROUP BY 1, 2"
    with reading(url) as connection:
        rows = connection.exec_driver_sql(text).all()
    return {(application, state): count for application, state, count in rows}


def files(folder: Path, count: int) -> dict[str, str]:
    """Return so many names, each with a SQLite file."""
    return {f"p{n}": f"sqlite:///{folder}/p{n}.db" for n in range(count)}
