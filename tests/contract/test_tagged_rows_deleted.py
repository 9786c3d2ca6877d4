"""Rows that say that their key is deleted: hidden, until a later batch brings it."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from support.branches import Branch, json_lines, records
from support.databases import url
from support.kinds import tagged_rows
from support.participant import World, count, keep, refusal, select
from support.texts import texts
from support.waiting import until

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.embedded.addresses import read_address
from tracing_2pc.participant.resources.repeated_keys import RepeatedKeys

__all__ = ["url"]

TEXTS = texts("contract")
SHOWN = "SELECT id, n FROM orders ORDER BY n, id"


@pytest.fixture
def world(open_at: Callable[..., World]) -> World:
    return open_at(key="id", deleted="gone")


def batch(number: int, branch: str = "0.1", **gone: bool | None) -> Branch:
    """Bring keys, which are the names, each with whether it is deleted."""
    flags = pa.array(gone.values(), pa.bool_())
    return records(branch, id=[*gone], n=[number] * len(gone), gone=flags)


def shown(world: World) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in select(world.resource, SHOWN)]


def test_a_key_is_hidden_until_it_comes_again(world):
    """Over batches, in any order of them; null is false, and so it stays shown."""
    keep(world, "orders.0.1", batch(0, a=False, b=None, c=False))
    assert shown(world) == [("a", 0), ("b", 0), ("c", 0)]
    keep(world, "orders.1.1", batch(1, a=True, never=True))
    assert shown(world) == [("b", 0), ("c", 0)]
    keep(world, "orders.2.1", batch(2, b=True, c=None))
    assert shown(world) == [("c", 2)]
    keep(world, "orders.3.1", batch(3, a=False, c=True))
    assert shown(world) == [("a", 3)]


def test_another_application_deletes_nothing_of_ours(world):
    """A deletion is about the rows of its own."""
    keep(world, "orders.0.1", batch(0, a=False))
    keep(world, "others.7.1", batch(7, a=True))
    assert shown(world) == [("a", 0)]
    keep(world, "others.8.1", batch(8, a=False))
    keep(world, "orders.1.1", batch(1, a=True))
    assert shown(world) == [("a", 8)]


def test_a_deletion_counts_from_its_commit_on(world):
    """In doubt it hides nothing, and after an abort nothing was there."""
    keep(world, "orders.0.1", batch(0, a=False))
    assert world.prepare("orders.1.1", batch(1, a=True)).status_code == 200
    assert shown(world) == [("a", 0)]
    assert world.abort("orders.1.1").status_code == 200
    assert shown(world) == [("a", 0)]
    keep(world, "orders.1.2", batch(1, b=False))
    assert shown(world) == [("a", 0), ("b", 1)]
    assert world.prepare("orders.2.1", two := batch(2, a=True)).status_code == 200
    assert world.commit("orders.2.1", two).status_code == 200
    assert shown(world) == [("b", 1)]


def test_the_row_of_a_deletion_stays_while_it_is_the_newest(world):
    """It takes older rows of its key along; a newer one takes it."""
    keep(world, "orders.0.1", batch(0, a=False, b=False))
    keep(world, "orders.1.1", batch(1, a=True))
    for number in range(2, 12):
        keep(world, f"orders.{number}.1", batch(number, b=False))
    stored = "SELECT id, gone FROM orders_tpc WHERE id = 'a'"
    assert [bool(gone) for _, gone in select(world.resource, stored)] == [True]
    assert shown(world) == [("b", 11)]
    keep(world, "orders.12.1", batch(12, a=False))
    keep(world, "orders.13.1", batch(13, b=False))
    assert [bool(gone) for _, gone in select(world.resource, stored)] == [False]


KEYS: dict[str, Any] = {
    "numbers": pa.array([1, None, -(2**62)], pa.int64()),
    "decimals": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(20, 2)),
    "floats": pa.array([0.1, math.nan, None]),
    "moments": pa.array([1, None], pa.timestamp("us")),
    "days": pa.array([datetime.date(2024, 2, 29), None]),
    "bytes": pa.array([b"\x00", b"", None]),
    "text": pa.array(["Zürich", "", "IS NOT TRUE", None]),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_a_key_is_of_any_type(world, keys):
    """What hides one is found by its value, NULL too."""
    same = [False] * len(keys)
    keep(world, "orders.0.1", records(id=keys, n=[0] * len(keys), gone=same))
    assert world.visible() == len(keys)
    one = keys.slice(0, 1)
    keep(world, "orders.1.1", records(id=one, n=[1], gone=[True]))
    assert world.visible() == len(keys) - 1
    rest = keys.slice(1)
    gone = [True] * len(rest)
    keep(world, "orders.2.1", records(id=rest, n=[2] * len(rest), gone=gone))
    assert world.visible() == 0
    twice = pa.concat_arrays([rest, rest])
    again = records(id=twice, n=[3] * len(twice), gone=[False] * len(twice))
    assert TEXTS["a key twice"].format(key="id") in refusal(world, again, "orders.3.1")


@pytest.mark.parametrize("gone", [True, False, None])
def test_a_key_that_a_branch_brings_twice(open_at, gone):
    """A vote to abort that names the key's columns and no value; nothing is kept."""
    world = open_at(key=["id", "n"], deleted="gone")
    flags = pa.array([False, gone, False], pa.bool_())
    twice = records(id=["secret", "secret", "b"], n=[7, 7, 7], gone=flags)
    why = refusal(world, twice)
    assert TEXTS["a key twice"].format(key="id, n") in why
    assert "secret" not in why
    assert (count(world.resource, "orders_tpc"), world.listed()) == (0, [])


