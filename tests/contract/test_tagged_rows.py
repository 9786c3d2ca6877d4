"""The table and the view of a participant that keeps rows: what readers see."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from support.branches import ONE, OTHER, Branch, json_lines, records
from support.databases import url
from support.participant import count, keep, refusal, select
from support.texts import texts
from support.waiting import until
from werkzeug.test import TestResponse

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.participant import TaggedRows

__all__ = ["url"]

OTHER_BRANCH = Branch(OTHER.body, OTHER.rows, "1.0")
TEXTS = texts("kits")


@pytest.fixture
def sql(url) -> Iterator[Callable[[str], None]]:
    """Run statements as the owner of the database does."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    def run(statements: str) -> None:
        with engine.begin() as connection:
            for statement in filter(str.strip, statements.split(";")):
                connection.exec_driver_sql(statement)

    yield run
    engine.dispose()


def cure(error: ConfigurationError) -> str:
    """Return the SQL that an error says to run."""
    return str(error).partition("Run: ")[2]


def test_two_first_prepares_at_once(open_at, url):
    """The table is nobody's to write before it is there for everybody."""
    world = open_at()
    answers: list[TestResponse] = []
    asked: list[str] = []

    def prepare_second() -> None:
        answers.append(world.prepare("orders.0.1", OTHER_BRANCH))

    second = threading.Thread(target=prepare_second)
    makes_view = threading.local()

    def see(_: Any, cursor: Any, statement: str, *__: Any) -> None:
        makes_view.now = statement.startswith("CREATE VIEW")
        if threading.current_thread() is second:
            asked.append(statement)

    def waits() -> bool:
        if url.startswith("sqlite"):
            return bool(asked) and asked[-1].startswith("BEGIN IMMEDIATE")
        with psycopg.connect(url) as person:
            locks = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            return person.execute(locks).fetchone() == (1,)

    def start_second(_: Any) -> None:
        if getattr(makes_view, "now", False):
            second.start()
            until(lambda: answers or waits())  # it answers only if it does not wait

    sa.event.listen(Engine, "before_cursor_execute", see)
    sa.event.listen(Engine, "commit", start_second)
    try:
        answers.append(world.prepare("orders.0.1", ONE))
        second.join()
    finally:
        sa.event.remove(Engine, "before_cursor_execute", see)
        sa.event.remove(Engine, "commit", start_second)
    assert [answer.status_code for answer in answers] == [200, 200]


def test_a_key_shows_the_latest_committed_row(open_at):
    """Per key and application; a prepared newer row does not hide a committed one."""
    world = open_at(key=["id", "day"])

    def rows(n: int, *ids: int) -> Branch:
        return records(id=list(ids), day=["mon"] * len(ids), n=[n] * len(ids))

    keep(world, "orders.1.1", rows(1, 1, 2))
    keep(world, "orders.0.1", rows(0, 1, 2, 3))
    keep(world, "other.9.1", rows(9, 1))
    assert world.prepare("orders.2.1", rows(2, 1)).status_code == 200
    shown = "SELECT id, n FROM orders ORDER BY id, n"
    assert select(world.resource, shown) == [(1, 1), (1, 9), (2, 1), (3, 0)]
    assert world.commit("orders.2.1", rows(2, 1)).status_code == 200
    assert select(world.resource, shown) == [(1, 2), (1, 9), (2, 1), (3, 0)]
    assert count(world.resource, "orders_tpc") == 7


def test_a_key_that_the_records_lack(open_at, url):
    """It is a vote to abort at the first prepare, and refused at start later."""
    why = refusal(open_at(key="nr"), ONE, "orders.0.1", 400)
    assert TEXTS["another key"] in why
    keep(open_at(key="id"), "orders.0.1", ONE)
    with pytest.raises(ConfigurationError, match=r"no column nr|DROP VIEW"):
        TaggedRows(url, "orders", key="nr").open()


@pytest.mark.parametrize("key", [None, "id"])
def test_a_table_that_exists_is_refused_with_a_cure(open_at, url, sql, key):
    """The error's SQL makes it ours; rows that were there stay visible."""
    sql("CREATE TABLE orders (id bigint, amount float)")
    sql("INSERT INTO orders VALUES (1, 1.5), (9, 9.5)")
    with pytest.raises(ConfigurationError, match=TEXTS["own table"]) as refused:
        TaggedRows(url, "orders", key=key).open()
    sql(cure(refused.value))
    world = open_at(key=key)
    assert world.visible() == 2
    keep(world, "orders.0.1", ONE)
    assert world.visible() == 5


@pytest.mark.parametrize(("before", "after"), [(None, "id"), ("id", None), ("id", "n")])
def test_another_key_is_refused_with_a_cure(open_at, url, sql, before, after):
    """A view never goes on showing what another key would; the SQL makes it fit."""
    keep(open_at(key=before), "orders.0.1", records(id=[1, 1, 2], n=[1, 1, 1]))
    with pytest.raises(ConfigurationError, match="DROP VIEW") as refused:
        TaggedRows(url, "orders", key=after).open()
    sql(cure(refused.value))
    world = open_at(key=after)
    keep(world, "orders.1.1", records(id=[1, 1], n=[2, 2]))
    shown = select(world.resource, "SELECT id, n FROM orders ORDER BY id, n")
    assert (
        shown
        == {
            None: [(1, 1), (1, 1), (1, 2), (1, 2), (2, 1)],
            "id": [(1, 2), (2, 1)],
            "n": [shown[0], (1, 2)],
        }[after]
    )


