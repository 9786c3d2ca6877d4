"""Aborted rows: invisible at once, deleted by later prepares, never in the way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.branches import Branch, records
from support.databases import url
from support.kinds import sqlite_url, tagged_rows
from support.participant import World, count, database_of, keep, refusal, select
from support.postgres import flushes

from tracing_2pc.participant.resources import tagged_branches

__all__ = ["url"]


@pytest.fixture
def world(open_at) -> World:
    return open_at()


def drop(world: World, transaction: str, *branches: Branch) -> None:
    for branch in branches:
        assert world.prepare(transaction, branch).status_code == 200
    assert world.abort(transaction).status_code == 200


def run(world: World, sql: str) -> None:
    with database_of(world).engine.begin() as connection:
        connection.execute(sa.text(sql))


def tags_hidden(world: World) -> int:
    return count(world.resource, "orders_tpc_hidden")


@contextlib.contextmanager
def explained(world: World) -> Iterator[list[set[str]]]:
    """Yield how each DELETE of rows finds in PostgreSQL what it has chosen."""
    found: list[set[str]] = []

    def explain(on: Any, _: Any, statement: str, values: Any, *__: Any) -> None:
        if "DELETE FROM orders_tpc " in statement:
            asked = on.connection.cursor()
            asked.execute(f"EXPLAIN (FORMAT JSON) {statement}", values)
            ((plans,),) = asked.fetchall()
            found.append(scans(plans[0]["Plan"]))

    engine = database_of(world).engine
    sa.event.listen(engine, "before_cursor_execute", explain)
    try:
        yield found
    finally:
        sa.event.remove(engine, "before_cursor_execute", explain)


def scans(plan: Any) -> set[str]:
    """Name the scans of tables in a plan, without those that choose the rows."""
    kind, below = plan["Node Type"], plan.get("Plans", ())
    own = {kind} if "Relation Name" in plan and kind != "ModifyTable" else set()
    return own.union(
        *(scans(part) for part in below if part["Parent Relationship"] != "InitPlan")
    )


def make_partitions(url: str, key: bool = False) -> None:
    """Make a table of two partitions, by the parity of `part`."""
    owner = ", tpc_application text, tpc_batch bigint" * key
    with psycopg.connect(url) as connection:
        connection.execute(
            f"CREATE TABLE orders_tpc (part bigint, id bigint, tpc_tag bigint{owner}) "
            "PARTITION BY LIST (part); "
            "CREATE INDEX orders_tpc_tag ON orders_tpc USING brin (tpc_tag); "
            "CREATE TABLE even PARTITION OF orders_tpc FOR VALUES IN (0); "
            "CREATE TABLE odd PARTITION OF orders_tpc FOR VALUES IN (1)"
        )


def test_aborted_rows_are_deleted_by_later_prepares(world, monkeypatch):
    """They go in slices, the hidden tag with the last of them, and no others go."""
    monkeypatch.setattr(tagged_branches, "SLICE", 4)
    keep(world, "orders.0.1", records(id=[1, 2]))
    drop(world, "orders.1.1", records(id=list(range(10))))
    left = []
    for batch in range(2, 6):
        keep(world, f"orders.{batch}.1", records(id=[batch]))
        left.append(count(world.resource, "orders_tpc") - world.visible())
    assert left == [6, 2, 0, 0]
    assert (tags_hidden(world), world.visible()) == (0, 6)


@pytest.mark.ci
@pytest.mark.parametrize("is_known", [False, True], ids=["stale", "fresh"])
@pytest.mark.parametrize(
    ("replaced", "parts"),
    [(False, False), (False, True), (True, True)],
    ids=["aborted", "aborted-in-parts", "replaced-in-parts"],
)
def test_rows_are_deleted_by_their_places(
    postgres_database, start, is_known, replaced, parts
):
    """Work grows with the rows that go: whatever the planner knows of their number.

    Neither is each row compared with a list of all of them, nor the table read.
    """
    if parts:
        make_partitions(postgres_database, key=replaced)
    world = start(tagged_rows, postgres_database, key="id" if replaced else None)

    def rows(number: int) -> Branch:
        return records(part=[n % 2 for n in range(number)], id=list(range(number)))

    for number in range(5):
        keep(world, f"orders.{number}.1", rows(2000))
    run(world, "ANALYZE orders_tpc")
    (keep if replaced else drop)(world, "orders.5.1", rows(3000))
    if is_known:
        run(world, "ANALYZE orders_tpc")
    with explained(world) as found:
        keep(world, "orders.6.1", rows(1))
    assert found[:1] == [{"Tid Scan"}]
    assert count(world.resource, "orders_tpc") == (3001 if replaced else 10001)


@pytest.mark.ci
def test_no_plan_of_a_smaller_table_is_used_again(postgres_database, start):
    """A session's twelfth sweep is planned for what the table has become."""
    world = start(tagged_rows, postgres_database)
    generic = (
        "SELECT max(generic_plans) FROM pg_prepared_statements "
        "WHERE statement LIKE 'DELETE FROM orders_tpc %'"
    )
    with explained(world) as found:
        for number in range(14):
            drop(world, f"orders.{number}.1", records(id=[1]))
    assert len(found) == 13
    assert select(world.resource, generic) == [(0,)]