def test_a_key_that_two_branches_bring(world):
    """The later one is refused; other tries of its task are not meant by it."""
    keep(world, "orders.0.1", batch(0, a=False))
    first, again = batch(1, "0.1", a=True), batch(1, "0.2", a=True)
    for branch in (first, again, batch(1, "1.1", b=False)):
        assert world.prepare("orders.1.1", branch).status_code == 200
    why = refusal(world, batch(1, "2.1", c=False, a=False), "orders.1.1")
    assert TEXTS["a key twice"].format(key="id") in why
    assert world.commit("orders.1.1", again).status_code == 200
    assert shown(world) == []
    for attempt in (1, 2):  # what an earlier attempt has prepared does not count
        other = batch(2, f"{attempt}.1", a=False)
        assert world.prepare(f"orders.2.{attempt}", other).status_code == 200


def test_two_branches_with_one_key_at_once(postgres_database, start, monkeypatch):
    """Whatever the tasks' order is: one of them is refused, and none of two keys."""
    world = start(tagged_rows, postgres_database, key="id", deleted="gone")
    keep(world, "orders.0.1", batch(0, a=False))
    checked, waits = threading.Event(), threading.Event()
    check = RepeatedKeys.check

    def slow(self: RepeatedKeys, connection: sa.Connection, upload: Any) -> None:
        check(self, connection, upload)
        if not checked.is_set():
            checked.set()
            waits.wait()

    monkeypatch.setattr(RepeatedKeys, "check", slow)
    answers: list[int] = []

    def prepare(branch: Branch) -> None:
        answers.append(world.prepare("orders.1.1", branch).status_code)

    threads = [
        threading.Thread(target=prepare, args=(batch(1, f"{n}.1", a=bool(n)),))
        for n in range(2)
    ]
    waiting = (
        "SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
        "WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()"
    )
    try:
        threads[0].start()
        until(checked.is_set)
        threads[1].start()
        until(lambda: select(world.resource, waiting) or answers)
    finally:
        waits.set()
        for thread in threads:
            thread.join()
    assert sorted(answers) == [200, 409]


def test_without_the_option_a_key_may_come_twice(open_at):
    """As before: one of its rows is shown."""
    world = open_at(key="id")
    keep(world, "orders.0.1", records(id=["a", "a"], n=[0, 0], gone=[True, True]))
    assert shown(world) == [("a", 0)]


