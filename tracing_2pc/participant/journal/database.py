"""A participant's use of its own database besides transactions.

A prepare opens two: `look`, before its body is received, and `upload`, for its rows.
A decision opens `write`, with the application's lock.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from sqlalchemy import Connection

from tracing_2pc.participant.body import Body, Source
from tracing_2pc.store.engines import database as engines
from tracing_2pc.tracing.spans import database_span


class UnderWayError(Exception):
    """Another request writes the same branch; nothing of this one is kept."""


class TableGoneError(Exception):
    """The table was dropped."""


class TableInUseError(Exception):
    """Other transactions hold locks of a table that is to be altered."""


@dataclasses.dataclass(frozen=True)
class TableLook:
    """Properties of a table at one moment, besides its columns."""

    # By column, the Arrow type that `Database.load` need not write as text. Columns
    # that have none are left out.
    exact: Mapping[str, Any]
    is_table: bool = True  # it is one, and so are its partitions
    # It has partitions, each of which is locked with its first row only.
    has_parts: bool = False
    is_unlogged: bool = False  # a crash would empty it, or a partition
    # Triggers and rules of INSERT or DELETE, its partitions' too.
    fires: tuple[str, ...] = ()
    has_policies: bool = False  # row level security decides who sees which rows
    has_deferred_checks: bool = False  # triggers or constraints may wait for the commit
    # Whether the view stands on this very table; None where there is none.
    view: bool | None = None
    # The view shows what the reader may see, and not what its owner may.
    is_invoker: bool = False


class Records(NamedTuple):
    """Arrow batches of a table's columns; `typed` ones have its exact types.

    `written` is called when they are written; it may raise `RefusalError`. `count`
    returns the number of records that a batch is made from, just after it was taken.
    """

    batches: Iterator[Any]
    typed: bool = False
    has_deferred_checks: bool = False
    written: Callable[[], None] = lambda: None
    count: Callable[[Any], int] = lambda batch: batch.num_rows


class Database(engines.Database, abc.ABC):
    """A database that data and journal share.

    Its `read`, in PostgreSQL, sees the newest state at each statement, and fails on a
    standby: in an older snapshot a branch just committed is neither that nor prepared,
    and a standby's list is no evidence.
    """

    driver: Any
    """The PEP 249 module whose errors `load` raises."""

    planned_anew: tuple[str, ...] = ()
    """SQL that `relaxed` selects for a plan that may have been of another table."""

    def check_writable(self) -> None:
        """Raise `OperationalError` where `read` works, and nothing can be written.

        In PostgreSQL `read` itself does.
        """

    def skip_flush(self, connection: Connection) -> None:
        """Let the open durable transaction be flushed by a later one, if possible."""

    @functools.cached_property
    def beside(self) -> Database:
        """The same with another pool, for a caller that holds a session of this one."""
        return self

    def read_quickly(self) -> AbstractContextManager[Connection]:
        """Read beside an own transaction: it waits for no lock that waits for that."""
        return self.read()

    def receive(self, body: Body) -> Source:
        """Return the body to read records from: here, or as it arrives."""
        return self.spool(body)

    def spool(self, body: Body) -> Source:
        """Return a body that is here, verified, and can be read again."""
        return Source.spooled(body)

    def alone(self, branch: str) -> AbstractContextManager[None]:
        """Keep others from `upload` of the same branch, as far as that does not.

        No promise rests on it: a client waits without end for an upload that is under
        way, and does not send the same rows again and again.

        Raises:
            UnderWayError: another request has not left the block.
        """
        return nullcontext()

    @contextmanager
    def upload(
        self,
        branch: str,
        tag: str,
        table: str | None = None,
        *,
        will_be_prepared: bool = False,
    ) -> Iterator[tuple[Connection, int]]:
        """Open the durable transaction that the rows of a branch go into.

        It yields the value of `tag`, an SQL expression, too. The table, if one is
        named, cannot be altered until it ends. If it `will_be_prepared`, it keeps no
        lock on the branch.

        Raises:
            UnderWayError: another one is open for the same branch.
            TableGoneError: there is no such table; with SQLite `look_at` raises it.
        """
        with self.write() as connection:
            yield connection, connection.exec_driver_sql(f"SELECT {tag}").scalar_one()

    def shared_lock(self, connection: Connection, application: str) -> None:
        """Take the lock shared, till the commit, if it is needed."""

    @abc.abstractmethod
    def uploads(self, connection: Connection, journal: str) -> int:
        """Count the branches of a journal that are being written."""

    @contextmanager
    def alter(self, table: str) -> Iterator[Connection]:
        """Open the transaction of `setup`, to alter a table that is in use.

        It waits a moment for transactions that use the table; later ones wait, too.

        Raises:
            TableInUseError: they still use it, or a prepared transaction does.
        """
        with self.setup() as connection:
            yield connection

    def owns(self, connection: Connection, name: str) -> bool:
        """Whether this role may alter a table or a view that is there."""
        return True

    @abc.abstractmethod
    def look_at(self, connection: Connection, table: str, view: str | None) -> Hashable:
        """Read a table's catalog, which may change under a participant that runs.

        Equal results mean that nothing has changed. `read_look` interprets them.

        Raises:
            TableGoneError: it is not there.
        """

    @abc.abstractmethod
    def read_look(self, catalog: Any) -> TableLook:
        """Interpret a result of `look_at`."""

    @abc.abstractmethod
    def load(self, connection: Connection, table: str, records: Records) -> int:
        """Write records, with their deferred checks; return the number kept."""

    def misfit(self, connection: Connection, error: Exception, batch: Any) -> str:
        """Describe a value that `load` cannot write; of an earlier batch, too."""
        return "a value does not fit the column it is for"

    def lacking(self, connection: Connection) -> str:
        """Describe characters of a text that this database cannot hold."""
        return "a character that this database lacks"

    @abc.abstractmethod
    def violation(self, error: Exception) -> str:
        """Name the constraint or trigger of an error of `load`; no values."""

    @abc.abstractmethod
    def refusal(self, error: Exception) -> str | None:
        """Return the reason if an error of `load` is permanent; None if it may pass."""

    @abc.abstractmethod
    def delete_slice(
        self, connection: Connection, table: str, tag: int, limit: int
    ) -> int:
        """Delete some rows of a tag that are not locked; return their number."""


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
