"""A table that somebody alters while its participant runs."""

from __future__ import annotations

import datetime
import decimal
import re
import threading
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from support.branches import ONE, Branch, records
from support.kinds import prepared_transactions, sqlite_url, tagged_rows
from support.participant import World, database_of, keep, refusal, writing_rows
from support.waiting import AT_LAST, until

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.participant.resources.column_table import ColumnTable

AT = datetime.datetime(2024, 2, 29, 23, 59, 59, 600_000)  # noqa: DTZ001 - of no zone
CENTS = decimal.Decimal("0.1260")
AS_MOMENT = "USING to_timestamp(v)"
CHANGES = {
    "bigint to double": ("bigint", "double precision", 2**53 + 1, pa.int64()),
    "double to real": ("double precision", "real", 0.123456789012, pa.float64()),
    "double to cents": ("double precision", "numeric(10, 2)", 0.126, pa.float64()),
    "scale": ("numeric(10, 4)", "numeric(10, 2)", CENTS, pa.decimal128(10, 4)),
    "seconds": ("timestamp", "timestamp(0)", AT, pa.timestamp("us")),
    "zone": ("timestamp", "timestamptz", AT, pa.timestamp("us")),
    "day": ("timestamp", "date", AT, pa.timestamp("us")),
    "moment": ("bigint", f"timestamptz {AS_MOMENT}", 5, pa.int64()),
    "blanks": ("varchar(10)", "varchar(5)", "abcde  ", pa.string()),
}
"""Types before and after, and a value that only the first can hold, as it was sent."""

WIDER = {
    "text": ("varchar(3)", "varchar(30)", "a longer one", pa.string()),
    "digits": ("numeric(10, 2)", "numeric(10, 4)", 0.126, pa.float64()),
    "integer": ("integer", "bigint", 2**40, pa.int64()),
    "as long": ("bigint", "double precision", 5, pa.int64()),
    "shorter": ("bigint", "integer", 5, pa.int64()),
    "json": ("text", "jsonb USING v::jsonb", "1", pa.string()),
    "time": ("text", "time USING v::time", "03:04:05", pa.string()),
    "list": ("text", "text[] USING ARRAY[v]", "{a}", pa.string()),
}
"""The same, where the second can hold it."""

LARGE = 20_000
"""Rows that are more than COPY gets as text."""

PLACES = {
    "TaggedRows": (tagged_rows, "orders_tpc", ", tpc_tag bigint"),
    "PreparedTransactions": (prepared_transactions, "orders", ""),
}
"""By kind: how it starts, its table, and columns that are not the records'."""


