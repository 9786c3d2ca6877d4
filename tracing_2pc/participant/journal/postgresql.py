"""PostgreSQL: bodies stream into COPY; locks and proof of life are advisory locks."""

from __future__ import annotations

import functools
import hashlib
import itertools
import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import psycopg
import psycopg.adapt
import psycopg.pq
import psycopg.sql
import pyarrow as pa
import pyarrow.csv
import sqlalchemy as sa
from sqlalchemy import Connection, RootTransaction

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.participant.body import Body, Source
from tracing_2pc.participant.journal import copy_binary
from tracing_2pc.participant.journal.database import (
    LOCK_WAIT,
    Database,
    Definition,
    TableChangedError,
)
from tracing_2pc.store.engines import database as engines
from tracing_2pc.store.engines import postgresql

_WRITERS: Final = 0x74706377
"""First key of the session lock of a writer that is alive."""

# The server ends a session that holds a lock and is silent for so long.
_LIMIT_SILENCE: Final = "set_config('idle_session_timeout', '{}', false)"
_ALLOW_SILENCE: Final = "set_config('idle_session_timeout', NULL, false)"
_ALIVE: Final = sa.text(
    "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND classid::bigint = :writers AND objsubid = 2"
).bindparams(writers=_WRITERS)
_REFUSING: Final = {"0A", "38", "39", "42", "44", "54"}
"""Classes of errors that are the same each time, by records and table."""

_COLUMNS: Final = (
    "SELECT attname, atttypid::bigint, atttypmod, relpersistence, relkind, "
    "relhastriggers OR relkind = 'p' "  # those of a partition are not looked for
    "FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid "
    "WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped"
)
_ROWS, _DONE = psycopg.pq.ExecStatus.TUPLES_OK, psycopg.pq.ExecStatus.COMMAND_OK
_CHECK_NOW: Final = "SET CONSTRAINTS ALL IMMEDIATE"

_REASONS: Final = {
    "42501": "the role of this participant may not write to it",
    "42703": "a column is no longer there",
    "54000": "a record is too large for a row of it, or has too many columns",
    "57014": "writing took longer than statement_timeout: raise it for the role of "
    "this participant, or write with more partitions",
}


