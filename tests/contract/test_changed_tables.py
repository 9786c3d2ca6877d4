"""A table that somebody alters while its participant runs."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from support.participant import (
    ONE,
    Branch,
    World,
    claimed_rows,
    keep,
    prepared_transactions,
    records,
    tagged_rows,
)

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
    "ClaimedRows": (claimed_rows, "orders_tpc", ", tpc_tag bigint"),
    "PreparedTransactions": (prepared_transactions, "orders", ""),
}
"""By kind: how it starts, its table, and columns that are not the records'."""


def run(url: str, *statements: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            done = connection.execute(statement)
        return done.fetchall() if done.description else []


def rows_of(number: int, value: pa.Scalar, rows: int) -> Branch:
    """Return a branch whose first row has the value, and all others NULL."""
    values = pa.concat_arrays(
        [pa.array([value.as_py()], value.type), pa.nulls(rows - 1, value.type)]
    )
    return records(id=pa.array([number] * rows, pa.int64()), v=values)


def altered(url: str, kind: str, before: str, after: str, kept: Branch) -> World:
    """Start a participant that knows its column v; then alter that to another type."""
    make, table, ours = PLACES[kind]
    run(url, f"CREATE TABLE {table} (id bigint, v {before}{ours})")
    world: World = make(url)
    keep(world, "orders.1.1", kept)
    if ours:
        run(url, "DROP VIEW orders")
    run(url, f"ALTER TABLE {table} ALTER v TYPE {after}")
    return world


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize(
    "rows", [1, pytest.param(LARGE, marks=pytest.mark.ci)], ids=["few", "many"]
)
@pytest.mark.parametrize("change", CHANGES | WIDER)
def test_a_value_comes_back_as_it_was_sent_or_is_refused(
    postgres_database: str, change: str, rows: int, kind: str
) -> None:
    """At most not now, as it was made for another table; then, by the new type.

    No process has to be started again for a column that takes more.
    """
    before, after, sent, type_ = {**CHANGES, **WIDER}[change]
    _, table, _ = PLACES[kind]
    with psycopg.connect(postgres_database) as connection:
        name = connection.info.dbname
    run(postgres_database, f"ALTER DATABASE {name} SET timezone TO 'America/Lima'")
    nulls = rows_of(0, pa.scalar(None, type_), rows)
    world = altered(postgres_database, kind, before, after, nulls)
    branch = rows_of(1, pa.scalar(sent, type_), rows)
    answers = [world.prepare("orders.2.1", branch, once=True) for _ in range(2)]
    seen = [(answer.status_code, answer.get_json().get("vote")) for answer in answers]
    last = (400, "abort") if change in CHANGES else (200, "commit")
    assert seen in ([(503, None), last], [last] * 2)
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
    postgres_database: str, when: str, kind: str
) -> None:
    """A vote to abort that says what to do, and nothing was written."""
    make, table, ours = PLACES[kind]
    world: World = make(postgres_database)
    world.resource.open()
    if when == "altered after the start":
        keep(world, "orders.1.1", ONE)
        run(postgres_database, f"ALTER TABLE {table} SET UNLOGGED")
        assert world.prepare("orders.2.1", ONE, once=True).status_code == 503
    else:
        columns = f"id bigint, amount double precision{ours}"
        run(postgres_database, f"CREATE UNLOGGED TABLE {table} ({columns})")
    count = f"SELECT count(*) FROM {table}"
    before = run(postgres_database, count)
    answer = world.prepare("orders.2.1", ONE)
    assert (answer.status_code, answer.get_json()["vote"]) == (409, "abort")
    assert f"ALTER TABLE {table} SET LOGGED" in answer.get_json()["detail"]
    assert run(postgres_database, count) == before
    run(postgres_database, f"ALTER TABLE {table} SET LOGGED")
    keep(world, "orders.2.1", ONE)
    world.resource.close()
