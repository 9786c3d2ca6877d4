"""What the participant's suites share: a database of either kind, and worlds on it."""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.kinds import KINDS_AND_DATABASES, sqlite_url, started, tagged_rows
from support.participant import World


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    """URL of an empty database of this test's own, on each database in turn."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_database"))
    return sqlite_url(tmp_path)


@pytest.fixture
def start() -> Iterator[Callable[..., World]]:
    """Start a participant, by its kind, URL and settings; it is closed at the end.

    A test asks for it after its database, which goes only when all are closed.
    """
    with contextlib.ExitStack() as stack:

        def one(kind: Callable[..., World], url: str, **settings: Any) -> World:
            world = kind(url, **settings)
            stack.callback(world.resource.close)
            return world

        yield one


@pytest.fixture
def open_at(url, start) -> Callable[..., World]:
    """Start a process's worth of the participant, with other settings if need be."""
    return functools.partial(start, tagged_rows, url)


@pytest.fixture
def role(postgres_database) -> Iterator[str]:
    """A reader, who is no owner of anything."""
    name = f"reader_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_database, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name}")
        yield name
        owner.execute(f"DROP OWNED BY {name}")
        owner.execute(f"DROP ROLE {name}")


@pytest.fixture(params=KINDS_AND_DATABASES)
def made(request, tmp_path) -> Iterator[tuple[World, str, str]]:
    """A participant of each kind on each database: it, its kind, and its URL."""
    yield from started(request, tmp_path)


@pytest.fixture
def world(made) -> World:
    """That participant; a suite with a world of its own has another fixture."""
    return made[0]
