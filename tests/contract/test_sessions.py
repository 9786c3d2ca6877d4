"""What becomes of a lock whose holder is frozen or gone, on PostgreSQL."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.branches import ONE, OTHER
from support.kinds import KINDS, prepared_transactions
from support.participant import World, database_of, keep, no_sender
from support.waiting import AT_ONCE, PATIENT, PAUSE, until

from tracing_2pc.outbox import Outbox
from tracing_2pc.participant.journal import postgresql
from tracing_2pc.store import open_log
from tracing_2pc.store.engines import postgresql as engines

T = "orders.7.1"
TRIED = ("TaggedRows", "PreparedTransactions")
"""One that seals in its own transaction, and one that does not."""

AT_ONCE_GONE = f"{AT_ONCE}s"
"""For the one session that is to count as gone; no other one does."""

SOME = [
    pytest.param(kind, marks=[] if kind in TRIED else [pytest.mark.ci])
    for kind in KINDS
]


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    """However slow this process is, its sessions do not count as gone."""
    monkeypatch.setattr(engines, "PEER_TIMEOUT", PATIENT)
    monkeypatch.setattr(postgresql, "LOCK_WAIT", PATIENT)


@pytest.fixture(params=SOME)
def worlds(request, postgres_database) -> Iterator[list[World]]:
    """Two processes' worth of a participant."""
    made = [KINDS[request.param](postgres_database) for _ in range(2)]
    yield made
    for world in made:
        world.resource.close()


def test_who_is_frozen_in_a_local_transaction_loses_its_lock(worlds):
    """Others go on when it counts as gone. What it comes back with does not happen."""
    frozen, other = worlds
    keep(frozen, "orders.1.1", ONE)
    read, others = frozen.resource._journal.read, []

    def read_late(connection: sa.Connection, *about: Any) -> Any:
        limit = "SET LOCAL idle_in_transaction_session_timeout = "
        connection.exec_driver_sql(f"{limit}'{AT_ONCE_GONE}'")
        others.append(other.abort("orders.2.1").status_code)
        return read(connection, *about)

    frozen.resource._journal.read = read_late
    assert frozen.abort("orders.3.1", once=True).status_code == 503
    assert others == [200]
    frozen.resource._journal.read = read
    assert other.show("orders.3.1").status_code == 404
    assert frozen.prepare("orders.4.1", OTHER).status_code == 200


def test_who_is_frozen_between_two_of_them_loses_its_lock(
    postgres_database, monkeypatch
):
    """PreparedTransactions holds it by its session, while it carries a decision out."""
    frozen, other = (prepared_transactions(postgres_database) for _ in range(2))
    assert frozen.prepare(T).status_code == 200
    carry_out, others = frozen.resource._store._carry_out, []

    def late(connection: sa.Connection, *about: Any) -> Any:
        connection.exec_driver_sql(f"SET idle_session_timeout = '{AT_ONCE_GONE}'")
        connection.commit()
        others.append(other.commit(T, ONE).status_code)
        return carry_out(connection, *about)

    monkeypatch.setattr(frozen.resource._store, "_carry_out", late)
    assert frozen.commit(T, ONE, once=True).status_code == 503
    assert others == [200]
    assert frozen.visible() == 3
    for world in (frozen, other):
        world.resource.close()


IDLE = """
SELECT query FROM pg_stat_activity
WHERE datname = current_database() AND state LIKE 'idle in transaction%'
"""


def test_an_upload_may_take_its_time(worlds, postgres_database, monkeypatch):
    """A client that is slow loses nothing, and nobody waits for it.

    No transaction is open meanwhile; what its session holds has no limit.
    """
    world, other = worlds
    keep(world, "orders.1.1", OTHER)
    with contextlib.ExitStack() as stack:
        with monkeypatch.context() as patch:
            patch.setattr(engines, "PEER_TIMEOUT", AT_ONCE)
            upload = stack.enter_context(world.writing(T))
        connected = psycopg.connect(postgres_database, autocommit=True)
        person = stack.enter_context(connected)
        until(lambda: person.execute(IDLE).fetchall() == [])  # an outbox looks, too
        time.sleep(AT_ONCE + PAUSE)  # any longer does as well
        keep(other, "orders.2.1", OTHER)
        assert other.abort("orders.3.1").status_code == 200
        assert upload.finish().status_code == 200
    assert other.commit(T, ONE).status_code == 200
    assert world.visible() == ONE.rows + 2 * OTHER.rows


def test_a_look_without_a_transaction_has_a_limit(worlds):
    """It would else hang where somebody holds a whole table of the journal."""
    with database_of(worlds[0]).look() as connection:
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar() != "0"


@contextlib.contextmanager
def sessions(kind: str, url: str) -> Iterator[sa.Engine]:
    """Give the engine of a resource that was opened, or of the log."""
    if kind == "log":
        log = open_log(url)
        yield log._database.engine
        log.close()
        return
    world = KINDS[kind](url)
    yield database_of(world).engine
    world.resource.close()


@pytest.mark.parametrize("kind", ["log", *SOME])
def test_both_sides_notice_when_the_other_is_gone(postgres_database, kind, monkeypatch):
    """A machine that is lost leaves no session behind, and waits for none."""
    monkeypatch.undo()  # the limits as they are
    names = ["idle_in_transaction_session_timeout", "lock_timeout"]
    server = ["tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count"]
    server.append("tcp_user_timeout")
    with sessions(kind, postgres_database) as engine, engine.connect() as connection:
        found = connection.execute(
            sa.text(
                "SELECT name, setting, source FROM pg_settings WHERE name = ANY(:names)"
            ),
            {"names": names + server},
        )
        settings = {name: (value, source) for name, value, source in found}
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        client = driver.info.get_parameters()
    assert settings["idle_in_transaction_session_timeout"][0] == "30000"
    assert settings["lock_timeout"][0] == ("30000" if kind == "log" else "10000")
    # On a Unix socket they are kept, and read as 0.
    assert {settings[name][1] for name in server} == {"session"}
    assert client["keepalives_idle"] == "10"
    assert client["tcp_user_timeout"] == "30000"


@pytest.mark.parametrize("kind", SOME)
def test_a_session_keeps_the_statements_that_it_has_prepared(
    postgres_database, kind, monkeypatch
):
    """Psycopg drops all of them where it sees a ROLLBACK, and begins anew.

    A sender beside it would have some of the requests take another session.
    """
    monkeypatch.setattr(Outbox, "start", no_sender)
    world = KINDS[kind](postgres_database)
    for batch in range(12):
        keep(world, f"orders.{batch}.1", ONE)
    with database_of(world).engine.connect() as connection:
        asked = "SELECT count(*) FROM pg_prepared_statements"
        assert connection.exec_driver_sql(asked).scalar_one() >= 3
    world.resource.close()
