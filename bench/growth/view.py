"""Readers of a ledger's view, when its journal has seen ten million transactions.

A participant forgets with the log: what is left in its journal is what the log keeps,
by default seven days of finished transactions, which is 60,480 at one in ten seconds.
Both ledgers hold the same rows, which the library has written in one transaction. The
journal of one of them is then filled as it is after so many: by SQL, like the one
transaction that is there. Their tags have been hidden and shown again, and the rows
belong to all of them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import sqlalchemy as sa

from bench import pair
from bench.driver import APPLICATION, apply, coordinator, tasks
from bench.goals import GOALS
from bench.growth.finished import repeat
from bench.growth.sizes import Sizes
from bench.ledgers import running
from bench.postgresql import NewDatabase
from bench.records import orders
from bench.stored import LEDGER
from tracing_2pc import ParticipantSink
from tracing_2pc.store import open_log

_GOAL: Final = "I12-view"
_QUERIES: Final = 10
"""In a block."""


def measure(
    folder: Path, new_database: NewDatabase, sizes: Sizes
) -> Iterator[dict[str, Any]]:
    """Yield a line for the goal."""
    databases = {"empty": new_database(), "kept": new_database()}
    folder = folder / "view"
    folder.mkdir()
    with running(folder, databases) as ledgers:
        sink = ParticipantSink(ledgers.urls, token=ledgers.token)
        with contextlib.closing(open_log(f"sqlite:///{folder / 'log.db'}")) as log:
            driver = coordinator(log, sink.participants)
            apply(driver, 0, tasks(sink, [orders(sizes.view_rows)]))
    _fill(databases["kept"], sizes.looking[0], sizes.kept)
    with contextlib.ExitStack() as stack:
        arms = {}
        for name, url in databases.items():
            connection = stack.enter_context(psycopg.connect(url, autocommit=True))
            connection.execute("VACUUM FULL ANALYZE")
            connection.execute("CHECKPOINT")
            arms[name] = _block(connection, sizes.view_rows)
        seconds = pair.measure(arms, sizes.rounds)
    ratio = pair.compare(seconds["kept"], seconds["empty"])
    settings = {
        "finished": sizes.looking[0],
        "kept": sizes.kept,
        "rows": sizes.view_rows,
    }
    yield pair.line(_GOAL, ratio, GOALS[_GOAL].limit, settings)


def _block(connection: psycopg.Connection[Any], rows: int) -> pair.Block:
    asking = f"SELECT count(*), sum(amount) FROM {LEDGER[0]}"

    def block() -> float:
        started = time.perf_counter()
        for _ in range(_QUERIES):
            ((count, _),) = connection.execute(asking).fetchall()
        elapsed = time.perf_counter() - started
        if count != rows:
            raise RuntimeError(f"{LEDGER[0]} has {count} of {rows} rows")
        return elapsed

    return block


def _fill(url: str, finished: int, kept: int) -> None:
    """Leave in a journal what is there after so many transactions; forget the first."""
    name = LEDGER[0]
    branch, hidden = f"{name}_tpc_branch", f"{name}_tpc_hidden"
    first = finished - kept  # that is not forgotten
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:

        def sql(text: str) -> None:
            connection.exec_driver_sql(text)

        sql(f"SELECT setval(pg_get_serial_sequence('{branch}', 'tag'), {first})")
        metadata = sa.MetaData()
        metadata.reflect(connection)
        batch = {"batch": f"{first - 1} + n"}
        for table in (f"{name}_tpc_transaction", branch):
            # The branch's tag comes from its counter.
            columns = [c.name for c in metadata.tables[table].c if c.name != "tag"]
            repeat(connection, table, columns, batch, "batch = 0", kept)
        sql(f"INSERT INTO {hidden} (tag) SELECT tag FROM {branch} WHERE batch > 0")
        sql(f"DELETE FROM {hidden}")
        for table in (f"{name}_tpc_transaction", branch):
            sql(f"DELETE FROM {table} WHERE batch = 0")
        sql(f"UPDATE {name}_tpc_application SET forgotten_through = {first - 1}")
        sql(f"UPDATE {LEDGER[1]} SET tpc_tag = {first + 1} + mod(id, {kept})")
        if connection.scalar(sa.text(f"SELECT count(*) FROM {branch}")) != kept:
            raise RuntimeError(f"{branch} of {APPLICATION} has not {kept} branches")
    engine.dispose()