class PostgreSQL(Database):
    """`database.Database` on PostgreSQL, through psycopg.

    Args:
        url: with the psycopg driver.
        most: sessions at the same time.
        is_checked: set once the server is known to keep sessions.
    """

    driver = psycopg

    def __init__(
        self, url: sa.URL, most: int = 64, is_checked: threading.Event | None = None
    ) -> None:
        size, rest = most // 8, most - most // 8
        connections = postgresql.open_postgresql(
            url, "url", lock_wait=LOCK_WAIT, pool_size=size, max_overflow=rest
        )
        super().__init__(connections)
        (begin,) = connections.relaxed_engine.get_execution_options()[engines.BEGIN]
        kind = postgresql.READ_COMMITTED
        begin = begin.replace(kind, f"{kind} READ ONLY")
        self._reading = self.engine.execution_options(**{engines.BEGIN: (begin,)})
        self._is_checked = is_checked or threading.Event()

    def lock(self, application: str) -> tuple[str, ...]:
        """Name an advisory lock."""
        return (f"pg_advisory_xact_lock({_key(application)})",)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that only reads; each statement sees the newest state.

        Locks and prepared transactions are always the current ones: in an older
        snapshot a branch just committed would be neither prepared nor committed.
        """
        with self._reading.connect() as connection:
            yield connection
            # At a rollback psycopg would forget what it has prepared.
            connection.connection.commit()

    def skip_flush(self, connection: Connection) -> None:
        """Let the open transaction become durable with the server's next flush."""
        connection.exec_driver_sql(f"SELECT {postgresql.UNFLUSHED}")

    def with_own_sessions(self) -> PostgreSQL:
        """Return this database with a small pool."""
        return PostgreSQL(self.connections.url, 16, self._is_checked)

    def setup(self) -> AbstractContextManager[Connection]:
        """Open the transaction in which tables and views are made.

        Raises:
            ConfigurationError: a pooler gives each transaction another session; or,
                in the block, the server does not flush, so that a vote given here
                would be a guess (rule 13).
        """
        if not self._is_checked.is_set():
            if not postgresql.keeps_sessions(self.engine):
                raise ConfigurationError(
                    "a pooler in transaction mode stands before this PostgreSQL: votes "
                    "rest on locks of sessions, which it would hand to others. Connect "
                    "to the server itself, or set pool_mode = session for this database"
                )
            self._is_checked.set()
        return super().setup()

    @contextmanager
    def hold(self, application: str) -> Iterator[Connection]:
        """Hold the application's lock by the session."""
        key = _key(application)
        with self.engine.connect() as connection:
            try:
                limit = _LIMIT_SILENCE.format(postgresql.peer_timeout())
                self.begin(connection, limit, f"pg_advisory_lock({key})").commit()
                self.set_begin(connection, durable=True)
                yield connection
                unlock = f"pg_advisory_unlock({key})"
                self.begin(connection, _ALLOW_SILENCE, unlock).commit()
            except BaseException:
                connection.invalidate()
                raise

    def begin(
        self, connection: Connection, *selected: str, durable: bool = False
    ) -> RootTransaction:
        """Begin a transaction like this, and later ones on the connection as well."""
        self.set_begin(connection, *selected, durable=durable)
        return connection.begin()

    def set_begin(self, connection: Connection, *selected: str, durable: bool) -> None:
        """Set the first statement of a connection's next transactions."""
        pools = self.connections
        engine = pools.durable_engine if durable else pools.relaxed_engine
        begin = engine.get_execution_options()[engines.BEGIN]
        statement = ", ".join([*begin, *selected])
        connection.execution_options(**{engines.BEGIN: (statement,)})

    @contextmanager
    def autocommit(self, connection: Connection) -> Iterator[None]:
        """Execute statements outside of any transaction."""
        begin = connection.get_execution_options()[engines.BEGIN]
        connection.execution_options(**{engines.BEGIN: ()})
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.commit()
                connection.execution_options(**{engines.BEGIN: begin})

    @contextmanager
    def writer(self) -> Iterator[_PostgreSQLWriter]:
        """Open an upload on one session; its advisory lock ends with the session."""
        with self.engine.connect() as connection:
            writer = _PostgreSQLWriter(self, connection, secrets.randbits(31))
            try:
                yield writer
                if writer.is_locked:
                    unlock = f"SELECT pg_advisory_unlock({_WRITERS}, {writer.owner})"
                    with self.autocommit(connection):
                        connection.exec_driver_sql(unlock)
            except BaseException:
                connection.invalidate()  # its session ends, and its locks with it
                raise

    def alive(self, connection: Connection, writers: set[int]) -> set[int]:
        """Return the writers whose session still holds its lock."""
        return writers & {row[0] for row in connection.execute(_ALIVE)}

    def load(
        self,
        connection: Connection,
        table: str,
        batches: Iterator[Any],
        *,
        typed: bool = False,
        definition: Definition | None = None,
    ) -> int:
        """COPY batches: typed ones in binary, others as csv.

        Csv tells NULL from an empty string. A column of another type may round what
        was made for the old one, or take its bytes for what they are not. Therefore the
        table is read again after COPY, whose lock lets nobody change it from then on.
        """
        if (first := next(batches, None)) is None:
            return 0
        form, encode = ("binary", copy_binary.pieces) if typed else ("csv", _csv)
        statement = _copy_into(form, table, *first.schema.names)
        rows = 0
        try:
            with connection.connection.cursor().copy(statement) as copy:
                copy.write(copy_binary.HEADER if typed else b"")
                for batch in itertools.chain([first], batches):
                    for piece in encode(batch):
                        copy.write(piece)
                    rows += batch.num_rows
                copy.write(copy_binary.TRAILER if typed else b"")
        except psycopg.Error:
            if definition is not None and self.is_altered(table, definition):
                raise TableChangedError from None
            raise
        if definition is not None:
            read = self._without_locks if definition.stays else self.definition
            found = read(connection, table)
            if found != definition:
                raise TableChangedError
            if found.defers:  # now, while no decision waits for it
                connection.connection.cursor().execute(_CHECK_NOW)
        return rows

    def definition(self, connection: Connection, table: str) -> Definition:
        """Read the columns; exact is what COPY can be given in binary."""
        return _definition(connection.exec_driver_sql(self._select_columns(table)))

    def _without_locks(self, connection: Connection, table: str) -> Definition:
        """Read it in a part of the transaction that is taken back, with its locks.

        Past psycopg, which would drop at a ROLLBACK what it has prepared.
        """
        driver: Any = connection.connection.driver_connection
        asked = f"SAVEPOINT tpc; {self._select_columns(table)}".encode()
        found = driver.pgconn.exec_(asked)
        ended = driver.pgconn.exec_(b"ROLLBACK TO tpc; RELEASE tpc")
        for result, status in ((found, _ROWS), (ended, _DONE)):
            if result.status != status:
                raise psycopg.errors.error_from_result(result)
        rows = psycopg.adapt.Transformer.from_context(driver)
        rows.set_pgresult(found)
        return _definition(rows.load_rows(0, found.ntuples, tuple))

    def _select_columns(self, table: str) -> str:
        name = self.engine.dialect.identifier_preparer.quote(table)
        return _COLUMNS.format(psycopg.sql.quote(name))

    def refusal(self, error: Exception) -> str | None:
        """Tell by the class of the error."""
        state = str(getattr(error, "sqlstate", None))
        if state[:2] in _REFUSING:
            return _REASONS.get(state, f"PostgreSQL says {type(error).__name__}")
        return _REASONS.get(state)

    def delete_slice(
        self, connection: Connection, table: str, tag: int, limit: int
    ) -> int:
        """Delete some rows of a tag that are not locked.

        A row that moves meanwhile is not deleted. Partitions of a table may use the
        same ctid, therefore the tag is compared twice.
        """
        name = self.engine.dialect.identifier_preparer.quote(table)
        some = (
            f"SELECT ctid FROM {name} WHERE tpc_tag = :tag LIMIT :limit "  # noqa: S608 - quoted
            "FOR UPDATE SKIP LOCKED"
        )
        statement = sa.text(
            f"DELETE FROM {name} WHERE tpc_tag = :tag AND ctid = ANY(ARRAY({some}))"  # noqa: S608 - quoted
        )
        return connection.execute(statement, {"tag": tag, "limit": limit}).rowcount


