"""What a participant has answered is on disk, and written as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.branches import ONE, OTHER, TWIN
from support.kinds import tagged_rows
from support.participant import World, database_of, keep, select

T = "orders.7.1"

Open = Callable[..., World]


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


def test_each_answer_waits_for_the_disk(open_at: Open) -> None:
    """A vote, an acknowledgement and a person's word survive a crash (rule 13)."""
    assert_flushed(open_at())


def test_a_role_that_does_not_flush_is_overruled(postgres_database: str) -> None:
    """`synchronous_commit = off` as the database's default loses no vote."""
    with psycopg.connect(postgres_database, autocommit=True) as person:
        name = person.info.dbname
        person.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    world = tagged_rows(postgres_database)
    assert_flushed(world)
    world.resource.close()


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
def test_a_request_that_fails_at_any_statement_changes_nothing(
    open_at: Open, verb: str
) -> None:
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
