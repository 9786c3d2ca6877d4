"""What a role of PostgreSQL needs, and what it is told that it lacks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import psycopg
import pytest
from manual import blocks, page
from support.branches import ONE, OTHER
from support.kinds import KINDS
from support.participant import close, keep, no_sender

from tracing_2pc.cli import main
from tracing_2pc.core.errors import DecisionLogError
from tracing_2pc.outbox import Outbox
from tracing_2pc.store import open_log

pytestmark = pytest.mark.ci

ROLES = ("orders", "ledger", "orders_viewer", "ledger_service", '"the-job"')
OWNERS, VIEWER, SERVICE = blocks(page("grants"), "sql")
Execute = Callable[[str], None]


@pytest.fixture
def execute(postgres_database) -> Iterator[Execute]:
    """Execute SQL as a superuser; the page's roles are gone afterwards."""
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        yield connection.execute  # type: ignore[misc]
        for role in ROLES:
            try:
                connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
            except psycopg.errors.UndefinedObject:
                continue


def begin(url: str, batch: int) -> None:
    about = {"run": "r", "query": "q", "participants": ["ledger"], "carrier": {}}
    with contextlib.closing(open_log(url)) as log:
        log.begin("orders", batch, **about)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_page_grants_is_enough(
    postgres_database, execute, kind, monkeypatch, capsys
):
    """Roles that own their tables, one that reads the log, one that owns nothing."""

    def of(role: str) -> str:
        return postgres_database.replace("postgres@", f"{role}@")

    execute(OWNERS)
    begin(of("orders"), 0)
    owner = KINDS[kind](of("ledger"))
    keep(owner, "orders.0.1", OTHER)
    close(owner)
    execute(VIEWER)
    execute(SERVICE)
    monkeypatch.setenv("TPC_LOG", of("orders_viewer"))
    assert main(["ls"]) == 0
    assert "orders.0.1" in capsys.readouterr().out
    with pytest.raises(DecisionLogError, match="GRANT"):
        begin(of("orders_viewer"), 0)
    world = KINDS[kind](of("ledger_service"))
    keep(world, "orders.1.1", ONE)
    assert world.visible() == ONE.rows + OTHER.rows
    assert world.prepare("orders.2.1", OTHER).status_code == 200
    assert world.abort("orders.2.1").status_code == 200
    close(world)


def test_a_service_that_may_not_change_its_tables_says_what_their_owner_runs(
    postgres_database, execute, caplog, monkeypatch
):
    """An older release has made them without a column: one line with the SQL."""
    monkeypatch.setattr(Outbox, "start", no_sender)
    execute(OWNERS)
    owners = postgres_database.replace("postgres@", "ledger@")
    owner = KINDS["Outbox"](owners)
    keep(owner, "orders.0.1", ONE)
    close(owner)
    execute(SERVICE)
    with psycopg.connect(owners, autocommit=True) as ledger:
        ledger.execute("ALTER TABLE outbox_tpc_quarantine DROP COLUMN answer")
        of_service = postgres_database.replace("postgres@", "ledger_service@")
        world = KINDS["Outbox"](of_service)
        assert world.client.get("/health/ready").status_code == 503
        found = re.findall("As its owner run: (.*)", caplog.text)
        assert len(found) >= 2  # at its start, and not ready
        ledger.execute(found[0])
    keep(world, "orders.1.1", ONE)
    close(world)


LACKS = {
    "no right to create": ("", 'GRANT USAGE, CREATE ON SCHEMA public TO "the-job"'),
    "no schema": (
        'ALTER ROLE "the-job" SET search_path = nowhere',
        'CREATE SCHEMA AUTHORIZATION "the-job"',
    ),
    "no right to use": (
        "REVOKE USAGE ON SCHEMA public FROM public",
        'CREATE SCHEMA AUTHORIZATION "the-job"',
    ),
    "read-only": (
        'ALTER ROLE "the-job" SET default_transaction_read_only = on',
        "Promote it, or name the primary",
    ),
}


@pytest.mark.parametrize("lack", LACKS)
def test_what_is_lacking_is_one_line_with_its_cure(
    postgres_database, execute, lack, tmp_path, monkeypatch, capsys, caplog
):
    """For the log, and at each resource, which goes on when it is granted."""
    sql, cure = LACKS[lack]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Outbox, "start", no_sender)
    url = postgres_database.replace("postgres@", "the-job@")
    execute(f'CREATE ROLE "the-job" LOGIN; {sql}')
    assert main(["init", "--log", url]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert cure in line
    assert "start its database" not in line
    for make in KINDS.values():
        caplog.clear()
        world = make(url)
        assert world.client.get("/health/ready").status_code == 503
        lines = [r for r in caplog.records if cure in r.getMessage()]
        assert len(lines) >= 2  # at its start, and not ready
        assert all(r.exc_info is None for r in caplog.records)
        close(world)
