"""SQLite: one writer at a time, so a body is on disk before the database is locked.

It is spooled to a file in the database's folder. Its writer holds an flock on that
file, which the kernel drops when the process ends: a locked file is a live writer.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.participant.body import CHUNK, Body, Source
from tracing_2pc.participant.journal.database import (
    LOCK_WAIT,
    Database,
    Definition,
    TableChangedError,
)
from tracing_2pc.store.engines.sqlite import open_sqlite

_ERROR: Final = 1
_MADE: Final = sa.text("SELECT sql FROM sqlite_master WHERE name = :name")
"""SQLite's code for a statement that does not fit its tables."""


class SQLite(Database):
    """`database.Database` on SQLite: each writing transaction excludes all others."""

    driver = sqlite3

    def __init__(self, url: sa.URL) -> None:
        connections = open_sqlite(
            url, "url", lock_wait=LOCK_WAIT, pool_size=8, max_overflow=56
        )
        super().__init__(connections)
        self._file = Path(str(self.engine.url.database))

    @contextmanager
    def hold(self, application: str) -> Iterator[Connection]:
        """Hold the exclusive lock: of a file, for all applications."""
        with self.file_lock(fcntl.LOCK_EX), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def file_lock(self, kind: int) -> Iterator[None]:
        """Hold a lock of a file; the end of the process drops it, too.

        Raises:
            OperationalError: another process has held it for too long.
        """
        until = time.monotonic() + LOCK_WAIT
        with self._file.with_name(f"{self._file.name}-tpc.lock").open("ab") as file:
            while True:
                try:
                    fcntl.flock(file, kind | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > until:
                        raise sa.exc.OperationalError("flock", None, error) from None
                    time.sleep(0.01)
            yield

    def setup(self) -> AbstractContextManager[Connection]:
        """Remove files of dead writers first."""
        for left in self._file.parent.glob(f"{self._file.name}-tpc-*.spool"):
            _locked(left)
        return super().setup()

    @contextmanager
    def writer(self) -> Iterator[_SQLiteWriter]:
        """Open an upload: a file that is locked while this process lives."""
        owner, file = self._claim_file()
        with file:
            try:
                yield _SQLiteWriter(self, owner, file)
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
            file.close()  # taken for a dead writer's file before it was locked

    def _spool(self, owner: int) -> Path:
        return self._file.with_name(f"{self._file.name}-tpc-{owner:016x}.spool")

    def alive(self, connection: Connection, writers: set[int]) -> set[int]:
        """Tell by the locks of their files; remove those of dead writers."""
        return {owner for owner in writers if _locked(self._spool(owner))}

    def load(
        self,
        connection: Connection,
        table: str,
        batches: Iterator[Any],
        *,
        typed: bool = False,
        definition: Definition | None = None,
    ) -> int:
        """Insert batches column-wise."""
        if definition not in (None, self.definition(connection, table)):
            raise TableChangedError
        quote = self.engine.dialect.identifier_preparer.quote
        driver = connection.connection.driver_connection
        assert driver is not None  # noqa: S101 - a transaction is open on it
        rows = 0
        for batch in batches:
            columns = ", ".join(map(quote, batch.schema.names))
            marks = ", ".join("?" * batch.num_columns)
            statement = f"INSERT INTO {quote(table)} ({columns}) VALUES ({marks})"  # noqa: S608 - quoted
            values = [_values(column) for column in batch.columns]
            driver.executemany(statement, zip(*values, strict=True))
            rows += batch.num_rows
        return rows

    def definition(self, connection: Connection, table: str) -> Definition:
        """Read how it was made, which each change of it changes."""
        return Definition(connection.execute(_MADE, {"name": table}).scalar())

    def refusal(self, error: Exception) -> str | None:
        """Tell by SQLite's code, which Python knows from 3.11 on."""
        code = getattr(error, "sqlite_errorcode", None)
        return "a column is no longer there" if code == _ERROR else None

    def delete_slice(
        self, connection: Connection, table: str, tag: int, limit: int
    ) -> int:
        """Delete some rows of a tag, from the end, where aborted rows lie.

        All of them if the table leaves no name for a row's number.
        """
        name = self.engine.dialect.identifier_preparer.quote(table)
        sql = f"DELETE FROM {name} WHERE tpc_tag = :tag"  # noqa: S608 - quoted
        if number := row_number(connection, table):
            some = (
                f"SELECT {number} FROM {name} WHERE tpc_tag = :tag "  # noqa: S608 - quoted
                f"ORDER BY {number} DESC LIMIT :limit"
            )
            sql += f" AND {number} IN ({some})"
        statement = sa.text(sql)
        return connection.execute(statement, {"tag": tag, "limit": limit}).rowcount


class _SQLiteWriter:
    """Has the body whole and verified before a lock is taken."""

    def __init__(self, database: SQLite, owner: int, file: IO[bytes]) -> None:
        self._database = database
        self._file = file
        self.owner = owner

    def note(self, application: str) -> AbstractContextManager[Connection]:
        return self._database.note(application)

    def receive(self, body: Body) -> Source:
        shutil.copyfileobj(body, self._file, CHUNK)
        body.verify()
        self._file.seek(0)
        return Source(self._file, body.content_type, body.length)

    def write(self) -> AbstractContextManager[Connection]:
        return self._database.decide("")

    def unlocked(self) -> AbstractContextManager[Connection]:
        return self._database.note("")

    def share(self, connection: Connection, application: str) -> None:
        """Do nothing: the database is locked."""

    def hold_shared(self, application: str) -> AbstractContextManager[None]:
        return self._database.file_lock(fcntl.LOCK_SH)


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _locked(path: Path) -> bool:
    """Tell whether a writer's file is locked; remove it if not."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def row_number(connection: Connection, table: str) -> str | None:
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
    return list(column.to_pylist())