@pytest.mark.ci
def test_rows_of_another_partition_stay(postgres_database, start, monkeypatch):
    """Rows of two partitions may have the same place: a slice is of so many rows."""
    monkeypatch.setattr(tagged_branches, "SLICE", 4)
    make_partitions(postgres_database)
    world = start(tagged_rows, postgres_database)
    keep(world, "orders.0.1", records(part=[0] * 3, id=[1, 2, 3]))
    drop(world, "orders.1.1", records(part=[1] * 3, id=[4, 5, 6]))
    keep(world, "orders.1.2", records(part=[0], id=[7]))
    assert select(world.resource, "SELECT id FROM orders_tpc ORDER BY id") == [
        *[(1,), (2,), (3,), (7,)]
    ]
    run(world, "TRUNCATE orders_tpc")
    drop(world, "orders.2.1", records(part=[0, 1] * 6, id=list(range(12))))
    left = []
    for batch in range(2, 6):
        keep(world, f"orders.{batch}.2", records(part=[0], id=[batch]))
        left.append(count(world.resource, "orders_tpc") - world.visible())
    assert left == [8, 4, 0, 0]


@pytest.mark.ci
@pytest.mark.parametrize("replaced", [False, True], ids=["aborted", "replaced"])
def test_a_sweep_waits_for_no_row_of_another_partition(
    postgres_database, start, replaced
):
    """One that somebody holds is left, whichever row of a partition has its place."""
    make_partitions(postgres_database, key=replaced)
    world = start(tagged_rows, postgres_database, key="id" if replaced else None)
    first = records(part=[0, 1], id=[1, 2])
    (keep if replaced else drop)(world, "orders.0.1", first)
    if replaced:
        keep(world, "orders.1.1", first)
    with database_of(world).engine.begin() as other:
        other.execute(sa.text("SELECT 1 FROM odd FOR UPDATE"))
        keep(world, "orders.2.1", records(part=[0], id=[3]))
    stored = select(world.resource, "SELECT id FROM orders_tpc ORDER BY id")
    assert stored == ([(1,), (2,), (2,), (3,)] if replaced else [(2,), (3,)])
    assert world.visible() == (3 if replaced else 1)


@pytest.mark.parametrize("name", ["rowid", "ROWID", "oid"])
def test_a_sweep_deletes_by_tag_whatever_columns_are_called(world, name):
    """A column of the user's that is called as SQLite calls a row is only data."""
    keep(world, "orders.0.1", records(**{name: [1, 2, 3], "v": ["a", "b", "c"]}))
    drop(world, "orders.1.1", records(**{name: [1, None, 3], "v": ["x", "y", "z"]}))
    keep(world, "orders.1.2", records(**{name: [9], "v": ["n"]}))
    expected = [("a",), ("b",), ("c",), ("n",)]
    assert select(world.resource, "SELECT v FROM orders_tpc ORDER BY v") == expected


@pytest.mark.parametrize(
    "columns",
    [
        "rowid INTEGER, oid INTEGER, _rowid_ INTEGER",
        "rowid INTEGER, id INTEGER PRIMARY KEY",
    ],
)
def test_a_table_whose_rows_have_no_number(tmp_path, columns, start):
    """SQLite tables without a row id of their own are swept, too, and only by tag."""
    world = start(tagged_rows, sqlite_url(tmp_path))
    without = "WITHOUT ROWID" if "PRIMARY" in columns else ""
    names = [column.split()[0] for column in columns.split(", ")]
    tag = "tpc_tag bigint NOT NULL DEFAULT 0"
    run(world, f"CREATE TABLE orders_tpc ({columns}, {tag}) {without}")
    world.resource._opened = False
    keep(world, "orders.0.1", records(**{key: [1, 2] for key in names}))
    drop(world, "orders.1.1", records(**{key: [7, 8] for key in names}))
    keep(world, "orders.1.2", records(**{key: [3] for key in names}))
    assert (count(world.resource, "orders_tpc"), world.visible()) == (3, 3)


