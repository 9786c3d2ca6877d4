"""Opens the database of a participant's URL."""

from __future__ import annotations

from tracing_2pc.participant.journal.database import Database
from tracing_2pc.participant.journal.sqlite import SQLite
from tracing_2pc.store.engines.urls import database_url


def open_database(url: str) -> Database:
    """Return the database of an SQLAlchemy URL, or of `env:NAME`; connect to nothing.

    Raises:
        ConfigurationError: a password in the URL, among its options too, or a database
            that is neither PostgreSQL nor SQLite.
    """
    parsed = database_url(url, "url")
    if parsed.get_backend_name() == "postgresql":
        from tracing_2pc.participant.journal.postgresql import PostgreSQL  # its driver

        return PostgreSQL(parsed)
    return SQLite(parsed)
