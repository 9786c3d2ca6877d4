"""`evolve="add"`: a column that a batch has comes to its table."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from support.branches import Branch, json_lines, records
from support.elsewhere import elsewhere
from support.kinds import KINDS, prepared_transactions, sqlite_url, tagged_rows
from support.participant import World, database_of, keep, refusal, select
from support.postgres import named, running
from support.texts import texts
from support.waiting import AT_LAST, until

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.participant import TaggedRows
from tracing_2pc.participant.resources.added_columns import AddedColumns
from tracing_2pc.testing.resource_process import at_once

TEXTS = texts("columns")
AUTOVACUUM = """
autovacuum_naptime = 1
autovacuum_vacuum_threshold = 10
autovacuum_vacuum_scale_factor = 0
autovacuum_vacuum_cost_limit = 1
autovacuum_vacuum_cost_delay = 100
"""
"""It begins at once, and does not end by itself."""

MADE_BY = {
    "the page": (
        "CREATE VIEW orders AS SELECT r.id, r.amount FROM (\n"
        "  SELECT r.* FROM orders_tpc r\n"
        "  WHERE NOT EXISTS (SELECT 1 FROM orders_tpc_hidden h WHERE h.tag = r.tpc_tag)"
        ") r"
    ),
    "a person": (
        "CREATE VIEW orders AS SELECT r.id, r.amount FROM orders_tpc r WHERE r.id > 0"
    ),
    "a person, with a column of its own": (
        "CREATE VIEW orders AS SELECT r.id, r.amount, r.amount * 2 AS twice "
        "FROM orders_tpc r"
    ),
}


def old(id_: int) -> Branch:
    """A row without the column that comes."""
    return records(id=[id_], amount=[1.5])


def new(id_: int, note: Any = "x") -> Branch:
    return records(id=[id_], amount=[1.5], note=[note])


@pytest.fixture(
    params=[
        "TaggedRows-sqlite",
        "PreparedTransactions-postgresql",
        pytest.param("TaggedRows-postgresql", marks=pytest.mark.ci),
    ]
)
def where(request, tmp_path) -> tuple[str, str]:
    """A kind of participant, and the URL of an empty database."""
    kind, database = request.param.split("-")
    if database == "sqlite":
        return kind, sqlite_url(tmp_path)
    return kind, request.getfixturevalue("postgres_database")


@pytest.fixture
def evolving(where, start) -> Callable[[], World]:
    """Start one more process's worth of the participant."""
    kind, url = where
    return functools.partial(start, KINDS[kind], url, evolve="add")


@pytest.fixture
def ledger(postgres_database, start) -> World:
    """A table with a view, on a server, which has a row."""
    world: World = start(tagged_rows, postgres_database, evolve="add")
    keep(world, "orders.1.1", old(1))
    return world


def shown(world: World) -> list[tuple[Any, ...]]:
    return select(world.resource, "SELECT id, note FROM orders ORDER BY id")


def columns(world: World) -> list[str]:
    """Name what readers see, in its order."""
    with database_of(world).read() as connection:
        return [c["name"] for c in sa.inspect(connection).get_columns("orders")]


def execute(world: World, *statements: str) -> None:
    """Do it as the owner of the database."""
    with database_of(world).engine.begin() as person:
        for statement in statements:
            person.exec_driver_sql(statement)


def test_a_column_comes_with_a_batch(evolving):
    """It is the last one; NULL in rows of before, and of jobs that do not have it."""
    world, other = evolving(), evolving()
    keep(world, "orders.1.1", old(1))
    keep(other, "other.1.1", old(2))
    assert world.prepare("orders.2.1", old(3)).status_code == 200
    assert world.abort("orders.2.1").status_code == 200
    keep(world, "orders.3.1", new(4))
    keep(other, "other.2.1", old(5))
    keep(world, "orders.2.2", old(3))  # a batch from before, written anew
    assert shown(world) == [(1, None), (2, None), (3, None), (4, "x"), (5, None)]
    assert columns(world) == ["id", "amount", "note"]
    keep(evolving(), "orders.4.1", json_lines({"id": 6, "note": "y", "city": "Bern"}))
    assert columns(world) == ["id", "amount", "note", "city"]


def test_without_it_a_column_is_a_vote_to_abort(where, start, evolving):
    """Also where another job has added one: this one has to send it."""
    kind, url = where
    keep(evolving(), "other.1.1", new(1))
    world = start(KINDS[kind], url)
    more = records(id=[2], amount=[1.5], note=["x"], city=["Bern"])
    assert TEXTS["not there"] in refusal(world, more, status=400)
    assert TEXTS["missing"] in refusal(world, old(2), status=400)