class _PostgreSQLWriter:
    """Streams the body into COPY as it arrives, on one session."""

    def __init__(
        self, database: PostgreSQL, connection: Connection, owner: int
    ) -> None:
        self._database = database
        self._connection = connection
        self.owner = owner
        self.is_locked = False

    @contextmanager
    def note(self, application: str) -> Iterator[Connection]:
        claim = f"pg_advisory_lock({_WRITERS}, {self.owner})"
        locks = (claim, *self._database.lock(application))
        with self._database.begin(self._connection, *locks):
            self.is_locked = True
            yield self._connection

    def receive(self, body: Body) -> Source:
        return Source.streamed(body)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with self._database.begin(self._connection, durable=True):
            yield self._connection

    @contextmanager
    def unlocked(self) -> Iterator[Connection]:
        with self._database.begin(self._connection):
            yield self._connection

    def share(self, connection: Connection, application: str) -> None:
        lock = f"SELECT pg_advisory_xact_lock_shared({_key(application)})"
        connection.exec_driver_sql(lock)

    @contextmanager
    def hold_shared(self, application: str) -> Iterator[None]:
        # A lock of the transaction would pass to the prepared one and outlive this
        # session. The next holder finds the transaction prepared, or rolled back.
        key, connection = _key(application), self._connection
        limit = _LIMIT_SILENCE.format(postgresql.peer_timeout())
        lock = f"SELECT {limit}, pg_advisory_lock_shared({key})"
        unlock = f"SELECT {_ALLOW_SILENCE}, pg_advisory_unlock_shared({key})"
        try:
            connection.exec_driver_sql(lock)
            yield
            connection.exec_driver_sql(unlock)
        except BaseException:
            connection.invalidate()
            raise


def _definition(rows: Iterable[Any]) -> Definition:
    columns = frozenset(map(tuple, rows))
    known = ((n, copy_binary.TYPES.get(kind)) for n, kind, *_ in columns)
    exact = {n: kind for n, kind in known if kind is not None}
    about = frozenset(column[:-1] for column in columns)
    return Definition(about, exact, any(defers for *_, defers in columns))


@functools.lru_cache(maxsize=100)
def _copy_into(form: str, table: str, *columns: str) -> str:
    quoted = [psycopg.sql.Identifier(name).as_string() for name in (table, *columns)]
    return f"COPY {quoted[0]} ({', '.join(quoted[1:])}) FROM STDIN (FORMAT {form})"


def _csv(batch: pa.RecordBatch) -> Iterator[memoryview]:
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(batch, sink, pa.csv.WriteOptions(include_header=False))
    yield memoryview(sink.getvalue())


@functools.lru_cache(maxsize=1_000)
def _key(application: str) -> int:
    digest = hashlib.sha256(b"tracing_2pc:" + application.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
