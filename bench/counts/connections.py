"""Connections of one process: opened once, and used for every transaction."""

from __future__ import annotations

import collections
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.counts.count import Count, Expected
from bench.driver import apply, coordinator, tasks
from bench.ledgers import ledgers
from bench.postgresql import listening
from bench.records import numbers
from tracing_2pc import TableSink
from tracing_2pc.store import open_log

NAMES: Final = ("a", "b")
TRANSACTIONS: Final = int(os.environ.get("COUNTS_TRANSACTIONS", "1000"))
"""The count is the same for fewer, which take less time."""
_MEMORY: Final = "/dev/shm"
_FEW: Final = 20
_SESSIONS: Final = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)
CONNECTIONS: Final = Expected(
    1, "a participant is asked one thing at a time, so one kept connection is enough"
)


def counts(folder: Path) -> Iterator[Count]:
    """Count the connections to participants that are served by gunicorn."""
    with _in_memory(folder) as place, ledgers(place, NAMES) as sink:
        log = open_log(f"sqlite:///{place / 'log.db'}")
        ports = [urlsplit(p.inner.url).port for p in sink.participants.values()]
        driver, write = coordinator(log, sink.participants), tasks(sink, [numbers(3)])
        opened = _connects()
        for batch in range(TRANSACTIONS):
            apply(driver, batch, write)
        actual = sum(opened[port] for port in ports)
        log.close()
    name = f"connections for {TRANSACTIONS} transactions, {len(NAMES)} participants"
    yield CONNECTIONS.count(name, actual, len(NAMES))
    yield _without_services(folder)


def _without_services(folder: Path) -> Count:
    """Count the sessions of a process that opens two tables of one server by itself."""
    import psycopg

    with listening() as url:
        tables = [TableSink(url, "numbers", name="a"), TableSink(url, "others")]
        participants = {n: p for t in tables for n, p in t.participants.items()}
        for table in tables:
            table.check("counts")
        log = open_log(f"sqlite:///{folder / 'embedded.db'}")
        driver = coordinator(log, participants)
        writes = [tasks(table, [numbers(3)]) for table in tables]
        for batch in range(_FEW):
            apply(driver, batch, lambda r: [c for write in writes for c in write(r)])
        log.close()
        with psycopg.connect(url) as connection:
            ((actual,),) = connection.execute(_SESSIONS).fetchall()
    name = f"sessions after {_FEW} transactions, {len(tables)} tables without services"
    return CONNECTIONS.count(name, actual, len(tables))


@contextlib.contextmanager
def _in_memory(folder: Path) -> Iterator[Path]:
    """Give a folder that no disk is behind, where there is one: flushes cost time."""
    if not os.access(_MEMORY, os.W_OK):
        yield folder
        return
    with tempfile.TemporaryDirectory(dir=_MEMORY, prefix="tpc-counts-") as place:
        yield Path(place)


def _connects() -> collections.Counter[int | None]:
    """Count by port, from now on, the connections that this process opens.

    Python tells an audit hook of every one; a hook stays until the process ends.
    """
    opened: collections.Counter[int | None] = collections.Counter()

    def hear(event: str, about: tuple[Any, ...]) -> None:
        if event == "socket.connect" and isinstance(about[1], tuple):
            opened[about[1][1]] += 1

    sys.addaudithook(hear)
    return opened
