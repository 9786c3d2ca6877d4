"""What a role of PostgreSQL needs, and what it is told that it lacks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from manual import blocks, page
from support.branches import ONE, OTHER, commit_of, prepare_at
from support.kinds import KINDS
from support.participant import close, keep, no_sender
from support.texts import texts
from support.waiting import PATIENT

from tracing_2pc.cli import main
from tracing_2pc.core.errors import DecisionLogError, ParticipantUnavailableError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.remote_participant import RemoteParticipant, open_participant
from tracing_2pc.core.states import ParticipantState, Vote
from tracing_2pc.outbox import Outbox
from tracing_2pc.participant.journal.schema import Tables
from tracing_2pc.store import open_log
from tracing_2pc.store.kit import added
from tracing_2pc.store.log import schema
from tracing_2pc.testing import served

TEXTS = texts("kit")

pytestmark = pytest.mark.ci

ROLES = (
    *("orders", "ledger", "orders_viewer", "ledger_service", "ledger_viewer"),
    '"the-job"',
)
OWNERS, VIEWER, SERVICE, LOOKS = blocks(page("grants"), "sql")
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
        log.begin("orders", batch, Opening(**about))


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


@pytest.mark.parametrize("option", ["table", "into"])
def test_a_table_without_a_service_needs_no_more(postgres_database, execute, option):
    """Its owner writes; one who may SELECT looks; one that owns nothing recovers."""

    def of(role: str) -> RemoteParticipant:
        url = postgres_database.replace("postgres@", f"{role}@")
        return open_participant("orders", f"{url}&{option}=orders", None, PATIENT)

    first, second, third = (TransactionId("test", n, 1) for n in range(3))
    execute(OWNERS)
    job: Any = of("ledger")
    job.set_up()
    prepare_at(job, first)
    job.commit(commit_of(first, "orders"))
    prepare_at(job, second)
    execute(SERVICE)
    execute(LOOKS)
    looks = of("ledger_viewer")
    assert looks.show(first).state is ParticipantState.COMMITTED
    assert [one.transaction for one in looks.prepared().branches] == [second]
    assert looks.identity() == job.identity()
    assert looks.describe().unreachable is None
    with pytest.raises(ParticipantUnavailableError, match="GRANT"):
        looks.commit(commit_of(second, "orders"))
    recovers = of("ledger_service")
    if option == "into":  # by the role that has prepared it, and by no other
        with pytest.raises(ParticipantUnavailableError):
            recovers.commit(commit_of(second, "orders"))
        recovers = job
    recovers.commit(commit_of(second, "orders"))
    writes = of("ledger_service")
    assert prepare_at(writes, third) is Vote.COMMIT
    writes.commit(commit_of(third, "orders"))
    states = [looks.show(one).state for one in (first, second, third)]
    assert states == [ParticipantState.COMMITTED] * 3
    for one in (job, looks, recovers, writes):
        one._resource().close()  # type: ignore[attr-defined]


def test_a_role_that_owns_nothing_works_without_a_new_column(
    postgres_database, execute, monkeypatch, capsys
):
    """An earlier release has made log and journal: `check` shows the SQL for the owner,
    and after it all is well."""

    def of(role: str) -> str:
        return postgres_database.replace("postgres@", f"{role}@")

    def with_a_note(tables: Tables, *args: str) -> None:
        make_tables(tables, *args)
        tables.branch.append_column(added("0.2.0", "note", sa.Text()))
        tables.grows = True

    execute(OWNERS)
    begin(of("orders"), 0)
    owner = KINDS["TaggedRows"](of("ledger"))
    keep(owner, "orders.0.1", OTHER)
    close(owner)
    execute(VIEWER)
    execute(SERVICE)
    write = "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA orders"
    execute(f"GRANT {write} TO orders_viewer")
    execute("ALTER TABLE orders.tpc_transaction DROP COLUMN detail")
    new = schema.transaction.c.detail.info
    monkeypatch.setitem(new, *added("0.2.0", "detail", sa.Text()).info.popitem())
    monkeypatch.setattr(schema.LOG, "grows", True)
    make_tables = Tables.__init__
    monkeypatch.setattr(Tables, "__init__", with_a_note)
    begin(of("orders_viewer"), 0)
    world = KINDS["TaggedRows"](of("ledger_service"))
    keep(world, "orders.1.1", ONE)
    monkeypatch.setenv("TPC_LOG", of("orders_viewer"))
    with served(world.resource, "participant") as url:
        monkeypatch.setenv("TPC_PARTICIPANTS", f"participant={url}")
        monkeypatch.setenv("TPC_TOKEN", "not-looked-at")
        assert main(["check"]) == 1
        lines = " ".join(capsys.readouterr().out.split())
        for role, table, column in (
            ("orders", "tpc_transaction", "detail"),
            ("ledger", "orders_tpc_branch", "note"),
        ):
            alter = f"ALTER TABLE {table} ADD COLUMN {column} TEXT"
            assert TEXTS["lacks"].format(alter=alter) in lines
            execute(f"SET ROLE {role}; SET search_path = {role}; {alter}; RESET ROLE")
        assert main(["check"]) == 0
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