def run(url: str, *statements: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            done = connection.execute(statement)
        return done.fetchall() if done.description else []


def as_owner(world: World, *statements: str) -> None:
    """Do it in either database."""
    with database_of(world).engine.begin() as person:
        for statement in statements:
            person.exec_driver_sql(statement)


def rows_of(number: int, value: pa.Scalar, rows: int) -> Branch:
    """Return a branch whose first row has the value, and all others NULL."""
    values = pa.concat_arrays(
        [pa.array([value.as_py()], value.type), pa.nulls(rows - 1, value.type)]
    )
    return records(id=pa.array([number] * rows, pa.int64()), v=values)


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize(
    "rows", [1, pytest.param(LARGE, marks=pytest.mark.ci)], ids=["few", "many"]
)
@pytest.mark.parametrize("change", CHANGES | WIDER)
def test_a_value_comes_back_as_it_was_sent_or_is_refused(
    postgres_database, change, rows, kind, start
):
    """By the new type, at once: no process has to be started again."""
    before, after, sent, type_ = {**CHANGES, **WIDER}[change]
    make, table, ours = PLACES[kind]
    with psycopg.connect(postgres_database) as connection:
        name = connection.info.dbname
    run(postgres_database, f"ALTER DATABASE {name} SET timezone TO 'America/Lima'")
    run(postgres_database, f"CREATE TABLE {table} (id bigint, v {before}{ours})")
    world = start(make, postgres_database)
    keep(world, "orders.1.1", rows_of(0, pa.scalar(None, type_), rows))
    if ours:
        run(postgres_database, "DROP VIEW orders")
    run(postgres_database, f"ALTER TABLE {table} ALTER v TYPE {after}")
    branch = rows_of(1, pa.scalar(sent, type_), rows)
    answer = world.prepare("orders.2.1", branch)
    seen = (answer.status_code, answer.get_json().get("vote"))
    assert seen == ((400, "abort") if change in CHANGES else (200, "commit"))
    if change in WIDER:
        assert world.commit("orders.2.1", branch).status_code == 200
    world.resource.close()
    stored = run(postgres_database, f"SELECT v FROM {table} WHERE id = 1")
    assert len(stored) == (rows if change in WIDER else 0)
    for found in [value for (value,) in stored if value is not None]:
        assert found == ["a"] or type(sent)(found) == sent


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("when", ["made after the start", "altered after the start"])
def test_a_table_that_a_crash_would_empty_is_refused(
    postgres_database, when, kind, start
):
    """A vote to abort that says what to do, and nothing was written."""
    make, table, ours = PLACES[kind]
    world = start(make, postgres_database)
    world.resource.open()
    if when == "altered after the start":
        keep(world, "orders.1.1", ONE)
        run(postgres_database, f"ALTER TABLE {table} SET UNLOGGED")
    else:
        columns = f"id bigint, amount double precision{ours}"
        run(postgres_database, f"CREATE UNLOGGED TABLE {table} ({columns})")
    count = f"SELECT count(*) FROM {table}"
    before = run(postgres_database, count)
    assert f"ALTER TABLE {table} SET LOGGED" in refusal(world, ONE)
    assert run(postgres_database, count) == before
    run(postgres_database, f"ALTER TABLE {table} SET LOGGED")
    keep(world, "orders.2.1", ONE)


def test_a_default_that_is_set_later(postgres_database, start):
    """A column may be left out from then on."""
    columns = "id bigint, v bigint NOT NULL, tpc_tag bigint"
    run(postgres_database, f"CREATE TABLE orders_tpc ({columns})")
    world = start(tagged_rows, postgres_database)
    keep(world, "orders.1.1", records(id=[1], v=[1]))
    assert world.prepare("orders.2.1", records(id=[2])).status_code == 400
    run(postgres_database, "ALTER TABLE orders_tpc ALTER v SET DEFAULT 7")
    keep(world, "orders.2.1", records(id=[2]))
    assert run(postgres_database, "SELECT v FROM orders WHERE id = 2") == [(7,)]


SWAPPED = (
    "ALTER TABLE orders_tpc RENAME TO old",
    "CREATE TABLE orders_tpc (id bigint, amount double precision, tpc_tag bigint)",
)


@pytest.mark.parametrize("again", [False, True], ids=["while it runs", "at start"])
def test_a_table_that_has_taken_the_place_of_another(url, again, start):
    """The view would show the old one for ever, and no row of the new one."""
    world = start(tagged_rows, url)
    keep(world, "orders.1.1", ONE)
    as_owner(world, *SWAPPED)
    if again:
        world.resource.close()
        with pytest.raises(ConfigurationError, match="DROP VIEW orders"):
            tagged_rows(url)
        return
    assert "DROP VIEW orders" in refusal(world, ONE)
    as_owner(world, "DROP TABLE orders_tpc", "ALTER TABLE old RENAME TO orders_tpc")
    keep(world, "orders.2.1", ONE)
    assert world.visible() == 2 * ONE.rows


FUNCTION = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} END $$"
MADE = "CREATE TRIGGER mine {} ON {} FOR EACH ROW EXECUTE FUNCTION f()"


def trigger(does: str, when: str) -> tuple[str, str]:
    return FUNCTION.format(does), MADE.format(when, "orders_tpc")


