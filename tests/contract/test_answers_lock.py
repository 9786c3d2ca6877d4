"""Who waits at a participant: nobody for an upload, decisions for a prepare's end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.branches import ONE, OTHER, TWIN, Branch, orders
from support.kinds import (
    ALL_KINDS,
    CONTRACT_KINDS,
    KINDS,
    started,
    tagged_rows,
    variant,
)
from support.participant import (
    Upload,
    World,
    database_of,
    journal_of,
    keep,
    store_of,
    streaming,
)
from support.waiting import AT_LAST, PAUSE

T = "orders.7.1"

OVERTAKE: dict[str, Callable[[World], Any]] = {
    "abort": lambda world: world.abort(T),
    "abort of the branch": lambda world: world.abort(T, branch=ONE.branch),
    "empty commit": lambda world: world.commit(T),
    "forgotten_through": lambda world: world.abort("orders.9.1", forgotten_through=8),
}


def blocks(url: str, thread: threading.Thread) -> bool:
    """Say whether it comes to wait for a lock of ours; False if it comes to its end."""
    waiting = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND "
        "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        while thread.is_alive():
            if connection.execute(waiting).fetchone() != (0,):
                return True
            thread.join(PAUSE)
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", OVERTAKE)
def test_a_decision_waits_for_the_end_of_a_prepare(kind, by, postgres_database, start):
    """Between its last look and its end, a prepare cannot be overtaken (rule 20).

    What comes finds the branch prepared, never half way: what was sealed stays sealed.
    """
    world, other = (start(KINDS[kind], postgres_database) for _ in range(2))
    keep(world, "orders.1.1", OTHER)
    found: list[int] = []
    overtake = threading.Thread(
        target=lambda: found.append(OVERTAKE[by](other).status_code)
    )
    journal, waited = journal_of(world), []

    def look_and_sleep(note: Callable[..., Any]) -> Callable[..., Any]:
        def after_a_while(*arguments: Any, **named: Any) -> Any:
            overtake.start()
            waited.append(blocks(postgres_database, overtake))
            return note(*arguments, **named)

        return after_a_while

    journal.add_prepared = look_and_sleep(journal.add_prepared)
    assert world.prepare(T).status_code == 200
    overtake.join(AT_LAST)
    assert (waited, found) == ([True], [200])
    if by == "forgotten_through":
        assert other.listed() == [(T, ONE.branch, "prepared")]
        assert other.resolve(T, "abort").status_code == 200
    assert (other.in_doubt(), other.visible()) == (0, OTHER.rows)


STREAMING = [variant(kind, "postgresql") for kind in ("TaggedRows", "Outbox")]
"""Those that write a large body as it arrives."""


@pytest.fixture(params=CONTRACT_KINDS)
def made(request, tmp_path) -> Iterator[tuple[World, str, str]]:
    yield from started(request, tmp_path)


def test_nobody_waits_for_a_slow_upload(world):
    """While a body trickles in, all else is answered, and nothing of it is seen."""
    assert world.prepare("orders.6.1", OTHER).status_code == 200
    with world.writing(T) as upload:
        assert (world.show(T).status_code, world.commit(T, ONE).status_code) == (
            404,
            404,
        )
        assert world.resolve(T, "commit").status_code == 404
        assert world.prepare(T, TWIN).status_code == 200
        assert world.commit("orders.6.1", OTHER).status_code == 200
        assert world.client.get("/metrics").status_code == 200
        assert len(world.listed()) == 1
        assert world.abort(T).status_code == 200
        assert upload.is_open
        assert upload.finish().status_code == 409
    assert (world.in_doubt(), world.visible()) == (0, 1)


@pytest.mark.parametrize("made", STREAMING, indirect=True)
def test_a_small_body_holds_nothing_while_it_arrives(world):
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
def test_what_comes_while_its_rows_are_written_is_seen(made, start):
    """They are written without the lock, so an abort does not wait for them."""
    world, kind, url = made
    database = database_of(world)
    other = start(ALL_KINDS[kind], url)
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


def test_a_branch_that_is_asked_for_twice_is_not_in_its_own_way(
    postgres_database, start
):
    """A unique index sees the rows of the first request; the second has its answer."""
    world, other = (start(tagged_rows, postgres_database) for _ in range(2))
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


@pytest.mark.parametrize("made", STREAMING, indirect=True)
def test_a_branch_is_prepared_in_one_transaction(world):
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