@pytest.mark.parametrize("name", ["gone", "is gone?", 'a%b :tag"c', "tpc"])
def test_the_view_keeps_the_option(open_at, url, name):
    """Who starts without it, or with another, is told what to write, in one line."""
    settings = {"key": ["id", "n"], "deleted": name}
    world = open_at(**settings)
    keep(world, "orders.0.1", records(id=["a"], n=[0], other=[True], **{name: [True]}))
    again = open_at(**settings)
    keep(again, "orders.1.1", records(id=["b"], n=[1], other=[True], **{name: [None]}))
    assert shown(again) == [("b", 1)]
    for wrong in ({"key": ["id", "n"]}, {**settings, "deleted": "other"}, {}):
        with pytest.raises(ConfigurationError) as error:
            open_at(**wrong).resource.open()
        assert f"key=['id', 'n'], deleted={name!r}" in str(error.value)
        assert "\n" not in str(error.value)
    mark = "&" if "?" in url else "?"
    resource = read_address(f"{url}{mark}table=orders&key=id%2Cn").open()
    with contextlib.closing(resource), pytest.raises(ConfigurationError):
        resource.open()


def run(world: World, statements: str) -> None:
    """Run the SQL that a person was told to run."""
    engine = world.resource._database.engine
    with engine.begin() as connection:
        for statement in filter(str.strip, statements.split(";")):
            connection.exec_driver_sql(statement)


@pytest.mark.parametrize("has_column", [True, False])
def test_a_table_with_a_key_gets_the_option(open_at, has_column):
    """By the SQL of the error at the start; the index of the key is left as it is."""
    world = open_at(key="id")
    more = {"gone": [False, True]} if has_column else {}
    keep(world, "orders.0.1", records(id=["a", "b"], n=[0, 0], **more))
    with pytest.raises(ConfigurationError) as error:
        open_at(key="id", deleted="gone").resource.open()
    _, _, statements = str(error.value).partition("Run: ")
    assert ("ADD COLUMN" in statements, "INDEX" in statements) == (
        not has_column,
        False,
    )
    run(world, statements)
    world = open_at(key="id", deleted="gone")
    world.resource.open()
    assert shown(world) == [("a", 0), ("b", 0)][: 2 - has_column]
    keep(world, "orders.1.1", batch(1, a=True))
    assert ("a", 0) not in shown(world)


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        (None, "column gone, of deleted=, is not in the records"),
        (["true"], "column gone is string: deleted= needs a boolean"),
        ([1], "column gone is int64: deleted= needs a boolean"),
        ([None], "column gone is null: deleted= needs a boolean"),
    ],
)
def test_a_column_that_cannot_say_it(world, gone, says):
    """No table is made of records that do not say what is deleted."""
    more = {} if gone is None else {"gone": gone}
    assert says in refusal(world, records(id=["a"], n=[0], **more), status=400)


def test_json_lines_say_it_too(world):
    """A line that leaves the column out deletes nothing."""
    row = {"id": "a", "n": 0}
    keep(world, "orders.0.1", json_lines({**row, "gone": False}))
    keep(world, "orders.1.1", json_lines({**row, "gone": True}))
    assert shown(world) == []
    keep(world, "orders.2.1", json_lines(row))
    assert shown(world) == [("a", 0)]


def test_a_column_that_comes_changes_nothing_of_it(open_at):
    """The view is made again, and hides what it hid; a batch may lack the column."""
    settings = {"key": "id", "deleted": "gone", "evolve": "add"}
    world = open_at(**settings)
    keep(world, "orders.0.1", batch(0, a=False, b=False))
    keep(world, "orders.1.1", records(id=["a"], n=[1], gone=[True], note=["x"]))
    assert select(world.resource, "SELECT id, note FROM orders") == [("b", None)]
    again = open_at(**settings)
    keep(again, "orders.2.1", records(id=["a"], n=[2], note=["y"]))
    assert shown(again) == [("b", 0), ("a", 2)]


def test_a_table_of_ones_own_whose_column_is_no_boolean(open_at):
    """It is said at the start."""
    world = open_at(key="id")
    keep(world, "orders.0.1", records(id=["a"], n=[0], gone=[0]))
    run(world, "DROP VIEW orders")
    with pytest.raises(ConfigurationError, match="gone is not boolean"):
        open_at(key="id", deleted="gone").resource.open()


@pytest.mark.parametrize("key", [None, "gone"])
def test_it_needs_a_key(url, key):
    make = functools.partial(tagged_rows, url, key=key, deleted="gone")
    with pytest.raises(ConfigurationError, match="give key="):
        make()
