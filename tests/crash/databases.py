"""Databases for one run after another: new files, or some that are emptied."""

from __future__ import annotations

from pathlib import Path

import psycopg
from support.postgres import named, roll_back_prepared

NAMES = ("log", "ledger", "notifier", "rejected")


def sqlite(folder: Path) -> dict[str, str]:
    """Return URLs of files in a new folder."""
    return {name: f"sqlite:///{folder}/{name}.db" for name in NAMES}


class PostgreSQL:
    """Databases in a server that this harness started.

    Args:
        url: of its first database.
    """

    def __init__(self, url: str) -> None:
        self._urls = {name: named(url, name) for name in NAMES}
        with psycopg.connect(url, autocommit=True) as connection:
            for name in NAMES:
                connection.execute(f"CREATE DATABASE {name}")

    def emptied(self) -> dict[str, str]:
        """Return their URLs; nothing of an earlier run is left in them."""
        for url in self._urls.values():
            with psycopg.connect(url, autocommit=True) as connection:
                _empty(connection)
        return dict(self._urls)


def _empty(connection: psycopg.Connection[tuple[str, ...]]) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    roll_back_prepared(connection)
    connection.execute("DROP SCHEMA public CASCADE")
    connection.execute("CREATE SCHEMA public")
