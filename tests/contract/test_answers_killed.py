"""Nobody waits for an upload, a kill changes no answer, and flushes are counted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.branches import ONE, OTHER, TWIN, Branch, orders
from support.kinds import ALL_KINDS, CONTRACT_KINDS, started, tagged_rows, variant
from support.participant import Upload, World, database_of, keep, store_of, streaming
from support.postgres import flushes

from tracing_2pc.participant import TaggedRows

T = "orders.7.1"


STREAMING = [variant(kind, "postgresql") for kind in ("TaggedRows", "Outbox")]
"""Those that write a large body as it arrives."""


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
        assert len(world.listed()) == 1
        assert world.abort(T).status_code == 200
        assert upload.is_open
        assert upload.finish().status_code == 409
    assert (world.in_doubt(), world.visible()) == (0, 1)


@pytest.mark.parametrize("made", STREAMING, indirect=True)
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


@pytest.mark.parametrize("made", STREAMING, indirect=True)
def test_what_comes_while_its_rows_are_written_is_seen(
    made: tuple[World, str, str],
) -> None:
    """They are written without the lock, so an abort does not wait for them."""
    world, kind, url = made
    database = database_of(world)
    other = ALL_KINDS[kind](url)
    keep(world, "orders.6.1", OTHER)
    load, aborted = database.load, []

    def write_and_abort(*about: Any, **how: Any) -> int:
        rows: int = load(*about, **how)
        # Answered while the prepare waits for it: so it does not wait for the prepare.
        aborted.append(other.abort(T).status_code)
        return rows

    database.load = write_and_abort
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
    write = store.prepare

    def come_second(*about: Any) -> Any:
        assert other.prepare(T).status_code == 200
        return write(*about)

    store.prepare = come_second
    assert world.prepare(T).status_code == 200
    assert (world.in_doubt(), world.visible()) == (1, 2)
    for each in (world, other):
        each.resource.close()


@pytest.mark.parametrize("made", STREAMING, indirect=True)
def test_a_branch_is_prepared_in_one_transaction(world: World) -> None:
    """Whatever the size of its body: rows, branch and what is hidden together."""
    keep(world, "orders.6.1", OTHER)
    committed: list[int] = []

    def note(_: sa.Connection) -> None:
        committed.append(threading.get_ident())

    sa.event.listen(database_of(world).engine, "commit", note)
    for name, how in (("0.1", contextlib.nullcontext()), ("1.1", streaming(world))):
        with how:
            assert world.prepare(T, Branch(ONE.body, 3, name)).status_code == 200
        # An outbox's sender commits, too, in its thread.
        assert committed.count(threading.get_ident()) == 1
        committed.clear()


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