def test_it_stays_when_its_batch_aborts(evolving):
    """The rows are gone, and readers see an empty column."""
    world = evolving()
    keep(world, "orders.1.1", old(1))
    assert world.prepare("orders.2.1", new(2)).status_code == 200
    assert world.abort("orders.2.1").status_code == 200
    assert shown(world) == [(1, None)]


@pytest.mark.parametrize("note", ["y", 7], ids=["one type", "two types"])
def test_two_jobs_add_a_column_at_one_moment(evolving, note):
    """It is added once; of two types the second is refused, and both are named."""
    worlds = evolving(), evolving()
    keep(worlds[0], "orders.1.1", old(1))
    both = threading.Barrier(2)

    def add_together(world: World) -> None:
        database = database_of(world)

        def alter(table: str) -> Any:
            del database.alter
            both.wait(AT_LAST)
            return database.alter(table)

        database.alter = alter

    for world in worlds:
        add_together(world)
    answers = at_once(
        lambda: worlds[0].prepare("orders.2.1", new(2)),
        lambda: worlds[1].prepare("other.2.1", new(3, note)),
    )
    assert columns(worlds[0]) == ["id", "amount", "note"]
    statuses = sorted(answer.status_code for answer in answers)
    if note == "y":
        assert statuses == [200, 200]
        return
    assert statuses == [200, 400]
    (refused,) = [answer for answer in answers if answer.status_code == 400]
    pairs = (TEXTS["text there"], TEXTS["a number there"])
    assert refused.get_json()["detail"].endswith(pairs)


def test_a_branch_from_before_is_committed_after(url, start):
    """It waits for nothing, and its rows have NULL."""
    world = start(tagged_rows, url, evolve="add")
    keep(world, "orders.1.1", old(1))
    assert world.prepare("orders.2.1", old(2)).status_code == 200
    keep(world, "other.1.1", new(3))
    assert world.commit("orders.2.1", old(2)).status_code == 200
    assert shown(world) == [(1, None), (2, None), (3, "x")]


@pytest.mark.parametrize("whose", ["ours", "of another program"])
def test_nothing_is_added_beside_a_prepared_transaction(
    postgres_database, start, whose
):
    """It keeps its lock until it is decided: whoever waits for it makes others wait."""
    world = start(prepared_transactions, postgres_database, evolve="add")
    keep(world, "orders.1.1", old(1))
    if whose == "ours":
        assert world.prepare("orders.2.1", old(2)).status_code == 200
    else:
        with psycopg.connect(postgres_database, autocommit=True) as person:
            insert = "BEGIN; INSERT INTO orders (id) VALUES (2)"
            person.execute(f"{insert}; PREPARE TRANSACTION 'of another program'")
    asked: list[str] = []
    note = sa.event.listens_for(database_of(world).engine, "before_cursor_execute")
    note(lambda _, __, statement, *___: asked.append(statement))
    answer = world.prepare("other.1.1", new(3), once=True)
    assert (answer.status_code, answer.get_json()["detail"]) == (503, TEXTS["in use"])
    assert not [statement for statement in asked if statement.startswith("ALTER")]
    if whose == "ours":
        assert world.commit("orders.2.1", old(2)).status_code == 200
    else:
        with psycopg.connect(postgres_database, autocommit=True) as person:
            person.execute("COMMIT PREPARED 'of another program'")
    keep(world, "other.1.1", new(3))
    assert shown(world) == [(1, None), (2, None), (3, "x")]


@pytest.mark.parametrize("kind", ["TaggedRows", "PreparedTransactions"])
def test_a_reader_that_holds_the_table_is_waited_for(postgres_database, start, kind):
    """Not for long, since later readers wait with it; the batch is asked for again."""
    world = start(KINDS[kind], postgres_database, evolve="add")
    keep(world, "orders.1.1", old(1))
    count = "SELECT count(*) FROM orders"
    with psycopg.connect(postgres_database) as reader:
        reader.execute(count)
        answer = world.prepare("orders.2.1", new(2), once=True)
        assert answer.status_code == 503
        assert answer.get_json()["detail"] == TEXTS["in use"]
        with psycopg.connect(postgres_database) as another:
            assert another.execute(count).fetchone() == (1,)
    keep(world, "orders.2.1", new(2))
    assert shown(world) == [(1, None), (2, "x")]


