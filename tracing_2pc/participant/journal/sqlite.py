"""SQLite: one writer at a time, so a body is on disk before the database is locked.

A large one is spooled to a file without a name in the database's folder.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import struct
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.settings import LOCK_WAIT
from tracing_2pc.participant.body import Body, Source
from tracing_2pc.participant.journal.database import (
    Database,
    Records,
    TableGoneError,
    TableLook,
    UnderWayError,
)
from tracing_2pc.store.engines import sqlite as engine
from tracing_2pc.store.engines.database import not_now
from tracing_2pc.store.engines.postgresql import advisory_key

_ERROR: Final = 1  # SQLite's code for a statement that does not fit its tables

_MADE: Final = sa.text(
    "SELECT type, lower(name), lower(name) = :view, sql FROM sqlite_master "
    "WHERE type = 'view' OR (lower(tbl_name) = :table AND type IN ('table', 'trigger'))"
    " ORDER BY 1, 2"
)
_VIOLATED: Final = re.compile(
    r"(UNIQUE|CHECK|NOT NULL|FOREIGN KEY) constraint failed.*"
)
_OF_ROWS: Final = re.compile(r"\b(insert|delete)\s+on\b", re.IGNORECASE)
"""A trigger that an INSERT or DELETE fires."""

_TRY_LOCK: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None)


class SQLite(engine.SQLite, Database):
    """`database.Database` on SQLite: each writing transaction excludes all others."""

    driver = sqlite3

    def __init__(self, url: sa.URL) -> None:
        super().__init__(url, "url", lock_wait=LOCK_WAIT, pool_size=8, max_overflow=56)
        self._file = Path(str(self.engine.url.database))
        self._uploads: list[str] = []

    def check_writable(self) -> None:
        """Ask the system, because a write would wait for others."""
        ours = os.access in os.supports_effective_ids
        for path in (self._file, self._file.parent):
            if not os.access(path, os.W_OK, effective_ids=ours):
                raise not_now(engine.READ_ONLY)

    def spool(self, body: Body) -> Source:
        """Keep a large one beside the database: the system's folder may be memory."""
        return Source.spooled(body, str(self._file.parent))

    @contextmanager
    def alone(self, branch: str) -> Iterator[None]:
        """Lock a byte of a file, from before the body is received to the commit.

        Each process that has the file open has a lock of its own, and the end of the
        process ends it. Where the system has no such locks no request is held off.
        """
        start = advisory_key(branch) % (1 << 62)
        wanted_at = (os.SEEK_SET, start, 1, 0)
        wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, *wanted_at)
        with self._file.with_name(f"{self._file.name}-tpc.lock").open("ab") as file:
            try:
                if _TRY_LOCK is not None:
                    fcntl.fcntl(file, _TRY_LOCK, wanted)
            except BlockingIOError:
                raise UnderWayError from None
            self._uploads.append(branch)
            try:
                yield
            finally:
                self._uploads.remove(branch)
                if _TRY_LOCK is not None:  # a child that was forked has the file, too
                    free = struct.pack("hhqqi4x", fcntl.F_UNLCK, *wanted_at)
                    fcntl.fcntl(file, _TRY_LOCK, free)

    def uploads(self, connection: Connection, journal: str) -> int:
        return len(self._uploads)

    def look_at(self, connection: Connection, table: str, view: str | None) -> Hashable:
        """Read the SQL of it, its triggers and the view: each change changes it."""
        names = {"table": table.lower(), "view": (view or "").lower()}
        catalog = tuple(map(tuple, connection.execute(_MADE, names)))
        if all(kind != "table" for kind, *_ in catalog):
            raise TableGoneError
        return catalog

    def read_look(self, catalog: Any) -> TableLook:
        (table,) = (name for kind, name, _, _ in catalog if kind == "table")
        fires = (
            name
            for kind, name, _, made in catalog
            if kind == "trigger" and _OF_ROWS.search(made)
        )
        made = next(
            (sql for kind, _, ours, sql in catalog if kind == "view" and ours), ""
        )
        others = [n for kind, n, ours, _ in catalog if kind == "view" and not ours]
        # One of ours, by the name of what it hides: what is renamed is renamed in it.
        is_ours = _names(made, f"{table}_hidden")
        stands = not is_ours or any(_names(made, name) for name in (table, *others))
        return TableLook({}, fires=tuple(fires), view=stands if made else None)

    def load(self, connection: Connection, table: str, records: Records) -> int:
        quote = self.engine.dialect.identifier_preparer.quote
        driver = connection.connection.driver_connection
        assert driver is not None  # noqa: S101 - a transaction is open on it
        rows = 0
        for batch in records.batches:
            columns = ", ".join(map(quote, batch.schema.names))
            marks = ", ".join("?" * batch.num_columns)
            statement = f"INSERT INTO {quote(table)} ({columns}) VALUES ({marks})"  # noqa: S608 - quoted
            values = [_values(column) for column in batch.columns]
            rows += driver.executemany(statement, zip(*values, strict=True)).rowcount
        return rows

    def violation(self, error: Exception) -> str:
        message = str(error)  # of a trigger anything, values too
        return message if _VIOLATED.fullmatch(message) else "a trigger raises it"

    def refusal(self, error: Exception) -> str | None:
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


def _names(sql: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", sql, re.IGNORECASE) is not None


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
    """Return a column as SQLite stores it: no datetime, decimal, uint64 or NaN."""
    kind = column.type
    if pa.types.is_floating(kind):
        return [v if v == v else "NaN" for v in column.to_pylist()]
    as_text = (pa.types.is_temporal, pa.types.is_decimal, pa.types.is_uint64)
    if any(is_kind(kind) for is_kind in as_text):
        column = pc.cast(column, pa.string())
    return list(column.to_pylist())
