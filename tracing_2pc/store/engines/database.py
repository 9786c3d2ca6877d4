"""A database of a store: how its transactions are opened, and its errors' texts."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from tracing_2pc.core.forks import after_fork
from tracing_2pc.core.settings import without_secrets
from tracing_2pc.store.engines.urls import describe_place, display_url, secrets_in

BEGIN: Final = "tpc_begin"
"""Execution option: the statements that begin a transaction, in their order."""


PLACE: Final = "tpc_place"
"""Execution option: what the span of a statement says of the database."""


_SHOWN: Final = frozenset(
    ("OperationalError", "InterfaceError", "TimeoutError", "OSError", "TwoPhaseError")
)
"""Exceptions, by class name, whose message never quotes a record."""


Failure = Callable[..., Exception]


class Database:
    """A database, and the words by which each store opens a transaction of it.

    | word | it may | PostgreSQL | SQLite |
    |---|---|---|---|
    | `read` | read one snapshot | REPEATABLE READ READ ONLY | BEGIN |
    | `look` | read; each statement alone | no BEGIN, one round trip | no BEGIN |
    | `write` | write, and is flushed | READ COMMITTED | BEGIN IMMEDIATE |
    | `relaxed` | write what a crash may lose | `synchronous_commit` off | NORMAL |
    | `setup` | make tables: as `write`, one at a time | advisory lock | as `write` |

    Each `with` is one transaction, rolled back by an exception. `read` and `look` wait
    for no lock of ours. `write`, `relaxed` and `setup` begin at once, with their locks;
    in PostgreSQL they fail where nothing may be written, and bring their settings, as
    `lock_timeout`, since a pooler may give each another session. A process that is
    forked opens connections of its own.

    `engine`, which is that of `write`, has the pool. The statements that begin a
    transaction are given for each word. `clock` is an SQL expression in Unix seconds.
    `failure` makes the exception that replaces SQLAlchemy's errors, from the text and
    whether that names the cure. `sessions_lost` counts the sessions of this process
    that ended by themselves: another server may answer the next one.
    """

    def __init__(
        self,
        url: sa.URL,
        engine: sa.Engine,
        *,
        write: tuple[str, ...],
        relaxed: tuple[str, ...],
        read: tuple[str, ...],
        clock: str,
        durability_queries: Mapping[str, str],
        failure: Failure | None,
    ) -> None:
        engine.update_execution_options(**{PLACE: describe_place(url), BEGIN: write})
        sa.event.listen(engine, "begin", _begin)  # before engines are derived from it
        sa.event.listen(engine, "invalidate", self._count_lost)
        self.sessions_lost = 0
        self.url = url
        self.engine = engine
        self.relaxed_engine = engine.execution_options(**{BEGIN: relaxed})
        self.read_engine = engine.execution_options(**{BEGIN: read})
        self.look_engine = engine.execution_options(**{BEGIN: ()})
        self.clock = clock
        self._durability_queries = durability_queries
        self._failure = failure
        after_fork(self._leave_inherited_sessions)

    def _count_lost(self, _: object, __: object, error: object) -> None:
        self.sessions_lost += error is not None  # else it was left by us

    def _leave_inherited_sessions(self) -> None:
        # Kept, not closed: that would end sessions that the parent still uses.
        _inherited.append(self.engine.pool)
        self.engine.dispose(close=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    @property
    def address(self) -> str:
        """The address as it may be shown."""
        return display_url(self.url)

    @functools.cached_property
    def keeps_sessions(self) -> bool:
        """No pooler gives the next transaction another session."""
        return True

    def lock(self, name: str) -> tuple[str, ...]:
        """Return the SQL of the exclusive lock of a name, if a writer needs one."""
        return ()

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Read one snapshot, without any lock."""
        with self.translated(), self.read_engine.connect() as connection:
            yield connection
            # At a rollback psycopg would forget what it has prepared.
            connection.connection.commit()

    @contextlib.contextmanager
    def look(self) -> Iterator[sa.Connection]:
        """Execute statements that only read; each by itself sees the newest state."""
        with self.translated(), self.look_engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def write(
        self,
        *selected: str,
        lock: str | None = None,
        unanswered: Callable[[str], Exception] | None = None,
    ) -> Iterator[sa.Connection]:
        """Write; flushed to disk when the block has been left.

        Args:
            selected: PostgreSQL only: SQL expressions, which the statement that begins
                the transaction selects as well.
            lock: a name of which this transaction has the exclusive lock.
            unanswered: makes the exception for a failed commit: it is then unknown
                whether the change was written.
        """
        with self._begun(self.engine, selected, lock) as connection:
            yield connection
            try:
                connection.commit()
            except sa.exc.SQLAlchemyError as error:
                if unanswered is None:
                    raise
                raise unanswered(self.describe(error)) from None

    @contextlib.contextmanager
    def relaxed(
        self, *selected: str, lock: str | None = None
    ) -> Iterator[sa.Connection]:
        """Write what a crash may lose; the next durable write flushes it too."""
        with self._begun(self.relaxed_engine, selected, lock) as connection:
            yield connection
            connection.commit()

    def setup(self) -> contextlib.AbstractContextManager[sa.Connection]:
        """Make tables; flushed, and in a database one process at a time."""
        return self.write(lock="")

    def write_one(
        self,
        statement: sa.Executable,
        values: Mapping[str, Any],
        *,
        unanswered: Callable[[str], Exception],
    ) -> Sequence[sa.Row[Any]]:
        """Execute one statement that is a transaction: one round trip. PostgreSQL only.

        The statement selects `FLUSHED`. `unanswered` makes the exception for a session
        that ends meanwhile: it is then unknown whether the change was written.
        """
        with self.translated():
            try:
                with self.look_engine.connect() as connection:
                    return connection.execute(statement, values).all()
            except sa.exc.DBAPIError as error:
                has_ended = error.connection_invalidated and error.statement
                if has_ended and not isinstance(error.orig, NotNowError):
                    raise unanswered(self.describe(error)) from None
                raise

    @contextlib.contextmanager
    def _begun(
        self, engine: sa.Engine, selected: tuple[str, ...], lock: str | None
    ) -> Iterator[sa.Connection]:
        if lock is not None:
            selected = (*self.lock(lock), *selected)
        with self.translated(), engine.connect() as connection:
            if selected:
                begin = engine.get_execution_options()[BEGIN]
                statement = ", ".join([*begin, *selected])
                connection.execution_options(**{BEGIN: (statement,)})
            # Now: a driver's own bulk load is no statement, and would begin nothing.
            transaction = connection.begin()
            try:
                yield connection
            except BaseException:
                # SQLAlchemy leaves it open where a commit failed: the session would go
                # back to the pool in it, and the next commit would write it.
                if connection.get_transaction() is transaction:
                    transaction.rollback()
                raise

    def read_only_reason(self) -> str:
        """Return why no process can write here now; empty where that is not known."""
        return ""

    def durability(self) -> dict[str, str]:
        """Return the settings that decide whether a durable commit survives a crash."""
        begin = self.engine.get_execution_options()[BEGIN]
        # Without SQLite's lock: a question waits for no writer.
        unlocked = [statement.removesuffix(" IMMEDIATE") for statement in begin]
        with self.translated(), self.engine.connect() as connection:
            connection.execution_options(**{BEGIN: unlocked})
            return {
                name: str(connection.exec_driver_sql(query).scalar())
                for name, query in self._durability_queries.items()
            }

    def close(self) -> None:
        """Release all connections; a later use opens new ones."""
        self.engine.dispose()

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Turn SQLAlchemy's errors into those that the owner of the database raises."""
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            if self._failure is None:
                raise
            says_cure = isinstance(getattr(error, "orig", None), NotNowError)
            raise self._failure(self.describe(error), says_cure=says_cure) from None

    def describe(self, error: sa.exc.SQLAlchemyError) -> str:
        """Return the driver's message in one line, without parameters and passwords."""
        origin = getattr(error, "orig", None)
        text = str(origin).strip().split("\n")[0] if origin else ""
        text = without_secrets(text, secrets_in(self.url))
        if isinstance(origin, NotNowError):
            return f"{self.address}: {text}"
        return f"{self.address}: {type(origin or error).__name__}: {text}"