@pytest.mark.ci
def test_readers_read_on(postgres_database, ledger):
    """Whoever reads while columns come waits a moment, and never fails."""
    ended, failed, seen = threading.Event(), list[Exception](), list[Any]()

    def read() -> None:
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            while not ended.is_set():
                try:
                    row = connection.execute("SELECT sum(amount) FROM orders")
                    seen.append(row.fetchone())
                except psycopg.Error as error:
                    failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        until(lambda: seen)
        for n in range(10):
            keep(ledger, f"orders.{n + 2}.1", records(id=[n], **{f"c{n}": [n]}))
    finally:
        ended.set()
        for reader in readers:
            reader.join(AT_LAST)
    assert failed == []
    assert len(columns(ledger)) == 12


@pytest.mark.ci
def test_an_autovacuum_is_no_reader(tmp_path):
    """PostgreSQL ends it for who has waited a second, and not for who gives up then."""
    at_work = (
        "SELECT pid FROM pg_locks WHERE relation = 'orders_tpc'::regclass "
        "AND mode = 'ShareUpdateExclusiveLock'"
    )
    with running(str(tmp_path), AUTOVACUUM) as server:
        world = tagged_rows(named(server.get_uri(), "postgres"), evolve="add")
        with contextlib.closing(world.resource):
            keep(world, "orders.1.1", old(1))
            execute(
                world,
                "INSERT INTO orders_tpc SELECT n, 1, 0 "
                "FROM generate_series(1, 99999) n",
                "DELETE FROM orders_tpc WHERE tpc_tag = 0",
            )
            until(lambda: select(world.resource, at_work))
            keep(world, "orders.2.1", new(2))
            assert shown(world) == [(1, None), (2, "x")]


def test_what_was_granted_on_the_view_stays(postgres_database, ledger, role):
    """And its comment, the views on it, and its options: with them its policies."""
    execute(
        ledger,
        "COMMENT ON VIEW orders IS 'of the shop'",
        "CREATE VIEW amounts AS SELECT amount FROM orders",
        "ALTER TABLE orders_tpc ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY large ON orders_tpc FOR SELECT USING (id > 1)",
        "ALTER VIEW orders SET (security_invoker = on, security_barrier = true)",
        f"GRANT SELECT ON orders, orders_tpc, orders_tpc_hidden TO {role}",
    )
    keep(ledger, "orders.2.1", new(2))
    about = (
        "SELECT obj_description('orders'::regclass), reloptions FROM pg_class "
        "WHERE oid = 'orders'::regclass"
    )
    options = ["security_invoker=on", "security_barrier=true"]
    assert select(ledger.resource, about) == [("of the shop", options)]
    assert select(ledger.resource, "SELECT count(*) FROM amounts") == [(2,)]
    with psycopg.connect(postgres_database) as reader:
        reader.execute(f"SET ROLE {role}")
        seen = reader.execute("SELECT id, note FROM orders").fetchall()
    assert seen == [(2, "x")]


@pytest.mark.parametrize("made_by", MADE_BY)
def test_a_view_that_a_person_made_is_left_alone(url, start, made_by, caplog):
    """It may hide what readers must not see: a line says what it does not show."""
    world = start(tagged_rows, url, evolve="add", key=None)
    keep(world, "orders.1.1", old(1))
    execute(world, "DROP VIEW orders", MADE_BY[made_by])
    before = columns(world)
    keep(world, "orders.2.1", new(2))
    is_ours = made_by == "the page"
    assert columns(world) == [*before, *(["note"] if is_ours else [])]
    lines = [r.message for r in caplog.records if r.name == TaggedRows.__module__]
    assert lines == ([] if is_ours else [TEXTS["not shown"]])
    rows = "SELECT id, note FROM orders_tpc ORDER BY id"
    assert select(world.resource, rows) == [(1, None), (2, "x")]


def test_a_column_that_somebody_adds_too(postgres_database, ledger):
    """One that the table has, and the view does not show, stays so."""
    execute(ledger, "ALTER TABLE orders_tpc ADD COLUMN hidden bigint")
    keep(ledger, "orders.2.1", new(2))
    assert columns(ledger) == ["id", "amount", "note"]


@pytest.mark.parametrize(
    ("branch", "name"),
    [
        (records(id=[2], parts=[[1]]), "a list"),
        (records(id=[2], Amount=[1.5]), "a twin"),
        (records(id=[2], tpc_note=["x"]), "a name of ours"),
    ],
    ids=["type", "case", "name"],
)
def test_what_fits_no_column_is_a_vote_to_abort(evolving, branch, name):
    """It names the column, and its type; nothing is added."""
    world = evolving()
    keep(world, "orders.1.1", old(1))
    assert TEXTS[name] in refusal(world, branch, status=400)
    assert columns(world) == ["id", "amount"]


