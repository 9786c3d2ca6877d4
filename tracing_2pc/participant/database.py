"""The participant's own database: what a resource asks of it, whichever it is.

A local transaction is opened for a purpose, and the purpose says what it locks and
whether it flushes:

- `read`: locks nothing, writes nothing.
- `decide`: the application's exclusive lock; durable.
- `note`: the same lock, not durable: what is lost in a crash was never promised.
- `setup`: excludes every other setup.

A `Writer` holds a branch while it is written. While it lives, everybody can see
that; when its process dies, everybody can see that too.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.participant.body import Body, Source
from tracing_2pc.settings import reveal
from tracing_2pc.telemetry.spans import database_span


class Writer(Protocol):
    """One upload: claimed, received, written, and made durable, in this order."""

    owner: int

    def note(self, application: str) -> AbstractContextManager[Connection]:
        """Open the short transaction that puts the claim on record."""

    def receive(self, body: Body) -> Source:
        """Return the body to read records from: as it arrives, or whole on disk."""

    def write(self) -> AbstractContextManager[Connection]:
        """Open the durable transaction that the rows go into."""

    def aside(self) -> AbstractContextManager[Connection]:
        """Open a transaction that locks nothing by itself and costs no flush."""

    def share(self, connection: Connection, application: str) -> None:
        """Take the application's lock, shared with other prepares, till the commit."""


class Database(Protocol):
    """A database that data and journal share."""

    engine: sa.Engine

    @property
    def driver(self) -> Any:
        """The PEP 249 module whose errors `load` raises."""

    def read(self) -> AbstractContextManager[Connection]:
        """Open a transaction that only reads."""

    def decide(self, application: str) -> AbstractContextManager[Connection]:
        """Open a durable transaction with the application's exclusive lock."""

    def note(self, application: str) -> AbstractContextManager[Connection]:
        """Open a transaction with the same lock that need not survive a crash."""

    def setup(self) -> AbstractContextManager[Connection]:
        """Open the transaction in which tables and views are made."""

    def writer(self) -> AbstractContextManager[Writer]:
        """Open an upload. Leaving it ends it, however it went."""

    def alive(self, connection: Connection, writers: set[int]) -> set[int]:
        """Return those of the writers whose upload is still under way."""

    def load(
        self,
        connection: Connection,
        table: str,
        names: list[str],
        batches: Iterable[Any],
    ) -> int:
        """Write Arrow batches with these columns; return how many rows they had."""

    def refusal(self, error: Exception) -> str | None:
        """Say why an error of `load` comes every time; None if it may be over later."""

    def delete_slice(
        self, connection: Connection, table: str, tag: int, limit: int
    ) -> int:
        """Delete some rows of a tag, and no others; return how many.

        Rows that another transaction has locked may be left out.
        """

    def now(self) -> sa.ColumnElement[float]:
        """Return the database's clock, Unix seconds, as an expression."""


def open_database(url: str) -> Database:
    """Return the database of an SQLAlchemy URL, or of `env:NAME` that holds one.

    Nothing is connected yet.

    Raises:
        ConfigurationError: a password in the URL, among its options too, or a database
            that we don't know.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "postgresql":
        from tracing_2pc.participant.postgresql import PostgreSQL

        return PostgreSQL(parsed.set(drivername="postgresql+psycopg"))
    if parsed.get_backend_name() == "sqlite":
        from tracing_2pc.participant.sqlite import SQLite

        return SQLite(parsed.set(drivername="sqlite+pysqlite"))
    raise ConfigurationError(
        f"{parsed.get_backend_name()}: a participant's database is postgresql or sqlite"
    )


def commit(connection: Connection) -> None:
    """End the open transaction here, in a span: its COMMIT waits for the disk."""
    with database_span("COMMIT", connection.dialect.name):
        connection.commit()


def _parse(url: str) -> sa.URL:
    secret = url.startswith("env:")
    try:
        parsed = sa.make_url(reveal(url, "database URL") if secret else url)
    except sa.exc.ArgumentError:
        raise ConfigurationError(
            "database URL: expected postgresql://host/name, sqlite:///file or env:NAME"
        ) from None
    hidden = [name for name in parsed.query if "password" in name]
    if (parsed.password or hidden) and not secret:
        raise ConfigurationError(
            "database URL: it holds a password; write env:NAME and put the URL into "
            "that variable, or leave the password to the database's password file"
        )
    if "password" in parsed.query:
        # Where it is masked in whatever is shown.
        password = str(parsed.query["password"])
        parsed = parsed.difference_update_query(["password"]).set(password=password)
    return parsed
