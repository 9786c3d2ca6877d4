"""What a participant's database did, in the trace of the request that needed it."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from opentelemetry.trace import SpanKind, StatusCode
from support.branches import ONE, TWIN, orders, records
from support.branches import Branch as Sent
from support.kinds import KINDS_AND_DATABASES
from support.participant import World, database_of, keep, rows_table
from support.tracing import span_tree

from tracing_2pc.outbox import Outbox

T = "orders.7.1"
MANY = Sent(orders(*range(20_000)), 20_000)


@pytest.fixture(autouse=True)
def _no_sender(exported, monkeypatch) -> None:
    """An outbox sends nothing: its sender has spans too."""
    monkeypatch.setattr(Outbox, "start", lambda _: None)


def on_sqlite(world: World) -> bool:
    return bool(database_of(world).engine.dialect.name == "sqlite")


def prepared(world: World) -> list[str]:
    """The statements of a prepare: one that moves rows, one that makes them durable."""
    if type(world.resource).__name__ == "PreparedTransactions":
        return ["  COPY", "  PREPARE TRANSACTION"]
    return ["  INSERT" if on_sqlite(world) else "  COPY", "  COMMIT"]


def decided(world: World, *verbs: str) -> list[str]:
    """And those of a decision."""
    if type(world.resource).__name__ == "PreparedTransactions" and verbs:
        return [f"  {verb} PREPARED" for verb in verbs]
    return ["  COMMIT"]


@pytest.mark.parametrize("branch", [ONE, MANY], ids=["few", "many"])
def test_a_request_shows_what_its_database_did(world, exported, branch):
    """One or two statements each, however many records there are."""
    assert world.prepare(T, branch).status_code == 200
    assert world.prepare(T, branch).status_code == 200  # it is there already
    assert world.commit(T, branch).status_code == 200
    assert span_tree(exported()) == [
        "POST /prepare",
        *prepared(world),
        "POST /prepare",
        "POST /commit",
        *decided(world, "COMMIT"),
    ]


def test_an_abort_shows_it_too(world, exported):
    """Of what was prepared, and of what never was."""
    assert world.prepare(T).status_code == 200
    assert world.abort(T).status_code == 200
    assert world.abort("orders.8.1").status_code == 200
    assert span_tree(exported()) == [
        "POST /prepare",
        *prepared(world),
        "POST /abort",
        *decided(world, "ROLLBACK"),
        "POST /abort",
        "  COMMIT",
    ]


def test_each_branch_that_a_database_ends_by_itself(world, exported):
    """Where branches are committed one by one, each is a statement."""
    assert world.prepare(T).status_code == 200
    assert world.prepare(T, TWIN).status_code == 200
    before = len(exported())
    assert world.commit(T, ONE).status_code == 200
    assert span_tree(exported()[before:]) == [
        "POST /commit",
        *decided(world, "COMMIT", "ROLLBACK"),
    ]


def test_a_statement_says_what_it_is_and_nothing_of_what_it_holds(world, exported):
    """The system, where it is, the table, and the first words: no text, no value."""
    secret = 4711_0815_4711  # longer than what a random span id holds by chance
    branch = records(id=[secret], amount=[1.5])
    assert world.prepare(T, branch).status_code == 200
    assert world.commit(T, branch).status_code == 200
    system = "sqlite" if on_sqlite(world) else "postgresql"
    url = database_of(world).engine.url
    place = {"db.namespace": Path(url.database).name}
    if not on_sqlite(world):
        host = url.host or url.query["host"]
        place |= {"server.address": host, "server.port": url.port or 5432}
    with database_of(world).setup() as connection:
        tables = sa.inspect(connection).get_table_names()
    statements = [span for span in exported() if span.kind is SpanKind.CLIENT]
    assert len(statements) == 3
    for span in statements:
        said = dict(span.attributes)
        if span.name in {"COPY", "INSERT"}:
            assert said.pop("db.collection.name") in tables
        assert said == {
            "tpc.transaction.id": T,
            "db.system.name": system,
            "db.operation.name": span.name,
            **place,
        }
        assert str(secret) not in span.to_json()
        assert not span.events
        assert span.status.description is None


@pytest.mark.parametrize(
    "made",
    [kind for kind in KINDS_AND_DATABASES if "Outbox" not in kind.id],
    indirect=True,
)
def test_a_refused_record_is_seen_at_its_statement(world, exported):
    """By the class of the error; what was not kept was not made durable."""
    keep(world, T, ONE)
    with database_of(world).setup() as connection:
        tables = sa.inspect(connection).get_table_names()
        table = "orders" if "orders" in tables else rows_table(world)
        connection.exec_driver_sql(f"CREATE UNIQUE INDEX one ON {table} (id)")
    before = len(exported())
    assert world.prepare("orders.8.1", TWIN).status_code == 409
    statement, prepare = exported()[before:]
    assert statement.name in {"COPY", "INSERT"}
    assert statement.status.status_code is StatusCode.ERROR
    assert statement.attributes["error.type"] in {"UniqueViolation", "IntegrityError"}
    assert span_tree([statement, prepare]) == ["POST /prepare", f"  {statement.name}"]
