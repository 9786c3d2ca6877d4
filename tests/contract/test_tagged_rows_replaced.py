"""Rows that later ones of their key replace: deleted by later prepares."""

from __future__ import annotations

import contextlib
import decimal
import math
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from support.branches import ONE, Branch, records
from support.databases import url
from support.elsewhere import elsewhere
from support.kinds import tagged_rows
from support.participant import World, count, database_of, keep, select
from support.waiting import until

from tracing_2pc.participant.resources import tagged_branches
from tracing_2pc.testing.other_process import kill

__all__ = ["url"]

KEYS = [None, *range(5)]
SHOWN = "SELECT id, day, n FROM orders ORDER BY n, id"


def batch(
    number: int, keys: Any = KEYS, day: Any = None, branch: str = "0.1"
) -> Branch:
    """Bring each key again, one of them NULL; a day that is NULL, too."""
    days, ns = [day] * len(keys), [number] * len(keys)
    return records(branch, id=list(keys), day=[*days[1:], "mon"], n=ns)


def shown(world: World) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in select(world.resource, SHOWN)]


def test_stored_rows_stay_bounded(open_at):
    """However often the same keys come: what is shown, and a batch or two."""
    world = open_at(key=["id", "day"])
    stored = set()
    for number in range(20):
        keep(world, f"orders.{number}.1", batch(number))
        keep(world, f"other.{number}.1", batch(100 + number, KEYS[:1]))
        assert {n for _, _, n in shown(world)} == {number, 100 + number}
        assert world.visible() == 7
        stored.add(count(world.resource, "orders_tpc"))
    assert stored == {7, 8}
    assert count(world.resource, "orders_tpc_newer") <= 2


DAY = 86_400_000_000
D, NS = decimal.Decimal, pa.timestamp("ns")
FORMS: dict[str, list[tuple[pa.DataType, list[Any]]]] = {
    "decimal": [
        (pa.decimal128(38, 10), [D("1.5"), D(-100), D(0)]),
        (pa.decimal128(20, 2), [D("1.50"), D(-100), D(0)]),
    ],
    "naive": [(pa.timestamp("us"), [DAY, 1]), (NS, [DAY * 1000, 1000])],
    "seconds": [(pa.timestamp("s"), [1]), (pa.timestamp("us"), [1_000_000])],
    "time": [(pa.time64("ns"), [5000, None]), (pa.time64("us"), [5, None])],
    "float": [(pa.float64(), [0.1, math.nan]), (pa.float32(), [0.1, math.nan])],
}


@pytest.mark.parametrize("forms", FORMS.values(), ids=FORMS)
def test_a_value_is_one_key_in_each_of_its_types(open_at, forms):
    """A job may send a key in another scale or unit from some batch on."""
    world = open_at(key="id")
    for number, (kind, values) in enumerate([*forms, *reversed(forms)]):
        rows = records(id=pa.array(values, kind), n=[number] * len(values))
        keep(world, f"orders.{number}.1", rows)
    assert select(world.resource, "SELECT n FROM orders") == [(3,)] * len(values)
    keep(world, "orders.4.1", rows)
    assert count(world.resource, "orders_tpc") <= 3 * len(values)


def test_nanoseconds_are_another_key(open_at, url):
    """What is no whole microsecond is another value: never rounded to one."""
    world = open_at(key="id")
    branch = records(id=pa.array([1000, 1001], NS))
    if url.startswith("postgresql"):
        assert world.prepare("orders.0.1", branch).status_code == 400
        return
    keep(world, "orders.0.1", branch)
    texts = {text[-10:] for (text,) in select(world.resource, "SELECT id FROM orders")}
    assert texts == {":00.000001", ".000001001"}


def test_a_key_that_comes_no_more_stays(open_at):
    """Only rows of a key that came again are deleted."""
    world = open_at(key="id")
    keep(world, "orders.0.1", batch(0))
    for number in range(1, 5):
        keep(world, f"orders.{number}.1", batch(number, [1, 2]))
    assert [n for _, _, n in shown(world)] == [0, 0, 0, 0, 4, 4]
    assert count(world.resource, "orders_tpc") == 8


def test_large_branches_go_in_slices(open_at, monkeypatch):
    """A transaction deletes so many rows at most, and small prepares come to an end."""
    monkeypatch.setattr(tagged_branches, "SLICE", 4)
    world = open_at(key="id")
    for number in range(2):
        keep(world, f"orders.{number}.1", batch(number, range(20)))
    stored = []
    for number in range(2, 6):
        keep(world, f"orders.{number}.1", batch(number, [0]))
        stored.append(count(world.resource, "orders_tpc"))
    assert world.visible() == 20
    # Each brings one; two slices go before it.
    assert stored == [33, 26, 23, 22]


def test_neither_prepared_nor_aborted_rows_replace_any(open_at):
    """A newer row counts from its commit on, and a prepared one is kept until then."""
    world = open_at(key="id")
    keep(world, "orders.0.1", batch(0))
    old = batch(1, branch="1.1")
    assert world.prepare("orders.1.1", old).status_code == 200  # in doubt for long
    keep(world, "orders.2.1", batch(2))
    assert world.prepare("orders.3.1", batch(3)).status_code == 200
    assert world.abort("orders.3.1").status_code == 200
    for attempt in (2, 3):
        assert world.prepare(f"orders.3.{attempt}", batch(3)).status_code == 200
        assert [n for _, _, n in shown(world)] == [2] * 6
    assert count(world.resource, "orders_tpc") == 4 * 6
    assert world.commit("orders.1.1", old).status_code == 200
    assert [n for _, _, n in shown(world)] == [2] * 6