@contextlib.contextmanager
def driver_errors(connection: sa.Connection) -> Iterator[None]:
    """Raise what the driver itself raises as SQLAlchemy does."""
    driver: type[Exception] = connection.dialect.loaded_dbapi.Error
    try:
        yield
    except driver as error:
        wrapped = sa.exc.DBAPIError.instance(
            None, None, error, driver, dialect=connection.dialect
        )
        raise wrapped from error


def describe_error(error: Exception) -> str:
    """Return an error in one line for a log: its class, and why if no record is in it.

    The driver's message about a connection, a lock or a disk is shown. Messages about
    a statement or its values may quote a record. Parameters are never shown.
    """
    origin = getattr(error, "orig", None) or error
    kind, kinds = type(origin), (*type(error).__mro__, *type(origin).__mro__)
    if _SHOWN.isdisjoint(k.__name__ for k in kinds):
        return kind.__name__
    line = without_secrets(str(origin).strip().partition("\n")[0])
    return f"{kind.__name__}: {line[:300]}"


_CAUSES: Final[tuple[tuple[frozenset[str], tuple[str, ...], str], ...]] = (
    (
        frozenset({"25006"}),
        ("read-only", "readonly database"),
        "is read-only: a standby, or default_transaction_read_only is on. Promote it, "
        "or name the primary in its URL",
    ),
    (
        frozenset({"53100"}),
        ("disk is full", "no space left"),
        "has no room left on its disk: make room there",
    ),
    (
        frozenset({"53300"}),
        ("too many clients", "connection slots"),
        "takes no more connections: close some, or raise max_connections",
    ),
    (
        frozenset({"57P01", "57P02", "57P03"}),
        ("starting up", "shutting down", "recovery mode"),
        "is being started or shut down: it answers again soon",
    ),
    (
        frozenset({"42501"}),
        ("permission denied",),
        "denies its role a right: its own log has the GRANT",
    ),
)
"""By SQLSTATE, or by what a driver's message has: what is the matter, and its cure."""