def test_a_view_of_something_else_is_refused(url, sql):
    """Readers' view is ours, or another name is needed."""
    sql("CREATE VIEW orders AS SELECT 1 AS id")
    with pytest.raises(ConfigurationError, match=TEXTS["another table"]):
        TaggedRows(url, "orders").open()


TRIGGER = {
    "sqlite": "CREATE TRIGGER noted {when} ON orders_tpc "
    "BEGIN INSERT INTO note VALUES (1) END",
    "postgresql": "CREATE TRIGGER noted {when} ON orders_tpc "
    "FOR EACH ROW EXECUTE FUNCTION note()",
}


@pytest.fixture
def noting(sql, url) -> Callable[[str], None]:
    """Make a trigger on the table, which notes each row that it fires for."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    def make(when: str) -> None:
        kind = engine.dialect.name
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE note (n bigint)")
            if kind == "postgresql":
                connection.exec_driver_sql(
                    "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
                    "'BEGIN INSERT INTO note VALUES (1); RETURN NEW; END'"
                )
            made = TRIGGER[kind].format(when=when).replace(") END", "); END")
            connection.exec_driver_sql(made)
        engine.dispose()

    return make


@pytest.mark.parametrize("when", ["AFTER INSERT", "BEFORE DELETE"])
def test_a_trigger_is_refused_unless_it_is_meant(open_at, url, noting, when):
    """It would fire for rows that nobody has committed, and when they are deleted."""
    keep(open_at(), "orders.0.1", ONE)
    noting(when)
    with pytest.raises(ConfigurationError, match=r"noted.*triggers=True"):
        TaggedRows(url, "orders").open()
    world = open_at(triggers=True)
    assert world.prepare("orders.1.1").status_code == 200
    assert world.abort("orders.1.1").status_code == 200
    if when == "AFTER INSERT":
        assert select(world.resource, "SELECT count(*) FROM note") == [(3,)]
    assert world.visible() == 3


def test_a_trigger_of_updates_never_fires(open_at, noting):
    """Rows are written and deleted, and never changed: such a trigger is no matter."""
    keep(open_at(), "orders.0.1", ONE)
    noting("AFTER UPDATE")
    world = open_at()
    keep(world, "orders.1.1", OTHER)
    assert select(world.resource, "SELECT count(*) FROM note") == [(0,)]


JOURNAL = ("application", "transaction", "branch", "hidden", "schema")
COUNTED_AGAIN = {
    "sqlite": "DELETE FROM orders_tpc_branch; DELETE FROM sqlite_sequence",
    "postgresql": "DELETE FROM orders_tpc_branch; "
    "ALTER SEQUENCE orders_tpc_branch_tag_seq RESTART",
}
"""What is left where rows were copied, and the counter was not."""


@pytest.mark.parametrize("lost", ["journal", "counter"])
def test_a_tag_never_comes_again(open_at, sql, url, lost):
    """Nothing hides, deletes or shows rows of others, whatever became of the counter.

    A journal can be dropped "to reset"; a logical replica, or a dump of some tables,
    has the rows and counts from 1 again.
    """
    first = open_at()
    keep(first, "orders.1.1", ONE)
    assert first.prepare("orders.2.1", ONE).status_code == 200
    assert first.abort("orders.2.1").status_code == 200
    first.resource.close()
    if lost == "journal":
        sql("DROP VIEW orders")
        sql("; ".join(f"DROP TABLE orders_tpc_{name}" for name in JOURNAL))
        # What was aborted and not swept cannot be told from the rest any more.
        sql("DELETE FROM orders_tpc WHERE tpc_tag > 1")
    else:
        sql(COUNTED_AGAIN[url.partition(":")[0]])
    world = open_at()
    for attempt in (1, 2):
        assert world.visible() == 3
        assert world.prepare(f"orders.3.{attempt}", OTHER).status_code == 200
        assert world.visible() == 3
        assert world.abort(f"orders.3.{attempt}").status_code == 200
    keep(world, "orders.3.3", OTHER)
    assert world.visible() == 4
    assert select(world.resource, "SELECT min(tag) FROM orders_tpc_branch") > [(1,)]


def test_a_newer_journal_is_refused(open_at, url, sql):
    """A participant never guesses at what a newer version has written."""
    keep(open_at(), "orders.0.1", ONE)
    sql("UPDATE orders_tpc_schema SET version = version + 1")
    with pytest.raises(ConfigurationError, match="upgrade"):
        TaggedRows(url, "orders").open()


WRONG: dict[str, tuple[Branch, str]] = {
    "missing": (records(id=[1]), "missing: amount"),
    "unknown": (records(id=[1], amount=[1.0], x=[1]), "not in the table: x"),
    "type": (records(id=["one"], amount=[1.0]), "another type: id"),
    "nested": (records(id=[1], amount=[[1.0]]), "columns amount (list"),
    "json": (json_lines({"id": 1, "amount": 1, "x": 2}), "not in the table: x"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_columns_are_named(open_at, what):
    """A branch that is not the table's is a vote to abort that says why."""
    world = open_at()
    keep(world, "orders.0.1", ONE)
    branch, said = WRONG[what]
    assert said in refusal(world, branch, "orders.1.1", 400)
    assert (world.in_doubt(), world.visible()) == (0, 3)


def test_a_column_that_was_added_is_seen(open_at, sql):
    """After ALTER TABLE a running participant takes records that have the column."""
    world = open_at()
    keep(world, "orders.0.1", records(id=[1]))
    sql("ALTER TABLE orders_tpc ADD COLUMN n bigint")
    keep(world, "orders.1.1", records(id=[2], n=[5]))
    rows = select(world.resource, "SELECT id, n FROM orders_tpc ORDER BY id")
    assert rows == [(1, None), (2, 5)]
