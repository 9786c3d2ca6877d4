"""The participant's own database, SQLite or PostgreSQL.

A local transaction is opened for a purpose, which determines locks and flush:

- `read`: locks nothing, writes nothing.
- `decide`: the application's exclusive lock; durable.
- `note`: the same lock, not durable: a crash may undo it.
- `setup`: excludes every other setup.

A `Writer` claims a branch while it is written. Every process can see whether a writer
is alive, also after the writer's own process was killed.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol

from sqlalchemy import Connection

from tracing_2pc.participant.body import Body, Source
from tracing_2pc.store.engines import database as engines
from tracing_2pc.store.engines.urls import database_url
from tracing_2pc.tracing.spans import database_span

LOCK_WAIT: Final = 10
"""Seconds that a request waits for a lock. Then the answer is "not now"."""


class TableChangedError(Exception):
    """The table is another than when it was read; nothing may be kept."""


@dataclasses.dataclass(frozen=True)
class Definition:
    """What was read of a table at one moment.

    Args:
        about: what two of them are compared by.
        exact: by column, the Arrow type that `Database.load` need not write as text.
            Columns that have none are left out.
        defers: triggers or constraints may wait for the commit.
        stays: the transaction is prepared after `load`. It must not keep locks on the
            catalogs that this is read from.
    """

    about: Hashable = None
    exact: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    defers: bool = dataclasses.field(default=False, compare=False)
    stays: bool = dataclasses.field(default=False, compare=False)


class Writer(Protocol):
    """One upload: claimed, received, written, and made durable, in this order."""

    owner: int

    def note(self, application: str) -> AbstractContextManager[Connection]:
        """Open the short transaction that puts the claim on record."""

    def receive(self, body: Body) -> Source:
        """Return the body to read records from: as it arrives, or whole on disk."""

    def write(self) -> AbstractContextManager[Connection]:
        """Open the durable transaction that the rows go into."""

    def unlocked(self) -> AbstractContextManager[Connection]:
        """Open a transaction that locks nothing by itself and costs no flush."""

    def share(self, connection: Connection, application: str) -> None:
        """Take the application's lock, shared with other prepares, till the commit."""

    def hold_shared(self, application: str) -> AbstractContextManager[None]:
        """Hold that lock, shared, while a branch is prepared outside of a transaction.

        A process that gets the exclusive lock later finds the branch prepared, or
        knows that it never will be.
        """


class Database(abc.ABC):
    """A database that data and journal share."""

    driver: Any
    """The PEP 249 module whose errors `load` raises."""

    def __init__(self, connections: engines.Database) -> None:
        self.connections = connections
        self.engine = connections.durable_engine

    def lock(self, application: str) -> tuple[str, ...]:
        """Return the SQL that takes an application's exclusive lock until the commit.

        None is needed if each writing transaction excludes all others.
        """
        return ()

    def read(self) -> AbstractContextManager[Connection]:
        """Open a transaction that only reads."""
        return self.connections.reading()

    def decide(self, application: str) -> AbstractContextManager[Connection]:
        """Open a durable transaction with the application's exclusive lock."""
        return begin_now(self.connections.durable(*self.lock(application)))

    def note(self, application: str) -> AbstractContextManager[Connection]:
        """Open a transaction with the same lock that need not survive a crash."""
        return begin_now(self.connections.relaxed(*self.lock(application)))

    def setup(self) -> AbstractContextManager[Connection]:
        """Open the transaction in which tables and views are made."""
        return self.decide("")

    def skip_flush(self, connection: Connection) -> None:  # noqa: B027 - SQLite flushes
        """Let the open durable transaction be flushed by a later one, if possible."""

    def with_own_sessions(self) -> Database:
        """Return this database with another pool.

        A caller that holds a session here may wait for one of those.
        """
        return self

    @abc.abstractmethod
    def hold(self, application: str) -> AbstractContextManager[Connection]:
        """Hold the application's exclusive lock over several durable transactions.

        An exception ends the session, and the lock with it.
        """

    @abc.abstractmethod
    def writer(self) -> AbstractContextManager[Writer]:
        """Open an upload, which ends with the block."""

    @abc.abstractmethod
    def alive(self, connection: Connection, writers: set[int]) -> set[int]:
        """Return those of the writers whose upload is still under way."""

    @abc.abstractmethod
    def load(
        self,
        connection: Connection,
        table: str,
        batches: Iterator[Any],
        *,
        typed: bool = False,
        definition: Definition | None = None,
    ) -> int:
        """Write Arrow batches of a table's columns; return how many rows they had.

        `typed` batches have the exact types of the table's definition. Where one is
        given, the batches were made for a table like that, and nothing that it checks
        is left for the commit.

        Raises:
            TableChangedError: it is another now.
        """

    def definition(self, connection: Connection, table: str) -> Definition:
        """Read what may change under a participant that runs, if anything may."""
        return Definition()

    def is_altered(self, table: str, definition: Definition) -> bool:
        """Tell whether a table is another by now; asked in a session of its own."""
        with self.read() as connection:
            return self.definition(connection, table) != definition

    @abc.abstractmethod
    def refusal(self, error: Exception) -> str | None:
        """Return why an error of `load` is permanent; None if it may pass."""

    @abc.abstractmethod
    def delete_slice(
        self, connection: Connection, table: str, tag: int, limit: int
    ) -> int:
        """Delete some rows of a tag; return how many.

        Rows that another transaction has locked may be left out.
        """


def open_database(url: str) -> Database:
    """Return the database of an SQLAlchemy URL, or of `env:NAME` that holds one.

    Nothing is connected yet.

    Raises:
        ConfigurationError: a password in the URL, among its options too, or a database
            that is neither PostgreSQL nor SQLite.
    """
    parsed = database_url(url, "url")
    if parsed.get_backend_name() == "postgresql":
        from tracing_2pc.participant.journal.postgresql import PostgreSQL

        return PostgreSQL(parsed)
    from tracing_2pc.participant.journal.sqlite import SQLite

    return SQLite(parsed)


@contextmanager
def begin_now(opened: AbstractContextManager[Connection]) -> Iterator[Connection]:
    """Begin a transaction here, with its lock, and not at its first statement.

    A driver's own bulk load is no statement of SQLAlchemy's: it would begin nothing.
    """
    with opened as connection, connection.begin():
        yield connection


def commit(connection: Connection) -> None:
    """End the open transaction here, in a span: its COMMIT waits for the disk.

    Where it raises, as for a constraint that is checked at the end, nothing is open.
    """
    with database_span("COMMIT", connection.get_execution_options()[engines.PLACE]):
        try:
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
