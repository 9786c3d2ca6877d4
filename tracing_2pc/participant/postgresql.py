"""PostgreSQL: bodies stream into COPY; locks and proof of life are advisory locks."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import psycopg.sql
import pyarrow as pa
import pyarrow.csv
import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.participant.body import Body, Source
from tracing_2pc.store import session

_WRITERS: Final = 0x74706377
"""First key of the session lock that says "this writer lives"."""

_LOCK_PATIENCE: Final = 10
"""Seconds that a request waits for a lock: then it is answered 503."""

_LOCK: Final = "pg_advisory_xact_lock(:key)"
_NOTE: Final = sa.text(f"SELECT {session.UNFLUSHED}, {_LOCK}")
_CLAIM: Final = sa.text(
    f"SELECT {session.UNFLUSHED}, pg_advisory_lock({_WRITERS}, :owner), {_LOCK}"
)
_FLUSHED: Final = sa.text(f"SELECT {session.FLUSHED}")
_UNFLUSHED: Final = sa.text(f"SELECT {session.UNFLUSHED}")
_LET_GO: Final = sa.text(f"SELECT pg_advisory_unlock({_WRITERS}, :owner)")
_EXCLUSIVE: Final = sa.text(f"SELECT {session.FLUSHED}, {_LOCK}")
_SHARED: Final = sa.text(
    f"SELECT {session.FLUSHED}, pg_advisory_xact_lock_shared(:key)"
)
# Who holds a lock by its session, and says nothing, loses the session.
_SPEAKING: Final = "set_config('idle_session_timeout', :patience, false)"
_SILENT: Final = "set_config('idle_session_timeout', NULL, false)"
_HOLD: Final = sa.text(f"SELECT {_SPEAKING}, pg_advisory_lock(:key)")
_DROP: Final = sa.text(f"SELECT {_SILENT}, pg_advisory_unlock(:key)")
_FENCE: Final = sa.text(f"SELECT {_SPEAKING}, pg_advisory_lock_shared(:key)")
_UNFENCE: Final = sa.text(f"SELECT {_SILENT}, pg_advisory_unlock_shared(:key)")
_ALIVE: Final = sa.text(
    "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND classid::bigint = :writers AND objsubid = 2"
).bindparams(writers=_WRITERS)
_REFUSING: Final = {"0A", "38", "39", "42", "44", "54"}
"""Classes of errors that the same records and the same table give every time."""

_REASONS: Final = {
    "42501": "the role of this participant may not write to it",
    "42703": "a column is no longer there",
    "54000": "a record is too large for a row of it, or has too many columns",
    "57014": "writing took longer than statement_timeout: raise it for the role of "
    "this participant, or write with more partitions",
}


class PostgreSQL:
    """`database.Database` on PostgreSQL, through psycopg.

    Args:
        url: with the psycopg driver.
        most: sessions at the same time.
        beside: another one on the same database, which is set up.
    """

    def __init__(
        self, url: sa.URL, most: int = 64, beside: PostgreSQL | None = None
    ) -> None:
        self._kept: threading.Event = beside._kept if beside else threading.Event()
        self.engine = sa.create_engine(
            url,
            pool_size=most // 8,
            max_overflow=most - most // 8,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",  # what is read after the lock is new
            connect_args=session.options(url),
        )
        sa.event.listen(self.engine, "connect", self._prepare_session)

    @property
    def driver(self) -> Any:
        """The module whose errors `load` raises."""
        return psycopg

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that only reads."""
        with self.engine.connect() as connection:
            yield connection

    @contextmanager
    def decide(self, application: str) -> Iterator[Connection]:
        """Open a durable transaction with the application's exclusive lock."""
        with self.engine.begin() as connection:
            connection.execute(_EXCLUSIVE, {"key": _key(application)})
            yield connection

    @contextmanager
    def note(self, application: str) -> Iterator[Connection]:
        """Open a transaction with the same lock that costs no flush."""
        with self.engine.begin() as connection:
            connection.execute(_NOTE, {"key": _key(application)})
            yield connection

    @contextmanager
    def aside(self) -> Iterator[Connection]:
        """Open a transaction that locks nothing by itself and costs no flush."""
        with self.engine.begin() as connection:
            unflushed(connection)
            yield connection

    @contextmanager
    def held(self, application: str) -> Iterator[Connection]:
        """Hold the application's exclusive lock over several local transactions.

        By the session: what raises ends it, and the lock with it.
        """
        key = {"key": _key(application)}
        with self.engine.connect() as connection:
            try:
                connection.execute(_HOLD, {**key, "patience": session.patience()})
                connection.commit()
                yield connection
                connection.execute(_DROP, key)
                connection.commit()
            except BaseException:
                connection.invalidate()
                raise

    @contextmanager
    def setup(self) -> Iterator[Connection]:
        """Open the transaction in which tables and views are made.

        Raises:
            ConfigurationError: the server does not flush, so that a vote given here
                would be a guess (rule 13); or a pooler gives each transaction another
                session.
        """
        self._check_sessions()
        with self.engine.begin() as connection:
            if connection.execute(sa.text("SHOW fsync")).scalar() == "off":
                raise ConfigurationError(
                    "PostgreSQL runs with fsync = off: a vote would not survive a "
                    "crash; set fsync = on in postgresql.conf"
                )
            connection.execute(_EXCLUSIVE, {"key": _key("")})
            yield connection

    def _check_sessions(self) -> None:
        if self._kept.is_set():
            return
        kept = session.is_kept(self.engine)
        self.engine.dispose()  # nothing was set there
        if not kept:
            raise ConfigurationError(
                "a pooler in transaction mode stands before this PostgreSQL: votes "
                "rest on locks of sessions, which it would hand to others. Connect to "
                "the server itself, or set pool_mode = session for this database"
            )
        self._kept.set()

    def _prepare_session(self, connection: psycopg.Connection[Any], _: object) -> None:
        pooled = session.is_pooled(connection)
        if not self._kept.is_set():
            return  # what is set could be another's in a moment
        limits = session.limits(_LOCK_PATIENCE, local=False)
        connection.execute(f"SELECT {limits}")
        connection.commit()
        if not pooled:
            session.notice_peers(connection)

    @contextmanager
    def writer(self) -> Iterator[PostgreSQLWriter]:
        """Open an upload on one session; its advisory lock dies with the session."""
        with self.engine.connect() as connection:
            writer = PostgreSQLWriter(connection, secrets.randbits(31))
            try:
                yield writer
                if writer.holds:
                    connection.execute(_LET_GO, {"owner": writer.owner})
                    connection.commit()
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
        names: list[str],
        batches: Iterable[Any],
    ) -> int:
        """COPY batches as csv, which tells NULL from an empty string."""
        columns = psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, names))
        statement = psycopg.sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            psycopg.sql.Identifier(table), columns
        )
        options = pa.csv.WriteOptions(include_header=False)
        rows = 0
        with _driver(connection).cursor() as cursor, cursor.copy(statement) as copy:
            for batch in batches:
                sink = pa.BufferOutputStream()
                pa.csv.write_csv(batch, sink, options)
                copy.write(memoryview(sink.getvalue()))
                rows += batch.num_rows
        return rows

    def refusal(self, error: Exception) -> str | None:
        """Say why an error of `load` comes every time; None if it may be over later."""
        state = str(getattr(error, "sqlstate", None))
        if state[:2] in _REFUSING:
            return _REASONS.get(state, f"PostgreSQL says {type(error).__name__}")
        return _REASONS.get(state)

    def delete_slice(
        self, connection: Connection, table: str, tag: int, limit: int
    ) -> int:
        """Delete some rows of a tag that nobody has locked.

        A row that moves meanwhile is not deleted; and a ctid says nothing about
        other partitions of the table, so the tag is asked for twice.
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

    def now(self) -> sa.ColumnElement[float]:
        """Return the server's clock."""
        epoch = sa.extract("epoch", sa.func.clock_timestamp())
        return sa.cast(epoch, sa.Double)


