"""What becomes of a lock whose holder is frozen or gone, on PostgreSQL."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.participant import (
    KINDS,
    ONE,
    OTHER,
    World,
    keep,
    prepared_transactions,
)
from werkzeug.test import TestResponse

from tracing_2pc.store import open_log
from tracing_2pc.store.engines import postgresql

T = "orders.7.1"
SECONDS = 3
"""After so many somebody silent counts as gone: a busy machine is seldom as slow."""


def opened(make: Callable[[str], World], url: str) -> World:
    """Start a participant; ask again where the machine was slower than `SECONDS`."""
    for _ in range(4):
        with contextlib.suppress(sa.exc.DBAPIError):
            return make(url)
    return make(url)


@pytest.fixture(params=KINDS)
def worlds(
    request: pytest.FixtureRequest,
    postgres_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[list[World]]:
    """Two processes' worth of a participant that does not wait long for the silent."""
    monkeypatch.setattr(postgresql, "PEER_TIMEOUT", SECONDS)
    made = [opened(KINDS[request.param], postgres_database) for _ in range(2)]
    yield made
    for world in made:
        world.resource.close()


def goes_on(ask: Callable[[], TestResponse]) -> bool:
    """Ask until it is done; False if somebody's lock stays for too long.

    On a busy machine who asks may be taken for gone himself.
    """
    return any(ask().status_code == 200 for _ in range(5))


def test_who_is_frozen_in_a_local_transaction_loses_its_lock(
    worlds: list[World],
) -> None:
    """Others go on when it counts as gone. What it comes back with does not happen."""
    frozen, other = worlds
    assert goes_on(lambda: frozen.prepare("orders.1.1", ONE))
    assert goes_on(lambda: frozen.commit("orders.1.1", ONE))

    read, others = frozen.resource._journal.read, []

    def read_late(*given: Any) -> Any:
        others.append(goes_on(lambda: other.abort("orders.2.1")))
        return read(*given)

    frozen.resource._journal.read = read_late
    assert frozen.abort("orders.3.1", once=True).status_code == 503
    assert others == [True]
    frozen.resource._journal.read = read
    assert other.show("orders.3.1").status_code == 404
    assert goes_on(lambda: frozen.prepare("orders.4.1", OTHER))


def test_who_is_frozen_between_two_of_them_loses_its_lock(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PreparedTransactions holds it by its session, while it carries a decision out."""
    monkeypatch.setattr(postgresql, "PEER_TIMEOUT", SECONDS)
    frozen, other = (opened(prepared_transactions, postgres_database) for _ in range(2))
    assert goes_on(lambda: frozen.prepare(T))
    carry_out, others = frozen.resource._store._carry_out, []

    def late(*given: Any) -> Any:
        others.append(goes_on(lambda: other.commit(T, ONE)))
        return carry_out(*given)

    monkeypatch.setattr(frozen.resource._store, "_carry_out", late)
    assert frozen.commit(T, ONE, once=True).status_code == 503
    assert others == [True]
    assert frozen.visible() == 3
    for world in (frozen, other):
        world.resource.close()


def test_an_upload_may_take_its_time(worlds: list[World]) -> None:
    """A client that is slow loses nothing, and nobody waits for it."""
    world, other = worlds
    assert goes_on(lambda: world.prepare("orders.1.1", OTHER))
    assert goes_on(lambda: world.commit("orders.1.1", OTHER))
    with world.writing(T) as upload:
        time.sleep(2 * SECONDS)  # any longer does as well
        assert goes_on(lambda: other.prepare("orders.2.1", OTHER))
        assert goes_on(lambda: other.commit("orders.2.1", OTHER))
        assert goes_on(lambda: other.abort("orders.3.1"))
        assert upload.finish().status_code == 200
    assert goes_on(lambda: other.commit(T, ONE))
    assert world.visible() == ONE.rows + 2 * OTHER.rows


@contextlib.contextmanager
def sessions(kind: str, url: str) -> Iterator[sa.Engine]:
    """Give the engine of a resource that was opened, or of the log."""
    if kind == "log":
        log = open_log(url)
        yield log._database.durable_engine
        log.close()
        return
    world = KINDS[kind](url)
    yield world.resource._database.engine
    world.resource.close()


@pytest.mark.parametrize("kind", ["log", *KINDS])
def test_both_sides_notice_when_the_other_is_gone(
    postgres_database: str, kind: str
) -> None:
    """A machine that is lost leaves no session behind, and waits for none."""
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_keeps_the_statements_that_it_has_prepared(
    postgres_database: str, kind: str
) -> None:
    """Psycopg drops all of them where it sees a ROLLBACK, and begins anew."""
    world = KINDS[kind](postgres_database)
    for batch in range(12):
        keep(world, f"orders.{batch}.1", ONE)
    with world.resource._database.engine.connect() as connection:
        asked = "SELECT count(*) FROM pg_prepared_statements"
        assert connection.exec_driver_sql(asked).scalar_one() >= 3
    world.resource.close()