NO_TRIGGER = "ALTER TABLE orders_tpc DISABLE TRIGGER mine"
RULE = "CREATE RULE mine AS ON DELETE TO orders_tpc DO INSTEAD NOTHING"
POLICY = "ALTER TABLE orders_tpc {} ROW LEVEL SECURITY"
LATER_MADE = {
    "drops rows": (*trigger("RETURN NULL;", "BEFORE INSERT"), NO_TRIGGER),
    "changes": (*trigger("NEW.id = 0; RETURN NEW;", "BEFORE INSERT"), NO_TRIGGER),
    "tells others": (*trigger("NOTIFY x; RETURN NEW;", "AFTER INSERT"), NO_TRIGGER),
    "keeps what is aborted": (RULE, "DROP RULE mine ON orders_tpc"),
    "hides from the view": (POLICY.format("ENABLE"), POLICY.format("DISABLE")),
}
"""What somebody makes, and what ends it."""


@pytest.mark.parametrize("does", LATER_MADE)
def test_what_is_made_while_it_runs(postgres_database, start, does):
    """As at start: it would fire for attempts that abort, lose a row, or show all."""
    world = start(tagged_rows, postgres_database)
    keep(world, "orders.1.1", ONE)
    *made, cure = LATER_MADE[does]
    run(postgres_database, *made)
    assert ("mine" if "mine" in cure else cure) in refusal(world, ONE)
    run(postgres_database, cure)
    keep(world, "orders.2.1", ONE)


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize(
    "rows", [3, pytest.param(LARGE, marks=pytest.mark.ci)], ids=["few", "many"]
)
def test_a_row_that_a_trigger_drops_is_a_vote_to_abort(
    postgres_database, kind, rows, start
):
    """What the table has kept is counted, also where triggers are meant to fire."""
    make, table, ours = PLACES[kind]
    drop = "IF NEW.id = 2 THEN RETURN NULL; END IF; RETURN NEW;"
    run(
        postgres_database,
        f"CREATE TABLE {table} (id bigint{ours})",
        FUNCTION.format(drop),
        MADE.format("BEFORE INSERT", table),
    )
    settings = {"triggers": True} if ours else {}
    world = start(make, postgres_database, **settings)
    dropped: list[object] = []
    engine = database_of(world.resource).engine
    sa.event.listen(engine, "invalidate", lambda session, *_: dropped.append(session))
    for _ in range(2):
        why = refusal(world, records(id=list(range(rows))), "orders.1.1")
        assert f"kept {rows - 1} of {rows}" in why
    # A session that is dropped keeps its lock of the branch until the server sees it.
    assert dropped == []
    assert run(postgres_database, f"SELECT count(*) FROM {table}") == [(0,)]
    keep(world, "orders.1.1", records(id=[1, 3]))


def test_a_row_that_sqlite_drops_is_a_vote_to_abort(tmp_path, start):
    """There, too."""
    world = start(tagged_rows, sqlite_url(tmp_path), triggers=True)
    keep(world, "orders.1.1", ONE)
    ignore = "WHEN NEW.id = 2 BEGIN SELECT RAISE(IGNORE); END"
    as_owner(world, f"CREATE TRIGGER mine BEFORE INSERT ON orders_tpc {ignore}")
    assert "kept 2 of 3" in refusal(world, ONE)


def test_a_trigger_of_a_partition(postgres_database, start):
    """It fires as well."""
    run(
        postgres_database,
        "CREATE TABLE orders_tpc (id bigint, tpc_tag bigint) PARTITION BY LIST (id)",
        "CREATE TABLE part PARTITION OF orders_tpc DEFAULT",
        FUNCTION.format("RETURN NEW;"),
    )
    world = start(tagged_rows, postgres_database)
    keep(world, "orders.1.1", records(id=[1]))
    run(postgres_database, MADE.format("AFTER INSERT", "part"))
    assert "mine" in refusal(world, records(id=[2]))


