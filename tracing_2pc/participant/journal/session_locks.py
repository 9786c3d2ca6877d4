"""Locks of an application that outlive a local transaction, for `ExternalBranches`.

They belong to a session on PostgreSQL and to a file on SQLite, and end with the process
that holds them. Nothing else here needs a session of its own.
"""

from __future__ import annotations

import abc
import fcntl
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.settings import LOCK_WAIT
from tracing_2pc.participant.journal.database import Database
from tracing_2pc.store.engines import database as engines
from tracing_2pc.store.engines.postgresql import advisory_key, peer_timeout

# The server ends a session that holds a lock and is silent for so long.
_LIMIT_SILENCE: Final = "set_config('idle_session_timeout', '{}', false)"
_ALLOW_SILENCE: Final = "set_config('idle_session_timeout', NULL, false)"


class SessionLocks(abc.ABC):
    """The lock of each application, exclusive or shared, as `Database.write` has."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def check(self) -> None:  # noqa: B027 - a file needs nothing
        """Raise `ConfigurationError` where such locks would not hold."""

    @abc.abstractmethod
    def session_lock(self, application: str) -> AbstractContextManager[Connection]:
        """Hold it exclusive over several transactions; an error ends the session."""

    @abc.abstractmethod
    def shared_session_lock(
        self, connection: Connection | None, application: str
    ) -> AbstractContextManager[None]:
        """Hold it shared, while a branch is prepared outside of a local transaction.

        A process that gets the exclusive lock later finds the branch prepared, or
        knows that it never will be. Therefore a branch that a session of this database
        prepares is locked by that `connection`.
        """


def session_locks(database: Database) -> SessionLocks:
    """Return the locks of this database."""
    is_postgresql = database.engine.dialect.name == "postgresql"
    return _OfSessions(database) if is_postgresql else _OfAFile(database)


class _OfSessions(SessionLocks):
    def check(self) -> None:
        if not self._database.keeps_sessions:
            raise ConfigurationError(
                "a pooler in transaction mode stands before this PostgreSQL: votes of "
                "this kind rest on locks of sessions, which it would hand to others. "
                "Connect to the server itself, set pool_mode = session for this "
                "database, or use TaggedRows"
            )

    @contextmanager
    def session_lock(self, application: str) -> Iterator[Connection]:
        key, relaxed_engine = advisory_key(application), self._database.relaxed_engine
        (relaxed,) = relaxed_engine.get_execution_options()[engines.BEGIN]
        limit = _LIMIT_SILENCE.format(peer_timeout())
        lock = f"{relaxed}, {limit}, pg_advisory_lock({key})"
        with relaxed_engine.connect() as connection:
            try:
                connection.execution_options(**{engines.BEGIN: (lock,)})
                connection.begin().commit()
                options = self._database.engine.get_execution_options()
                connection.execution_options(**options)
                yield connection
                unlock = f"SELECT {_ALLOW_SILENCE}, pg_advisory_unlock({key})"
                connection.execution_options(**{engines.BEGIN: ()})
                connection.exec_driver_sql(unlock)
                connection.commit()
            except BaseException:
                connection.invalidate()
                raise

    @contextmanager
    def shared_session_lock(
        self, connection: Connection | None, application: str
    ) -> Iterator[None]:
        if connection is None:
            with self._database.engine.connect() as own:
                own.execution_options(**{engines.BEGIN: ()})
                with self.shared_session_lock(own, application):
                    yield
            return
        # A lock of the transaction would pass to the prepared one and outlive this
        # session. The next holder finds the transaction prepared, or rolled back.
        key, limit = advisory_key(application), _LIMIT_SILENCE.format(peer_timeout())
        try:
            lock = f"SELECT {limit}, pg_advisory_lock_shared({key})"
            connection.exec_driver_sql(lock)
            yield
            unlock = f"SELECT {_ALLOW_SILENCE}, pg_advisory_unlock_shared({key})"
            connection.exec_driver_sql(unlock)
        except BaseException:
            connection.invalidate()
            raise


class _OfAFile(SessionLocks):
    """One lock for all applications: each writing transaction excludes all others."""

    @contextmanager
    def session_lock(self, application: str) -> Iterator[Connection]:
        with self._locked(fcntl.LOCK_EX), self._database.engine.connect() as connection:
            yield connection

    def shared_session_lock(
        self, connection: Connection | None, application: str
    ) -> AbstractContextManager[None]:
        return self._locked(fcntl.LOCK_SH)

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        """Hold a lock of the file; or `OperationalError`: another holds it too long."""
        database = Path(str(self._database.engine.url.database))
        until = time.monotonic() + LOCK_WAIT
        with database.with_name(f"{database.name}-tpc.lock").open("ab") as file:
            while True:
                try:
                    fcntl.flock(file, kind | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > until:
                        raise sa.exc.OperationalError("flock", None, error) from None
                    time.sleep(0.01)
            yield