def describe_not_now(error: Exception) -> str | None:
    """Return why a database does not serve now, in words for any caller.

    It has no address, no name and nothing of a record. None for another cause: then
    the database did not answer, as far as is known.
    """
    origin = getattr(error, "orig", None) or error
    state = getattr(origin, "sqlstate", None)
    # Not all of it: it may quote a record, or have the name of a host.
    text = str(origin).lower().partition("fatal:")[2]
    of_sqlite = type(origin).__module__ == "sqlite3"
    if isinstance(origin, NotNowError) or (of_sqlite and state is None):
        text = str(origin).lower()
    text = re.sub(r'"[^"]*"', "", text)  # a name may be any words
    for states, words, cause in _CAUSES:
        if state in states or (not state and any(word in text for word in words)):
            return cause
    return None


def refuse_not_now(error: Exception) -> str:
    """Return what a participant answers where its database does not serve now."""
    cause = describe_not_now(error)
    return f"the participant's database {cause or 'did not answer: ask again'}"


def storable(connection: sa.Connection, text: str) -> str:
    """Return a text as the database can hold it: other characters are escaped.

    For foreign text that must be recorded, such as an answer of a sink. Where the
    encoding of a PostgreSQL is not UTF-8, all but ASCII is escaped. A known secret is
    cut.
    """
    encoding = "utf-8"
    if connection.dialect.name == "postgresql":
        session: Any = connection.connection.driver_connection
        server = session.info.parameter_status("server_encoding")
        encoding = encoding if server in ("UTF8", "SQL_ASCII") else "ascii"
    text = without_secrets(text).replace("\0", r"\x00")
    return text.encode(encoding, "backslashreplace").decode(encoding)


class NotNowError(Exception):
    """A database does not allow it now; names who may change that, and no record."""


def not_now(detail: str) -> sa.exc.OperationalError:
    """Make the error of a session that is of no use."""
    return sa.exc.OperationalError(
        "", {}, NotNowError(detail), connection_invalidated=True
    )


def leave_where(
    engine: sa.Engine, reason: Callable[[sa.engine.ExceptionContext], str | None]
) -> None:
    """Drop a pool's sessions at an error that is a reason to, and name the cure."""

    def leave(context: sa.engine.ExceptionContext) -> sa.exc.OperationalError | None:
        if (detail := reason(context)) is None:
            return None
        context.is_disconnect = True
        return not_now(detail)

    sa.event.listen(engine, "handle_error", leave, retval=True)


def _begin(connection: sa.Connection) -> None:
    # Where it raises, the connection must be left: SQLAlchemy would begin no further
    # transaction on it, and PostgreSQL would commit each statement by itself.
    for statement in connection.get_execution_options()[BEGIN]:
        connection.exec_driver_sql(statement)


_inherited: Final[list[sa.Pool]] = []
