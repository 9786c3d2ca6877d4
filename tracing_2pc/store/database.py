"""Connections to the decision log: durable, relaxed and reading transactions."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tracing_2pc.errors import (
    ConfigurationError,
    DecisionLogError,
    DecisionUnknownError,
)
from tracing_2pc.model import TransactionId
from tracing_2pc.settings import reveal
from tracing_2pc.store import session
from tracing_2pc.store import statements as sql
from tracing_2pc.store.file import check_disk, follow

_PATIENCE: Final = 30  # seconds to wait for a lock that another driver holds
_BEGIN: Final = "tpc_begin"
_SYNCHRONOUS: Final = {"0": "off", "1": "normal", "2": "full", "3": "extra"}


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Database:
    """Three kinds of transaction on one database; each `with` is one transaction.

    What SQLAlchemy raises becomes `DecisionLogError`, without any password that the
    URL may hold and without the statement's parameters. Leaving by an exception
    rolls back.
    """

    url: sa.URL
    durable_engine: sa.Engine
    relaxed_engine: sa.Engine
    reading_engine: sa.Engine

    def __repr__(self) -> str:
        return f"Database({self.shown!r})"

    @property
    def shown(self) -> str:
        """The address as it may be shown; options, which may be secret, left out."""
        return self.url.set(query={}).render_as_string(hide_password=True)

    @contextlib.contextmanager
    def durable(self) -> Iterator[sa.Connection]:
        """Write; flushed to disk when the block has been left."""
        with self.translated(), self.durable_engine.connect() as connection:
            yield connection
            connection.commit()

    @contextlib.contextmanager
    def deciding(self, transaction: TransactionId) -> Iterator[sa.Connection]:
        """Write a decision; flushed to disk when the block has been left.

        Raises:
            DecisionUnknownError: the commit itself failed: written, or not.
        """
        with self.translated(), self.durable_engine.connect() as connection:
            yield connection
            try:
                connection.commit()
            except sa.exc.SQLAlchemyError as error:
                raise DecisionUnknownError(
                    f"{transaction}: {self._say(error)}. The decision may or may not "
                    "be in the log: ask it again",
                    transaction_id=str(transaction),
                ) from None

    @contextlib.contextmanager
    def relaxed(self) -> Iterator[sa.Connection]:
        """Write what a crash may lose; the next durable write flushes it too."""
        with self.translated(), self.relaxed_engine.connect() as connection:
            yield connection
            connection.commit()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Read one snapshot, without any lock."""
        with self.translated(), self.reading_engine.connect() as connection:
            yield connection

    def clock(self, connection: sa.Connection) -> float | None:
        """Return the time that all who use this log share, in Unix seconds.

        None for SQLite: it has no clock but that of the machine that holds its file.
        """
        if self.url.get_backend_name() == "sqlite":
            return None
        return float(connection.scalar(sql.CLOCK) or 0.0)

    def durability(self) -> dict[str, str]:
        """Say how this database flushes what is durable, in its own words."""
        kind = self.url.get_backend_name()
        statements = sql.DURABILITY[kind]
        with self.translated(), self.durable_engine.connect() as connection:
            if kind == "sqlite":  # waiting for nobody
                connection = connection.execution_options(**{_BEGIN: ""})
            found = {
                name: str(connection.exec_driver_sql(statement).scalar())
                for name, statement in statements.items()
            }
        if (level := found.get("synchronous")) in _SYNCHRONOUS:
            found["synchronous"] = _SYNCHRONOUS[level]
        return found

    def close(self) -> None:
        """Release all connections; a later use opens new ones."""
        for engine in (self.durable_engine, self.relaxed_engine, self.reading_engine):
            engine.dispose()

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Turn what SQLAlchemy raises into `DecisionLogError`."""
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            raise DecisionLogError(self._say(error)) from None

    def _say(self, error: sa.exc.SQLAlchemyError) -> str:
        """Say what the driver said, in one line; never a parameter or a password."""
        origin = getattr(error, "orig", None)
        text = str(origin).strip().split("\n")[0] if origin else ""
        for secret in _secrets(self.url):
            text = text.replace(secret, "***")
        return f"decision log {self.shown}: {type(origin or error).__name__}: {text}"


def connect(reference: str, *, must_exist: bool = False) -> Database:
    """Prepare the connections for a URL or `env:NAME`; opens none yet.

    Raises:
        ConfigurationError: not a URL of ours, one with a literal password, or, if it
            must exist, a SQLite file that does not.
    """
    url = _url(reference)
    if url.get_backend_name() == "sqlite":
        if must_exist and not Path(url.database or "").is_file():
            raise ConfigurationError(absent(str(url.database)))
        return _sqlite(url)
    return _postgresql(url.set(drivername="postgresql+psycopg"))


def absent(where: str) -> str:
    """Say that there is no log, to somebody who expected one."""
    return (
        f"there is no decision log at {where}: look at --log, TPC_LOG and `log` in "
        "tpc.toml; a job or `tracing-2pc init` makes one"
    )


def shown(reference: str) -> str:
    """Return a log's address as it may be shown.

    Raises:
        ConfigurationError: not a URL of ours, or one with a literal password.
    """
    if reference.startswith("env:"):
        return reference
    return _url(reference).set(query={}).render_as_string(hide_password=True)


def _url(reference: str) -> sa.URL:
    secret = reference.startswith("env:")
    try:
        url = sa.make_url(reveal(reference, "log") if secret else reference)
    except sa.exc.ArgumentError:
        raise ConfigurationError(f"log: {_EXPECTED}") from None
    if url.drivername not in _DRIVERS:
        raise ConfigurationError(f"log ({url.drivername}): {_EXPECTED}")
    if not secret and _secrets(url):
        raise ConfigurationError(
            "log: the URL holds a password. Write `env:NAME` and keep the URL in that "
            "environment variable, or leave the password to the database's own "
            "password file (~/.pgpass)"
        )
    return url


def _secrets(url: sa.URL) -> list[str]:
    options = (url.normalized_query.get(name, ()) for name in _SECRET_OPTIONS)
    found = [str(url.password or ""), *itertools.chain(*options)]
    return [secret for secret in found if secret]


_SECRET_OPTIONS: Final = ("password", "sslpassword", "oauth_client_secret")
"""Those of libpq."""

_EXPECTED: Final = (
    "expected sqlite:///folder/decisions.db or postgresql://user@host/database, or "
    "env:NAME of a variable that holds it"
)
_DRIVERS: Final = {"sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg"}


def _sqlite(url: sa.URL) -> Database:
    path = url.database or ":memory:"
    if path == ":memory:" or path.startswith("file:"):
        raise ConfigurationError(
            "log: a decision log must outlive its driver: give a file, as in "
            "sqlite:///state/decisions.db (in tests: tracing_2pc.testing)"
        )
    check_disk(Path(path))
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"log: cannot make folder {Path(path).parent}: {error.strerror}"
        ) from None
    durable, relaxed = _sqlite_engine(url, "FULL"), _sqlite_engine(url, "NORMAL")
    follow(Path(path).absolute(), durable, relaxed)
    # IMMEDIATE: a writer waits at the door, where waiting works, and not half way.
    return Database(
        url,
        durable.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"}),
        relaxed.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"}),
        relaxed.execution_options(**{_BEGIN: "BEGIN"}),
    )


def _sqlite_engine(url: sa.URL, synchronous: str) -> sa.Engine:
    # isolation_level None: sqlite3 itself must never begin a transaction for us.
    arguments = {"timeout": _PATIENCE, "isolation_level": None}
    engine = sa.create_engine(url, connect_args=arguments)

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _: object) -> None:
        _write_ahead(connection)
        connection.execute(f"PRAGMA synchronous = {synchronous}")

    return _beginning(engine)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to WAL: the one statement at which SQLite itself does not wait."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _postgresql(url: sa.URL) -> Database:
    # In each transaction: a pooler may give the next one another session.
    limits = session.limits(_PATIENCE, local=True)
    flushed, unflushed = (
        {_BEGIN: f"SELECT {how}, {limits}"}
        for how in (session.FLUSHED, session.UNFLUSHED)
    )
    try:
        engine = sa.create_engine(
            url,
            connect_args=session.options(url),
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",  # a lock, then a fresh look
            execution_options=flushed,
        )
    except ModuleNotFoundError:
        raise ConfigurationError(
            "log: PostgreSQL needs psycopg 3: pip install 'tracing-2pc[postgres]'"
        ) from None
    sa.event.listens_for(engine, "connect")(_configure_session)
    _beginning(engine)
    return Database(
        url,
        engine,
        engine.execution_options(**unflushed),
        engine.execution_options(
            **{_BEGIN: ""}, isolation_level="REPEATABLE READ", postgresql_readonly=True
        ),
    )


def _configure_session(connection: Any, _: object) -> None:
    """Refuse a server that does not flush; notice when one of us is gone."""
    with connection.cursor() as cursor:
        if cursor.execute("SHOW fsync").fetchone() != ("on",):
            connection.close()
            raise ConfigurationError("log: this PostgreSQL runs with fsync off")
    connection.commit()
    if not session.is_pooled(connection):
        session.notice_peers(connection)


def _beginning(engine: sa.Engine) -> sa.Engine:
    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        if statement := connection.get_execution_options().get(_BEGIN):
            connection.exec_driver_sql(statement)

    return engine