@pytest.mark.ci
@pytest.mark.parametrize("theirs", [False, True], ids=["ours", "theirs"])
def test_a_publication_stops_no_deletion(postgres_database, theirs, caplog, start):
    """Of a table that we made; of one of theirs the SQL is said, once."""
    world = start(tagged_rows, postgres_database, key="id")
    run(world, "CREATE PUBLICATION everything FOR ALL TABLES")
    if theirs:
        ours = "tpc_tag bigint NOT NULL, tpc_application text, tpc_batch bigint"
        run(world, f"CREATE TABLE orders_tpc (id bigint, {ours})")
        world.resource._opened = False
    keep(world, "orders.0.1", records(id=[1, 2]))
    drop(world, "orders.1.1", records(id=[7, 8]))
    keep(world, "orders.1.2", records(id=[1]))
    keep(world, "orders.2.1", records(id=[3]))
    told = [r.getMessage() for r in caplog.records if "not deleted" in r.getMessage()]
    assert count(world.resource, "orders_tpc") == (6 if theirs else 3)
    if theirs:
        assert len(told) == 1
        cure = "ALTER TABLE orders_tpc REPLICA IDENTITY FULL"
        assert told[0].endswith(f"run: {cure}")
        run(world, cure)
        keep(world, "orders.3.1", records(id=[4]))
        assert count(world.resource, "orders_tpc") == 4
    assert world.visible() == 3 + theirs


def test_aborted_rows_that_somebody_updates_stay_hidden(postgres_database, start):
    """A sweep beside an UPDATE waits for nobody and shows nothing; a later one ends."""
    world = start(tagged_rows, postgres_database)
    drop(world, "orders.0.1", records(id=[1, 2, 3]))
    with database_of(world).engine.begin() as other:
        other.execute(sa.text("UPDATE orders_tpc SET id = id + 10 WHERE id > 1"))
        drop(world, "orders.0.2", records(id=[9]))  # while it is open
        assert world.visible() == 0
    assert world.visible() == 0
    drop(world, "orders.0.3", records(id=[9]))
    assert select(world.resource, "SELECT DISTINCT id FROM orders_tpc") == [(9,)]


def test_a_row_that_moves_under_the_sweep_stays_hidden(postgres_database, start):
    """Rows that were updated after the sweep saw them are not taken for gone."""
    world = start(tagged_rows, postgres_database)
    drop(world, "orders.0.1", records(id=[1, 2, 3]))
    database: Any = database_of(world)
    plain, once = database.delete_slice, []

    def move_first(connection: Any, *about: Any) -> int:
        if not once:
            once.append(True)
            return 0  # as a DELETE whose rows have all moved says
        return int(plain(connection, *about))

    database.delete_slice = move_first
    drop(world, "orders.0.2", records(id=[9]))
    assert world.visible() == 0
    drop(world, "orders.0.3", records(id=[9]))
    assert select(world.resource, "SELECT DISTINCT id FROM orders_tpc") == [(9,)]


def test_a_tag_stays_hidden_while_a_row_has_it(world):
    """Whatever was noted of their number: aborted rows are deleted, never shown."""
    drop(world, "orders.1.1", records(id=[1, 2, 3]))
    run(world, "UPDATE orders_tpc_hidden SET doomed = 1")
    for attempt in range(1, 5):
        prepared = world.prepare(f"orders.2.{attempt}", records(id=[4]))
        assert prepared.status_code == 200
        assert world.visible() == 0
    assert count(world.resource, "orders_tpc") == 4


def test_rows_that_somebody_deleted_end_the_sweep(world):
    """A tag whose rows are gone already is not looked for again."""
    drop(world, "orders.0.1", records(id=[1, 2, 3]))
    run(world, "DELETE FROM orders_tpc WHERE id > 1")
    keep(world, "orders.0.2", records(id=[9]))
    assert (tags_hidden(world), count(world.resource, "orders_tpc")) == (0, 1)