def test_a_column_of_nulls_waits_for_a_value(evolving):
    """It has no type to be added by, and the rows lose nothing."""
    world = evolving()
    keep(world, "orders.1.1", old(1))
    nulls = records(id=[2], amount=[1.5], note=pa.nulls(1))
    keep(world, "orders.2.1", nulls)
    assert columns(world) == ["id", "amount"]
    keep(world, "orders.3.1", new(3, 7))
    keep(world, "orders.4.1", nulls)
    assert select(world.resource, "SELECT note FROM orders WHERE id = 3") == [(7,)]


@pytest.mark.parametrize("needed", ["a key", "NOT NULL"])
def test_a_column_that_must_not_be_null_is_not_left_out(url, start, needed):
    """A row without its key would replace all others without one."""
    world = start(tagged_rows, url, key="id", evolve="add")
    if needed == "NOT NULL":
        execute(
            world,
            "CREATE TABLE orders_tpc (id bigint NOT NULL, amount float, "
            "tpc_tag bigint NOT NULL, tpc_application varchar(40) NOT NULL, "
            "tpc_batch bigint NOT NULL)",
        )
    keep(world, "orders.1.1", old(1))
    assert TEXTS["no key"] in refusal(world, records(note=["x"]), status=400)


def test_a_column_that_somebody_drops_comes_again(postgres_database, start):
    """At once: no process has to be started again."""
    world = start(prepared_transactions, postgres_database, evolve="add")
    keep(world, "orders.1.1", new(1))
    execute(world, "ALTER TABLE orders DROP COLUMN note")
    keep(world, "orders.2.1", new(2))
    assert shown(world) == [(1, None), (2, "x")]


def test_a_role_that_does_not_own_the_table(postgres_database, ledger, role, start):
    """A vote to abort that has the SQL for the owner; then the rows are taken."""
    execute(
        ledger,
        f"ALTER ROLE {role} LOGIN",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}",
    )
    theirs = postgres_database.replace("postgres@", f"{role}@")
    world = start(tagged_rows, theirs, evolve="add")
    why = refusal(world, new(2))
    assert TEXTS["not the owner"] in why
    execute(ledger, why.partition("run: ")[2])
    keep(world, "orders.2.1", new(2))


def test_a_table_that_cannot_have_more(postgres_database, start):
    """What the database says of it is said, and not that it should be asked again."""
    world = start(tagged_rows, postgres_database, evolve="add")
    execute(
        world,
        "CREATE TABLE years (id bigint, amount float, tpc_tag bigint) "
        "PARTITION BY RANGE (id)",
        "CREATE TABLE orders_tpc PARTITION OF years DEFAULT",
    )
    keep(world, "orders.1.1", old(1))
    assert TEXTS["a partition"] in refusal(world, new(2))


def add_and_die(kind: str, url: str, moment: str) -> None:
    """The main program of a process that is killed."""
    world = KINDS[kind](url, evolve="add")  # type: ignore[call-arg]

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if moment == "before the rows":
        database_of(world).upload = die
    else:
        alter = AddedColumns._alter

        def alter_and_die(*about: Any) -> None:
            alter(*about)
            die()

        AddedColumns._alter = alter_and_die  # type: ignore[method-assign]
    world.prepare("orders.2.1", new(2))


@pytest.mark.parametrize("moment", ["before the rows", "before it is durable"])
def test_a_process_is_killed_after_it_has_added(where, evolving, tmp_path, moment):
    """No row is there, nothing is in doubt, and the next attempt goes on."""
    world = evolving()
    keep(world, "orders.1.1", old(1))
    scratch = tmp_path / "killed"
    scratch.mkdir()
    assert elsewhere(scratch, add_and_die, *where, moment) == "killed"
    there = ["note"] if moment == "before the rows" else []
    until(lambda: columns(world) == ["id", "amount", *there])
    assert (world.in_doubt(), world.visible()) == (0, 1)
    keep(world, "orders.2.2", new(2))
    assert shown(world) == [(1, None), (2, "x")]


def test_another_value_is_refused(tmp_path: Path):
    """There is nothing but `add`: columns are neither dropped nor changed."""
    with pytest.raises(ConfigurationError, match=TEXTS["add only"]):
        TaggedRows(sqlite_url(tmp_path), "orders", evolve="drop")  # type: ignore[arg-type]