POLICIES = (
    "CREATE TABLE orders (id bigint, tenant text)",
    "INSERT INTO orders VALUES (1, 'tenant_a'), (2, 'tenant_b'), (3, 'tenant_b')",
    "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY own ON orders FOR SELECT USING (tenant = current_user)",
)
TAKEN_OVER = (
    "ALTER TABLE orders RENAME TO orders_tpc",
    "ALTER TABLE orders_tpc ADD COLUMN tpc_tag bigint NOT NULL DEFAULT 0",
    "CREATE INDEX orders_tpc_tag ON orders_tpc USING brin (tpc_tag)",
)


def seen_by(url: str, role: str) -> list[Any]:
    return run(url, f"SET ROLE {role}", "SELECT id FROM orders ORDER BY id")


def test_a_view_obeys_the_policies_of_its_table(postgres_database, role, start):
    """Who saw one row sees one row, when the table is taken over and afterwards."""
    own = [statement.replace("tenant_a", role) for statement in POLICIES]
    run(postgres_database, *own, f"GRANT SELECT ON orders TO {role}")
    assert seen_by(postgres_database, role) == [(1,)]
    run(postgres_database, *TAKEN_OVER)
    world = start(tagged_rows, postgres_database)
    run(postgres_database, f"GRANT SELECT ON orders, orders_tpc_hidden TO {role}")
    assert seen_by(postgres_database, role) == [(1,)]
    keep(world, "orders.1.1", records(id=[4, 5], tenant=[role, "tenant_b"]))
    assert seen_by(postgres_database, role) == [(1,), (4,)]
    run(postgres_database, "ALTER VIEW orders RESET (security_invoker)")
    cure = "ALTER VIEW orders SET (security_invoker = true)"
    assert cure in refusal(world, records(id=[6], tenant=[role]))
    with pytest.raises(ConfigurationError, match=re.escape(cure)):
        tagged_rows(postgres_database)
    run(postgres_database, cure)
    keep(world, "orders.2.1", records(id=[6], tenant=[role]))


def test_a_table_cannot_be_altered_between_look_and_commit(postgres_database, start):
    """The lock is taken before the look, and held: who alters waits, or comes first."""
    world = start(tagged_rows, postgres_database)
    keep(world, "orders.1.1", ONE)
    database, refused = database_of(world), []
    load = database.load

    def alter_first(*about: Any, **how: Any) -> int:
        with pytest.raises(psycopg.errors.LockNotAvailable) as raised:
            run(
                postgres_database,
                "SET lock_timeout = 1",
                "ALTER TABLE orders_tpc ALTER amount TYPE real",
            )
        refused.append(raised)
        rows: int = load(*about, **how)
        return rows

    database.load = alter_first
    assert world.prepare("orders.2.1", ONE).status_code == 200
    assert len(refused) == 1


@pytest.mark.parametrize("kind", PLACES)
def test_a_partition_that_is_altered_while_rows_are_written(
    postgres_database, kind, start
):
    """COPY locks a partition with its first row only: so it is looked at again."""
    make, table, ours = PLACES[kind]
    run(
        postgres_database,
        f"CREATE TABLE {table} (id bigint{ours}) PARTITION BY RANGE (id)",
        f"CREATE TABLE few PARTITION OF {table} FOR VALUES FROM (0) TO (9)",
        f"CREATE TABLE many PARTITION OF {table} FOR VALUES FROM (9) TO (99)",
    )
    world = start(make, postgres_database)
    keep(world, "orders.1.1", records(id=[1]))
    alter = "ALTER TABLE many SET UNLOGGED"
    with writing_rows(world, lambda: run(postgres_database, alter)):
        answer = world.prepare("orders.2.1", records(id=[2]), once=True)
    assert answer.status_code == 503
    assert refusal(world, records(id=[2]))
    run(postgres_database, "ALTER TABLE many SET LOGGED")
    keep(world, "orders.2.1", records(id=[2]))