def test_aborted_rows_do_not_violate_a_unique_index(world):
    """After an abort the batch can be prepared again, a constraint or not.

    A record that the constraint refuses can never be committed: a vote to abort.
    """
    keep(world, "orders.0.1", records(id=[0]))
    run(world, "CREATE UNIQUE INDEX mine ON orders_tpc (id)")
    assert refusal(world, records(id=[0]), "orders.1.1")
    assert (world.in_doubt(), world.visible()) == (0, 1)
    first, second = records(id=[1, 2]), records(id=[3], branch="1.1")
    drop(world, "orders.2.1", first, second)
    keep(world, "orders.2.2", first)
    keep(world, "orders.3.1", second)
    assert world.visible() == 4


def test_many_aborted_branches_do_not_hold_up_a_constraint(world):
    """Where more is in the way than one prepare sweeps, it asks to be sent again."""
    keep(world, "orders.0.1", records(id=[0]))
    run(world, "CREATE UNIQUE INDEX mine ON orders_tpc (id)")
    branches = [records(id=[n], branch=f"{n}.1") for n in range(1, 6)]
    drop(world, "orders.1.1", *branches)
    last = branches[-1]
    again = world.prepare("orders.1.2", last, once=True)
    assert (again.status_code, again.headers["Retry-After"]) == (503, "1")
    assert "vote" not in again.get_json()
    keep(world, "orders.1.2", last)
    assert world.visible() == 2


def test_a_sweep_that_cannot_delete_costs_no_vote(url, start):
    """Prepare goes on where the database refuses to delete aborted rows."""
    world = start(tagged_rows, url, triggers=True)
    drop(world, "orders.0.1", records(id=[1]))
    refuse: dict[str, str] = {
        "sqlite": "CREATE TRIGGER mine BEFORE DELETE ON orders_tpc "
        "BEGIN SELECT RAISE(ABORT, 'kept'); END",
        "postgresql": "CREATE TABLE mine (id bigint REFERENCES orders_tpc)",
    }
    dialect = database_of(world).engine.dialect.name
    if dialect == "postgresql":
        run(world, "ALTER TABLE orders_tpc ADD PRIMARY KEY (id)")
    run(world, refuse[dialect])
    if dialect == "postgresql":
        run(world, "INSERT INTO mine VALUES (1)")
    keep(world, "orders.0.2", records(id=[2]))
    assert world.visible() == 1


def test_sweeps_at_once_share_the_work(postgres_database, start):
    """Prepares that sweep at the same time neither wait nor fail."""
    world = start(tagged_rows, postgres_database)
    for n in range(4):
        drop(world, f"orders.{n}.1", records(id=list(range(50))))
    found: list[int] = []

    def prepare(n: int) -> None:
        branch = records(id=[n], branch=f"{n}.1")
        found.append(world.prepare("orders.9.1", branch, once=True).status_code)

    threads = [threading.Thread(target=prepare, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 6
    assert world.visible() == 0


def test_flushes(postgres_database):
    """K prepares and a commit cost K + 1 flushes; a sweep costs none of its own."""
    world = tagged_rows(postgres_database)
    keep(world, "orders.0.1", records(id=[0]))

    def flushed() -> int:
        world.resource.close()
        return flushes(postgres_database)

    def cost(batch: int, branches: int) -> int:
        before = flushed()
        made = [records(id=[n], branch=f"{n}.1") for n in range(branches)]
        for branch in made:
            assert world.prepare(f"orders.{batch}.1", branch).status_code == 200
        assert world.commit(f"orders.{batch}.1", *made).status_code == 200
        return flushed() - before

    assert [cost(1, 1), cost(2, 5), cost(3, 8)] == [2, 6, 9]
    drop(world, "orders.4.1", records(id=[1, 2]))
    assert cost(5, 3) == 4
    world.resource.close()


def test_an_aborted_branch_is_swept_below_forgotten_through(world):
    """Forgetting a transaction does not forget the rows that it left."""
    drop(world, "orders.0.1", records(id=[1, 2]))
    keep(world, "orders.1.1", records(id=[3]))
    drop(world, "orders.2.1", records(id=[4]))
    assert world.commit("orders.5.1", forgotten_through=4).status_code == 200
    keep(world, "orders.6.1", records(id=[5]))
    rows = select(world.resource, "SELECT id FROM orders_tpc ORDER BY id")
    assert rows == [(3,), (5,)]