def test_readers_in_the_middle_of_a_select(open_at, url):
    """They go on reading what they began to read, and nobody waits for them."""
    world = open_at(key="id")
    keep(world, "orders.0.1", batch(0))
    keep(world, "orders.1.1", batch(1))
    for query in ("SELECT n FROM orders", "SELECT n FROM orders_tpc"):
        newest = max(n for _, _, n in shown(world))
        with reader_of(url) as cursor:
            cursor.execute(query)
            rows = [cursor.fetchone()]
            keep(world, f"orders.{newest + 1}.1", batch(newest + 1))
            rows += cursor.fetchall()
        stored = [newest - 1] * 6 if "_tpc" in query else []
        assert sorted(n for (n,) in rows) == [*stored, *[newest] * 6]
        assert [n for _, _, n in shown(world)] == [newest + 1] * 6
        assert count(world.resource, "orders_tpc") == 2 * 6


@contextlib.contextmanager
def reader_of(url: str) -> Iterator[Any]:
    """Yield the cursor of a reader who takes one row at a time."""
    if url.startswith("sqlite"):
        file = url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(file)) as reader:
            yield reader.cursor()
        return
    with psycopg.connect(url) as reader, reader.cursor("reader") as cursor:
        yield cursor


def die_while_deleting(url: str) -> None:
    """Be killed after a DELETE of rows; the main program of a process."""

    def die(_: Any, __: Any, statement: str, *___: Any) -> None:
        if "DELETE FROM orders_tpc" in statement and "orders_tpc_" in statement:
            kill()

    sa.event.listen(sa.Engine, "after_cursor_execute", die)
    tagged_rows(url, key="id").prepare("orders.2.1", ONE)


def test_a_kill_while_replaced_rows_are_deleted(open_at, url, tmp_path):
    """It changes nothing that is shown, and a later prepare deletes them."""
    world = open_at(key="id")
    keep(world, "orders.0.1", batch(0))
    keep(world, "orders.1.1", batch(1))
    assert elsewhere(tmp_path, die_while_deleting, url) == "killed"
    assert count(world.resource, "orders_tpc") == 2 * 6
    assert [n for _, _, n in shown(world)] == [1] * 6
    if url.startswith("postgresql"):  # its session ends a moment later
        free = sa.text("SELECT 1 FROM orders_tpc FOR UPDATE SKIP LOCKED")
        engine = database_of(world).engine
        with engine.connect() as connection:
            until(lambda: len(connection.execute(free).all()) == 2 * 6)
            connection.rollback()
    keep(world, "orders.2.1", batch(2))
    assert count(world.resource, "orders_tpc") == 2 * 6
    assert [n for _, _, n in shown(world)] == [2] * 6


def test_rows_that_somebody_holds_are_left(postgres_database, start):
    """A prepare does not wait for them; the next row of their key takes them along."""
    world = start(tagged_rows, postgres_database, key="id")
    keep(world, "orders.0.1", batch(0))
    keep(world, "orders.1.1", batch(1))
    with database_of(world).engine.begin() as other:
        other.execute(sa.text("SELECT 1 FROM orders_tpc WHERE id = 1 FOR UPDATE"))
        keep(world, "orders.2.1", batch(2))
        assert count(world.resource, "orders_tpc") == 2 * 6 + 1
    keep(world, "orders.3.1", batch(3))
    assert count(world.resource, "orders_tpc") == 2 * 6


def test_names_that_look_like_parameters(open_at):
    """Of key columns: per cent signs, colons and quotes are part of the name."""
    odd = {"a%b": [1, 2], "c :tag": ["x", "y"], 'd"e': [3, 4]}
    world = open_at(key=list(odd))
    for number in range(6):
        keep(world, f"orders.{number}.1", records("0.1", **odd, n=[number] * 2))
    assert count(world.resource, "orders_tpc") <= 4
    assert count(world.resource, "orders") == 2


def test_one_branch_that_cannot_be_deleted_holds_up_no_other(tmp_path, start):
    """Where a trigger of the user's own refuses it: the others go on."""
    file = tmp_path / "orders.db"
    world = start(tagged_rows, f"sqlite:///{file}", key="id", triggers=True)
    keep(world, "orders.0.1", records("0.1", id=[1, 2], n=[0, 0]))
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute(
            "CREATE TRIGGER no BEFORE DELETE ON orders_tpc WHEN old.id = 1 "
            "BEGIN SELECT RAISE(ABORT, 'kept'); END"
        )
    keep(world, "orders.1.1", records("0.1", id=[1], n=[1]))
    for number in range(2, 8):
        keep(world, f"orders.{number}.1", records("0.1", id=[2], n=[number]))
    assert count(world.resource, "orders_tpc") <= 5
    found = select(world.resource, "SELECT n FROM orders ORDER BY id")
    assert [n for (n,) in found] == [1, 7]