def test_a_prepare_and_an_alter_do_not_wait_for_each_other(
    postgres_database, monkeypatch, start
):
    """PostgreSQL does not see it, as one of them waits here: it ends all the same."""
    world = start(prepared_transactions, postgres_database)
    keep(world, "orders.1.1", ONE)
    run(postgres_database, "ALTER TABLE orders ALTER amount SET DEFAULT 1")
    read, altered = ColumnTable.read_columns, []
    waiting = (
        "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
    )
    alter = "ALTER TABLE orders ALTER amount SET DEFAULT 2"

    def read_while_altered(self: ColumnTable, connection: Any) -> Any:
        monkeypatch.undo()
        thread = threading.Thread(target=run, args=(postgres_database, alter))
        thread.start()
        altered.append(thread)
        until(lambda: run(postgres_database, waiting))
        return read(self, connection)

    monkeypatch.setattr(ColumnTable, "read_columns", read_while_altered)
    assert world.prepare("orders.2.1", ONE, once=True).status_code in {200, 503}
    altered[0].join(AT_LAST)
    assert not altered[0].is_alive()
    keep(world, "orders.2.1", ONE)


OWN_VIEWS = {
    "a trigger of another table that is called like the view": (
        "CREATE TABLE customers (id bigint)",
        "CREATE TRIGGER orders AFTER INSERT ON customers BEGIN SELECT 1; END",
    ),
    "a view on a view": (
        "DROP VIEW orders",
        "CREATE VIEW every AS SELECT * FROM orders_tpc",
        "CREATE VIEW orders AS SELECT id, amount FROM every e WHERE NOT EXISTS "
        "(SELECT 1 FROM orders_tpc_hidden h WHERE h.tag = e.tpc_tag)",
    ),
}


@pytest.mark.parametrize("what", OWN_VIEWS)
def test_what_is_a_users_own_is_left_alone(tmp_path, what, start):
    """It does not fire at the table, and shows it by a way of its own."""
    world = start(tagged_rows, sqlite_url(tmp_path))
    keep(world, "orders.1.1", ONE)
    as_owner(world, *OWN_VIEWS[what])
    keep(world, "orders.2.1", ONE)
    world.resource.close()
    tagged_rows(sqlite_url(tmp_path)).resource.close()


def test_a_view_of_the_tables_parent(postgres_database, start):
    """A table that is a partition of what the view reads is shown by it."""
    whole = "id bigint, amount double precision, tpc_tag bigint"
    run(
        postgres_database,
        f"CREATE TABLE all_orders ({whole}) PARTITION BY LIST (tpc_tag)",
        "CREATE TABLE orders_tpc PARTITION OF all_orders DEFAULT",
    )
    tagged_rows(postgres_database).resource.close()
    run(
        postgres_database,
        "DROP VIEW orders",
        "CREATE VIEW orders AS SELECT id, amount FROM all_orders o WHERE NOT EXISTS "
        "(SELECT 1 FROM orders_tpc_hidden h WHERE h.tag = o.tpc_tag)",
    )
    world = start(tagged_rows, postgres_database)
    keep(world, "orders.1.1", ONE)
    assert world.visible() == ONE.rows


@pytest.mark.parametrize("kind", PLACES)
def test_a_table_that_is_dropped(postgres_database, kind, start):
    """It is made again, and no lock is left of the prepare that missed it."""
    make, table, _ = PLACES[kind]
    world, other = (start(make, postgres_database) for _ in range(2))
    for number, each in enumerate((world, other)):
        keep(each, f"orders.{number}.1", ONE)
    run(postgres_database, f"DROP TABLE {table} CASCADE")
    assert world.prepare("orders.2.1", ONE, once=True).status_code == 503
    locks = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'"
    assert run(postgres_database, locks) == []
    keep(other, "orders.2.1", ONE)
