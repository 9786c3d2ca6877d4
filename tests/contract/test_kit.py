"""The tables of a store, and the columns that a later release adds to them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from support.texts import texts

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.participant.journal.open_database import open_database
from tracing_2pc.store.engines.database import Database
from tracing_2pc.store.kit import Schema, added

TEXTS = texts("kit")


def release(number: int) -> Schema:
    """The same store in the first release, or in the second, which adds a column."""
    store = Schema("some_tpc_", "some", 1, "the store some", "some_before")
    more = [added("0.2.0", "note", sa.Text())] if number > 1 else []
    store.add("item", sa.Column("id", sa.Integer, primary_key=True), *more)
    return store


FIRST, SECOND = release(1), release(2)


@pytest.fixture
def database(url) -> Iterator[Database]:
    """The connections to an empty database."""
    with contextlib.closing(open_database(url)) as connections:
        yield connections


def open_store(database: Database, store: Schema) -> frozenset[str]:
    """Open a store as a process does; return the columns that are absent then."""
    with database.write() as connection:
        store.create(connection)
    with database.read() as connection:
        assert store.exists(connection)
        return store.absent(connection)


def ask(database: Database, statement: sa.Executable) -> Sequence[Any]:
    with database.look() as connection:
        return connection.execute(statement).all()


def put(database: Database, store: Schema, **row: object) -> None:
    with database.write() as connection:
        connection.execute(store.metadata.tables["some_tpc_item"].insert().values(row))


def test_a_column_is_added_beside_the_release_before(database):
    """Both write on. The earlier release leaves the column NULL."""
    assert open_store(database, FIRST) == frozenset()
    put(database, FIRST, id=1)
    assert open_store(database, SECOND) == frozenset()
    put(database, SECOND, id=2, note="new")
    assert open_store(database, FIRST) == frozenset()
    put(database, FIRST, id=3)
    rows = ask(database, sa.text("SELECT id, note FROM some_tpc_item ORDER BY id"))
    assert list(map(tuple, rows)) == [(1, None), (2, "new"), (3, None)]


def test_a_store_keeps_its_identity(database):
    """By it a store is told from another one, whichever release opens it."""
    identity = sa.select(FIRST.identity)
    open_store(database, FIRST)
    first = ask(database, identity)
    open_store(database, SECOND)
    assert ask(database, identity) == first
    assert (first[0].version, first[0].kind, len(first[0].id)) == (1, "some", 32)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_column_that_cannot_be_added_now_is_absent(database):
    """Where the table is in use: the store works without it until the next start."""
    open_store(database, FIRST)
    with database.read() as reader:
        reader.exec_driver_sql("SELECT * FROM some_tpc_item")
        assert open_store(database, SECOND) == {"some_tpc_item.note"}
        with database.read() as connection:
            (alter,) = SECOND.lacking(connection)
    assert alter == "ALTER TABLE some_tpc_item ADD COLUMN note TEXT"
    with database.read() as connection:
        assert not SECOND.is_complete(connection)
    with database.write() as connection:
        SECOND.create(connection)
    with database.read() as connection:
        assert SECOND.is_complete(connection)


@pytest.mark.parametrize(
    ("made", "refused"),
    [
        ("CREATE TABLE some_before (version INTEGER)", "unreleased"),
        ("CREATE TABLE some_tpc_schema (version INTEGER, journal TEXT)", "unreleased"),
        ("UPDATE some_tpc_schema SET version = 2", "newer"),
        ("UPDATE some_tpc_schema SET kind = 'other'", "another kind"),
    ],
)
def test_a_store_that_is_not_ours_is_refused(database, made, refused):
    """In one line, before anything is read or written: of which release, what to do."""
    if made.startswith("UPDATE"):
        open_store(database, FIRST)
    with database.write() as connection:
        connection.exec_driver_sql(made)
    with pytest.raises(ConfigurationError, match=TEXTS[refused]) as error:
        open_store(database, FIRST)
    assert "\n" not in str(error.value)
