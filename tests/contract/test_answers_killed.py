"""Nobody waits for an upload, a kill changes no answer, and flushes are counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.elsewhere import elsewhere
from support.participant import (
    ALL_KINDS,
    CONTRACT_KINDS,
    ONE,
    OTHER,
    TWIN,
    Branch,
    Upload,
    World,
    database_of,
    keep,
    orders,
    started,
    store_of,
    tagged_rows,
    variant,
)
from support.postgres import flushes

from tracing_2pc.participant import TaggedRows

T = "orders.7.1"


AT_ONCE = [
    variant(kind, database)
    for kind in ("TaggedRows", "Outbox")
    for database in ("sqlite", "postgresql")
]
"""Those that read a small body into memory, before they note anything."""


@pytest.fixture(params=CONTRACT_KINDS)
def made(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[World, str, str]]:
    yield from started(request, tmp_path)


def test_nobody_waits_for_a_slow_upload(world: World) -> None:
    """While a body trickles in, everything else is answered at once."""
    assert world.prepare("orders.6.1", OTHER).status_code == 200
    with world.writing(T) as upload:
        assert world.prepare(T, TWIN).status_code == 200
        assert world.commit("orders.6.1", OTHER).status_code == 200
        assert world.client.get("/metrics").status_code == 200
        assert len(world.listed()) == 2
        assert world.abort(T).status_code == 200
        assert upload.is_open
        assert upload.finish().status_code == 409
    assert (world.in_doubt(), world.visible()) == (0, 1)


@pytest.mark.parametrize("made", AT_ONCE, indirect=True)
def test_a_small_body_holds_nothing_while_it_arrives(world: World) -> None:
    """Nobody sees a branch before all of it is there, and it is refused as late."""
    keep(world, "orders.6.1", OTHER)
    uploads = [Upload(world, T, branch, {}, large=False) for branch in (ONE, TWIN)]
    assert world.listed() == []
    assert uploads[0].finish().status_code == 200
    assert world.listed() == [(T, ONE.branch, "prepared")]
    assert world.commit(T, ONE).status_code == 200
    assert uploads[1].finish().status_code == 409
    assert (world.in_doubt(), world.visible()) == (0, 4)


@pytest.mark.parametrize(
    "made", [kind for kind in AT_ONCE if "postgresql" in kind.id], indirect=True
)
def test_what_comes_while_its_rows_are_written_is_seen(
    made: tuple[World, str, str],
) -> None:
    """They are written without the lock, so an abort does not wait for them."""
    world, kind, url = made
    store = store_of(world)
    other = ALL_KINDS[kind](url)
    keep(world, "orders.6.1", OTHER)
    write_rows, aborted = store.write_rows, []

    def write_and_abort(*about: Any) -> None:
        write_rows(*about)
        # Answered while the prepare waits for it: so it does not wait for the prepare.
        aborted.append(other.abort(T).status_code)

    store.write_rows = write_and_abort
    assert world.prepare(T).status_code == 409
    assert aborted == [200]
    assert (world.in_doubt(), world.visible()) == (0, OTHER.rows)
    other.resource.close()


def test_a_branch_that_is_asked_for_twice_is_not_in_its_own_way(
    postgres_database: str,
) -> None:
    """A unique index sees the rows of the first request; the second has its answer."""
    world, other = (tagged_rows(postgres_database) for _ in range(2))
    for number, each in enumerate((world, other)):
        keep(each, f"orders.{number}.1", Branch(orders(90 + number), 1))
    with psycopg.connect(postgres_database, autocommit=True) as person:
        person.execute("CREATE UNIQUE INDEX one ON orders_tpc (id)")
    store = store_of(world)
    write_rows = store.write_rows

    def come_second(*about: Any) -> None:
        assert other.prepare(T).status_code == 200
        write_rows(*about)

    store.write_rows = come_second
    assert world.prepare(T).status_code == 200
    assert (world.in_doubt(), world.visible()) == (1, 2)
    for each in (world, other):
        each.resource.close()


def test_a_small_branch_is_prepared_in_one_transaction(world: World) -> None:
    """A large one is claimed in a transaction of its own, before its body is read."""
    keep(world, "orders.6.1", OTHER)
    committed: list[int] = []

    def note(_: sa.Connection) -> None:
        committed.append(threading.get_ident())

    sa.event.listen(database_of(world).engine, "commit", note)
    assert world.prepare(T).status_code == 200
    at_once = bool(store_of(world).at_once_bytes)
    # An outbox's sender commits, too, in its thread.
    assert (committed.count(threading.get_ident()) == 1) is at_once


def prepare_and_commit(kind: str, url: str) -> None:
    """Ask for both; the main program of a process."""
    world = ALL_KINDS[kind](url)
    world.prepare(T)
    world.commit(T, ONE)


@pytest.mark.parametrize(
    "made",
    [variant("ClaimedRows", "sqlite"), variant("ClaimedRows", "postgresql")],
    indirect=True,
)
@pytest.mark.parametrize(
    ("point", "prepared", "visible"),
    [
        ("participant.after_prepare", 1, 0),
        ("participant.before_commit", 1, 0),
        ("participant.after_commit", 0, 3),
    ],
)
def test_a_participant_that_is_killed(
    made: tuple[World, str, str],
    tmp_path: Path,
    point: str,
    prepared: int,
    visible: int,
) -> None:
    """What was durable stands after the kill, and the lost answer can be asked for.

    `ResourceContract` kills the other kinds, at more moments.
    """
    world, kind, url = made
    about = (prepare_and_commit, kind, url)
    assert elsewhere(tmp_path, *about, killed_at=point) == "killed"
    assert (world.in_doubt(), world.visible()) == (prepared, visible)
    assert world.prepare(T).status_code == (200 if prepared else 409)
    assert world.commit(T, ONE).status_code == 200
    assert (world.in_doubt(), world.visible()) == (0, 3)


@pytest.mark.parametrize("branches", [1, 3])
def test_flushes_of_a_transaction(postgres_database: str, branches: int) -> None:
    """PostgreSQL flushes once per prepare and once per commit, and not once more."""
    resource = TaggedRows(postgres_database, "orders")
    world = World(resource, lambda: 0)
    assert world.prepare("orders.0.1").status_code == 200
    resource.close()
    before = flushes(postgres_database)
    for n in range(branches):
        assert world.prepare(T, Branch(ONE.body, 3, f"{n}.0")).status_code == 200
    names = [Branch(ONE.body, 3, f"{n}.0") for n in range(branches)]
    assert world.commit(T, *names).status_code == 200
    world.show(T)
    world.listed()
    resource.close()
    assert flushes(postgres_database) - before == branches + 1