class PostgreSQLWriter:
    """`database.Writer`: the body streams into COPY as it arrives."""

    def __init__(self, connection: Connection, owner: int) -> None:
        self._connection = connection
        self.owner = owner
        self.holds = False

    @contextmanager
    def note(self, application: str) -> Iterator[Connection]:
        """Open the short transaction that puts the claim on record."""
        with self._connection.begin():
            keys = {"owner": self.owner, "key": _key(application)}
            self._connection.execute(_CLAIM, keys)
            self.holds = True
            yield self._connection

    def receive(self, body: Body) -> Source:
        """Return the body itself."""
        return Source.streamed(body)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open the durable transaction that the rows go into."""
        with self._connection.begin():
            yield self._connection

    @contextmanager
    def aside(self) -> Iterator[Connection]:
        """Open a transaction that locks nothing by itself and costs no flush."""
        with self._connection.begin():
            unflushed(self._connection)
            yield self._connection

    def share(self, connection: Connection, application: str) -> None:
        """Take the application's lock, shared with other prepares."""
        connection.execute(_SHARED, {"key": _key(application)})

    @contextmanager
    def fence(self, application: str) -> Iterator[None]:
        """Hold that lock by the session, around a PREPARE TRANSACTION.

        A lock of the transaction would pass to the prepared one and outlive us. Who
        gets the lock after us finds the transaction prepared, or rolled back.
        """
        key = {"key": _key(application)}
        self._connection.execute(_FENCE, {**key, "patience": session.patience()})
        try:
            yield
            self._connection.execute(_UNFENCE, key)
        except BaseException:
            self._connection.invalidate()
            raise


def flushed(connection: Connection) -> None:
    """Let the open transaction wait for the disk."""
    connection.execute(_FLUSHED)


def unflushed(connection: Connection) -> None:
    """Let the open transaction become durable with the next flush of this server."""
    connection.execute(_UNFLUSHED)


def _key(application: str) -> int:
    digest = hashlib.sha256(b"tracing_2pc:" + application.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)  # noqa: S101 - the URL says so
    return driver
