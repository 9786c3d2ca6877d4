"""SQLite: one writer at a time, so a body is on disk before the database is locked.

The file it is spooled to, beside the database, is also the proof of life: its
writer holds an flock on it, which the kernel drops when the process dies.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.participant.body import CHUNK, Body, Source

_ERROR: Final = 1
"""SQLite's code for a statement that does not fit its tables."""


class SQLite:
    """`database.Database` on SQLite: WAL, `synchronous=FULL` for what is promised.

    Args:
        url: of a file; a relative one is relative to the working directory.
    """

    def __init__(self, url: sa.URL) -> None:
        if not url.database or url.database == ":memory:":
            raise ConfigurationError("sqlite: name a file; a vote must survive a crash")
        self._file = Path(url.database).absolute()
        url = url.set(database=str(self._file))
        self.engine = sa.create_engine(url, pool_size=8, max_overflow=56)
        sa.event.listen(self.engine, "connect", _prepare_session)
        sa.event.listen(self.engine, "begin", _begin)

    @property
    def driver(self) -> Any:
        """The module whose errors `load` raises."""
        return sqlite3

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that only reads, and waits for nobody."""
        with self.engine.connect() as connection:
            yield connection

    def decide(self, application: str) -> AbstractContextManager[Connection]:
        """Open a durable transaction; SQLite has one writer."""
        return self._write("FULL")

    def note(self, application: str) -> AbstractContextManager[Connection]:
        """Open a transaction that costs no flush."""
        return self._write("NORMAL")

    @contextmanager
    def setup(self) -> Iterator[Connection]:
        """Open the transaction in which tables and views are made."""
        with self.engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None  # noqa: S101 - it has just been opened
            driver.execute("PRAGMA journal_mode=WAL")
        for left in self._file.parent.glob(f"{self._file.name}-tpc-*.spool"):
            _locked(left)
        with self._write("FULL") as connection:
            yield connection

    @contextmanager
    def _write(self, synchronous: str) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            connection.execution_options(tpc_synchronous=synchronous)
            with connection.begin():
                yield connection

    @contextmanager
    def writer(self) -> Iterator[SQLiteWriter]:
        """Open an upload: a file that is locked while this process lives."""
        owner, file = self._claim_file()
        with file:
            try:
                yield SQLiteWriter(self, owner, file)
            finally:
                self._spool(owner).unlink(missing_ok=True)

    def _claim_file(self) -> tuple[int, IO[bytes]]:
        while True:
            owner = secrets.randbits(62)
            path = self._spool(owner)
            file = path.open("x+b")
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, path):
                return owner, file
            file.close()  # taken for a dead writer's before it was locked

    def _spool(self, owner: int) -> Path:
        return self._file.with_name(f"{self._file.name}-tpc-{owner:016x}.spool")

    def alive(self, connection: Connection, writers: set[int]) -> set[int]:
        """Return the writers whose file is still locked; remove what others left."""
        return {owner for owner in writers if _locked(self._spool(owner))}

    def load(
        self,
        connection: Connection,
        table: str,
        names: list[str],
        batches: Iterable[Any],
    ) -> int:
        """Insert batches column-wise."""
        quote = self.engine.dialect.identifier_preparer.quote
        columns = ", ".join(map(quote, names))
        marks = ", ".join("?" * len(names))
        statement = f"INSERT INTO {quote(table)} ({columns}) VALUES ({marks})"  # noqa: S608 - quoted
        driver = connection.connection.driver_connection
        assert driver is not None  # noqa: S101 - a transaction is open on it
        rows = 0
        for batch in batches:
            values = [_values(column) for column in batch.columns]
            driver.executemany(statement, zip(*values, strict=True))
            rows += batch.num_rows
        return rows

    def refusal(self, error: Exception) -> str | None:
        """Say why an error of `load` comes every time; None if it may be over later."""
        code = getattr(error, "sqlite_errorcode", None)  # from Python 3.11 on
        return "a column is no longer there" if code == _ERROR else None

    def delete_slice(
        self, connection: Connection, table: str, tag: int, limit: int
    ) -> int:
        """Delete some rows of a tag, from the end, where aborted rows lie.

        All of them where the table leaves no name for a row's number.
        """
        name = self.engine.dialect.identifier_preparer.quote(table)
        sql = f"DELETE FROM {name} WHERE tpc_tag = :tag"  # noqa: S608 - quoted
        if number := _row_number(connection, table):
            some = (
                f"SELECT {number} FROM {name} WHERE tpc_tag = :tag "  # noqa: S608 - quoted
                f"ORDER BY {number} DESC LIMIT :limit"
            )
            sql += f" AND {number} IN ({some})"
        statement = sa.text(sql)
        return connection.execute(statement, {"tag": tag, "limit": limit}).rowcount

    def now(self) -> sa.ColumnElement[float]:
        """Return the clock as SQLite reads it."""
        return (sa.func.julianday("now") - 2440587.5) * 86400.0


class SQLiteWriter:
    """`database.Writer`: the body is whole and verified before a lock is taken."""

    def __init__(self, database: SQLite, owner: int, file: IO[bytes]) -> None:
        self._database = database
        self._file = file
        self.owner = owner

    def note(self, application: str) -> AbstractContextManager[Connection]:
        """Open the short transaction that puts the claim on record."""
        return self._database.note(application)

    def receive(self, body: Body) -> Source:
        """Spool the body and verify its digest."""
        shutil.copyfileobj(body, self._file, CHUNK)
        body.verify()
        self._file.seek(0)
        return Source(self._file, body.content_type, body.length)

    def write(self) -> AbstractContextManager[Connection]:
        """Open the durable transaction that the rows go into."""
        return self._database.decide("")

    def aside(self) -> AbstractContextManager[Connection]:
        """Open a transaction that costs no flush."""
        return self._database.note("")

    def share(self, connection: Connection, application: str) -> None:
        """Do nothing: the database is locked."""


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _row_number(connection: Connection, table: str) -> str | None:
    """Return SQLite's name for a row's number that no column has taken."""
    columns = sa.text("SELECT lower(name) FROM pragma_table_info(:table)")
    taken = set(connection.execute(columns, {"table": table}).scalars())
    without = sa.text(
        "SELECT 1 FROM sqlite_master WHERE name = :table AND sql LIKE '%without%rowid%'"
    )
    if connection.execute(without, {"table": table}).first():
        return None
    return next((n for n in ("rowid", "oid", "_rowid_") if n not in taken), None)


def _values(column: pa.Array) -> list[Any]:
    """Return a column as SQLite stores it: no datetime, no decimal, no lost NaN.

    Its integers have 63 bits and a sign.
    """
    kind = column.type
    if pa.types.is_floating(kind):
        return [v if v == v else "NaN" for v in column.to_pylist()]
    as_text = (pa.types.is_temporal, pa.types.is_decimal, pa.types.is_uint64)
    if any(is_kind(kind) for is_kind in as_text):
        column = pc.cast(column, pa.string())
    values: list[Any] = column.to_pylist()
    return values


def _prepare_session(driver: Any, _: object) -> None:
    driver.isolation_level = None  # we say BEGIN ourselves
    driver.execute("PRAGMA busy_timeout=10000")


def _begin(connection: Connection) -> None:
    wanted = connection.get_execution_options().get("tpc_synchronous")
    if wanted is None:
        connection.exec_driver_sql("BEGIN")
        return
    connection.exec_driver_sql(f"PRAGMA synchronous={wanted}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")
