"""What a participant has answered is on disk, written as a whole, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.branches import ONE, OTHER, TWIN
from support.databases import url
from support.kinds import KINDS, tagged_rows
from support.participant import World, database_of, end, keep, select
from support.relay import Topic, TopicRelay, publisher, relay_world
from support.texts import texts
from support.waiting import PATIENT

from tracing_2pc.participant import TaggedRows

__all__ = ["url"]

T = "orders.7.1"
TEXTS = texts("contract")


class Flushes:
    """Notes of each local transaction that writes whether it waits for the disk."""

    def __init__(self, world: World) -> None:
        engine = database_of(world).engine
        self._writing: set[Any] = set()
        self._seen: list[bool] = []
        sa.event.listen(engine, "before_cursor_execute", self._note)
        sa.event.listen(engine, "commit", self._look)

    def last(self, ask: Callable[[], Any]) -> bool:
        """Ask for something, and say whether the last one before the answer waits."""
        self._seen.clear()
        assert ask().status_code == 200
        return self._seen[-1]

    def _note(self, connection: sa.Connection, _: Any, sql: str, *__: Any) -> None:
        if sql.startswith(("INSERT", "UPDATE", "DELETE", "WITH")):
            self._writing.add(connection)

    def _look(self, connection: sa.Connection) -> None:
        asked = "PRAGMA synchronous"
        if connection.dialect.name == "postgresql":
            asked = "SHOW synchronous_commit"
        if connection in self._writing:
            self._writing.remove(connection)
            found = connection.exec_driver_sql(asked).scalar()
            self._seen.append(found in {2, "on"})


def assert_flushed(world: World) -> None:
    """Each verb that changes something flushes the last of what it changes."""
    keep(world, "orders.1.1", ONE)
    flushes = Flushes(world)
    assert flushes.last(lambda: world.prepare(T, ONE))
    assert flushes.last(lambda: world.prepare(T, TWIN))
    assert flushes.last(lambda: world.abort(T, branch=TWIN.branch))
    assert flushes.last(lambda: world.commit(T, ONE))
    assert flushes.last(lambda: world.prepare("orders.8.1", OTHER))
    assert flushes.last(lambda: world.abort("orders.8.1"))
    assert flushes.last(lambda: world.prepare("orders.9.1", OTHER))
    assert flushes.last(lambda: world.resolve("orders.9.1", "commit"))


def test_each_answer_waits_for_the_disk(open_at):
    """A vote, an acknowledgement and a person's word survive a crash (rule 13)."""
    assert_flushed(open_at())


@pytest.mark.parametrize(
    "edit",
    [
        *("sealed = 0", "state = 'pre`ared'", "rows = 2", "digest = 'x'"),
        *("tag = 99", "partition = 1"),
    ],
)
def test_a_damaged_branch_is_not_acknowledged(url, edit, start):
    """A bit that a disk has flipped: each request is refused, with the place."""
    world = start(tagged_rows, url)
    assert world.prepare(T, ONE).status_code == 200
    with database_of(world).setup() as connection:
        connection.execute(sa.text(f"UPDATE orders_tpc_branch SET {edit}"))
    refused = TEXTS["does not match"].format(name="orders")
    for answer in (world.commit(T, ONE, once=True), world.show(T)):
        assert answer.status_code == 503
        assert refused in answer.get_json()["detail"]


def test_what_a_relay_notes_waits_for_the_disk(url):
    """That a publication is begun, before it is; that it is in, before rows go."""
    flushed: list[bool] = []
    world = relay_world(url, Topic())
    keep(world, "orders.1.1", ONE)
    flushes = Flushes(world)

    def look(step: str, about: Any) -> None:
        if step == "begun" and about.transaction is not None:
            flushed.append(flushes._seen[-1])
        flushes._seen.clear()

    publisher(world, TopicRelay(Topic(), look), PATIENT).turn()
    assert [*flushed, flushes._seen[0]] == [True, True]
    end(world.resource)


def test_a_role_that_does_not_flush_is_overruled(postgres_database, start):
    """`synchronous_commit = off` as the database's default loses no vote."""
    with psycopg.connect(postgres_database, autocommit=True) as person:
        name = person.info.dbname
        person.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    world = start(tagged_rows, postgres_database)
    assert_flushed(world)


