"""What the tables of a decision log hold, how they are read, and who waits for them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tracing_2pc.core.model import Receipt, TransactionRecord
from tracing_2pc.core.ports import DecisionLog
from tracing_2pc.core.states import Decision
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.store.engines.database import Database
from tracing_2pc.store.log import statements

WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@contextlib.contextmanager
def locked(base: Database, application: str) -> Iterator[sa.Connection]:
    """Hold an application's lock as a driver does that is under way."""
    with base.write() as connection:
        stay(connection)
        connection.execute(statements.LOCK_APPLICATION, {"of": application})
        yield connection


def stay(connection: sa.Connection) -> None:
    """Let the server keep an open transaction, however long nothing is asked in it."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")


@contextlib.contextmanager
def lock_waits(base: Database) -> Iterator[Callable[[], bool]]:
    """Say whether somebody waits for a lock that somebody else holds.

    PostgreSQL tells. In SQLite a transaction that has asked for the one lock, and has
    not got it, waits if nobody can have it now.
    """
    asked: list[sa.Connection] = []

    def ask(by: sa.Connection, _: object, statement: str, *__: object) -> None:
        if statement == "BEGIN IMMEDIATE":
            asked.append(by)

    def get(by: sa.Connection, _: object, statement: str, *__: object) -> None:
        if statement == "BEGIN IMMEDIATE":
            asked.remove(by)

    def waits() -> bool:
        if base.url.get_backend_name() == "postgresql":
            with base.read() as connection:
                return bool(connection.exec_driver_sql(WAITING).scalar())
        path = str(base.url.database)
        with contextlib.closing(sqlite3.connect(path, timeout=0)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return bool(asked)
        return False

    sa.event.listen(base.engine, "before_cursor_execute", ask)
    sa.event.listen(base.engine, "after_cursor_execute", get)
    yield waits
    sa.event.remove(base.engine, "before_cursor_execute", ask)
    sa.event.remove(base.engine, "after_cursor_execute", get)


def explain(base: Database, statement: sa.Executable, values: dict[str, Any]) -> str:
    """Return the plan of a statement, as text."""
    sqlite = base.url.get_backend_name() == "sqlite"
    verb = "EXPLAIN QUERY PLAN" if sqlite else "EXPLAIN"

    def ask(_: object, __: object, text: str, parameters: Any, *___: object) -> Any:
        asked = text if text.startswith("BEGIN") else f"{verb} {text}"
        return asked, parameters

    with base.read() as connection:
        sa.event.listen(connection, "before_cursor_execute", ask, retval=True)
        return "\n".join(map(str, connection.execute(statement, values).all()))


def decide(
    log: DecisionLog,
    record: TransactionRecord,
    wanted: Decision,
    receipts: Sequence[Receipt] = (),
) -> TransactionRecord:
    """Decide about what is on record; return what the log then has."""
    decided = log.decide(record.id, wanted, receipts)
    assert decided is not None
    return decided


def fill(
    base: Database,
    count: int,
    state: str,
    decision: str | None = None,
    *,
    of: str = "orders",
    first: int = 1,
    finished: str = "1",
) -> None:
    """Put so many transactions into a log, finished ones, from batch 1 on."""
    made = f"{decision!r}" if decision else "NULL"
    filler = (
        "INSERT INTO tpc_transaction (id, application, batch, attempt, run, state,"
        f" decision, started, finished, carrier, checksum) WITH RECURSIVE n(i) AS"
        f" (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {first + count - 1})"
        f" SELECT '{of}.' || i || '.1', '{of}', i, 1, 'r', '{state}', {made}, 1,"
        f" {finished}, '{{}}', 'x' FROM n"
    )
    with base.write() as connection:
        assert connection.exec_driver_sql(filler).rowcount == count


def count_committed(log: SqlDecisionLog, application: str) -> int:
    """Count the transactions of an application that are committed everywhere."""
    statement = sa.text(
        "SELECT count(*) FROM tpc_transaction WHERE application = :of"
        " AND state = 'committed'"
    )
    with log._database.read() as connection:
        return int(connection.scalar(statement, {"of": application}) or 0)


def copy_database(source: Path, target: Path) -> None:
    """Copy what is committed now, also while it is in use; the target is replaced."""
    with (
        contextlib.closing(sqlite3.connect(source)) as read,
        contextlib.closing(sqlite3.connect(target)) as written,
    ):
        read.backup(written)