class Failing:
    """Lets the n-th statement from here fail, as a full disk would."""

    def __init__(self, world: World, n: int) -> None:
        self._engine = database_of(world).engine
        self._left = n
        self.fired = ""

    def __enter__(self) -> Failing:
        sa.event.listen(self._engine, "before_cursor_execute", self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sa.event.remove(self._engine, "before_cursor_execute", self._count)

    def _count(self, _: Any, __: Any, statement: str, *___: Any) -> None:
        self._left -= 1
        if self._left == 0:
            self.fired = statement
            raise sa.exc.OperationalError("", {}, Exception("disk full"))


VERBS: dict[str, Callable[[World], Any]] = {
    "commit": lambda world: world.commit(T, ONE, forgotten_through=5, once=True),
    "abort": lambda world: world.abort(T, forgotten_through=5, once=True),
}
TABLES = ("application", "transaction", "branch", "hidden")


@pytest.mark.parametrize("verb", VERBS)
def test_a_request_that_fails_at_any_statement_changes_nothing(open_at, verb):
    """Seal, branches, forgotten_through, what it drops: all, or none (rule 19)."""
    world = open_at()
    for batch in (4, 5, 6):
        keep(world, f"orders.{batch}.1", OTHER)
    for branch in (ONE, TWIN):
        assert world.prepare(T, branch).status_code == 200
    before, n = held(world), 0
    while True:
        n += 1
        with Failing(world, n) as failing:
            answer = VERBS[verb](world)
        if not failing.fired:
            break
        assert answer.status_code == 503, failing.fired
        assert held(world) == before, failing.fired
    assert answer.status_code == 200
    assert held(world) != before
    assert world.prepare("orders.5.2").status_code == 410


def held(world: World) -> dict[str, list[tuple[Any, ...]]]:
    """Return all that the journal holds."""
    return {
        name: sorted(
            select(world.resource, f"SELECT * FROM orders_tpc_{name}"), key=str
        )
        for name in TABLES
    }


OLD = "orders.5.1"
YEAR = 365 * 24 * 3600.0


def test_a_prepared_branch_waits_for_ever(open_at):
    """Time, starts, sweeps and what others do leave it as it is (rule 12).

    Only a decision, or a person, ends it; its rows are all there then.
    """
    now = [1_000_000_000.0]
    world = open_at(clock=lambda: now[0])
    assert world.prepare(OLD).status_code == 200
    for batch in (6, 8):
        now[0] += YEAR
        keep(world, f"orders.{batch}.1", OTHER)
        assert world.prepare(f"orders.{batch + 1}.1", TWIN).status_code == 200
        assert world.abort(f"orders.{batch + 1}.1").status_code == 200
    keep(world, "orders.10.1", OTHER)  # sweeps what was aborted
    started = open_at(clock=lambda: now[0])
    assert started.listed() == [(OLD, ONE.branch, "prepared")]
    assert started.visible() == 3 * OTHER.rows
    assert started.commit(OLD, ONE).status_code == 200
    assert started.visible() == 3 * OTHER.rows + ONE.rows


def test_what_is_sealed_is_kept_above_forgotten_through(open_at):
    """Through a start too: what was committed and what was aborted (rule 16)."""
    world = open_at()
    for batch in (5, 6):
        keep(world, f"orders.{batch}.1", ONE)
    assert world.abort("orders.6.2").status_code == 200
    assert world.abort("orders.7.1").status_code == 200
    assert world.commit("orders.9.1", forgotten_through=5).status_code == 200
    started = open_at()
    assert started.prepare("orders.5.2").status_code == 410
    assert started.commit("orders.6.1", ONE).status_code == 200
    assert started.abort("orders.6.1").status_code == 409
    for late in ("orders.6.1", "orders.6.2", "orders.7.1", "orders.9.1"):
        assert started.prepare(late, TWIN).status_code == 409
    another = started.prepare("orders.6.3").get_json()
    assert (another["vote"], another["committed"]) == ("abort", "orders.6.1")
    assert (started.in_doubt(), started.visible()) == (0, 2 * ONE.rows)


def test_a_counter_never_goes_back(postgres_database):
    """A start beside others that draw tags leaves a counter that is not lost alone."""
    world = tagged_rows(postgres_database)
    keep(world, "orders.1.1", ONE)
    beginning, asked = TaggedRows(postgres_database, "orders"), []

    def draw_beside(_: Any, __: Any, statement: str, *___: Any) -> None:
        asked.append(statement)
        if "pg_sequence_last_value" in statement:
            batch = sum("pg_sequence_last_value" in one for one in asked)
            if batch == 1:  # it has read the counter, and not yet the tags
                keep(world, "orders.2.1", ONE)

    engine = database_of(beginning).engine
    sa.event.listen(engine, "after_cursor_execute", draw_beside)
    beginning.open()
    assert any(one.startswith("LOCK TABLE") for one in asked)
    assert not any("setval" in one for one in asked)
    for each in (world.resource, beginning):
        each.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_counter_that_begins_anew_refuses_nobody(postgres_database, kind):
    """Where rows are copied and the counter is not, branches get tags of their own."""
    first = KINDS[kind](postgres_database)
    for attempt in (1, 2):
        keep(first, f"orders.{attempt}.1", ONE)
    first.resource.close()
    with psycopg.connect(postgres_database) as connection:
        named = "SELECT tablename FROM pg_tables WHERE tablename LIKE '%_tpc_branch'"
        ((name,),) = connection.execute(named).fetchall()
        connection.execute(f"DELETE FROM {name}; ALTER SEQUENCE {name}_tag_seq RESTART")
    world = KINDS[kind](postgres_database)
    keep(world, "orders.3.1", OTHER)
    assert world.visible() == 2 * ONE.rows + OTHER.rows
    world.resource.close()
