"""A database that may not be written to for a while: a standby, a fail-over."""

from __future__ import annotations

import contextlib
import logging
from functools import partial

import psycopg
import pytest
from support.branches import ONE, OTHER
from support.kinds import KINDS, sqlite_url, tagged_rows
from support.participant import World, close, database_of, journal_of, no_sender
from support.postgres import drop, standby
from support.spark import serving
from support.texts import texts
from support.waiting import PATIENT

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.cli import main
from tracing_2pc.conformance import check_run
from tracing_2pc.core.errors import DecisionLogError, ParticipantUnavailableError
from tracing_2pc.core.model import BranchId, TransactionId
from tracing_2pc.core.ports import Opening, SystemClock
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.inspection.diagnosis import diagnose
from tracing_2pc.inspection.survey import survey_all
from tracing_2pc.outbox import Outbox
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.testing import run_one_batch

TEXTS = texts("contract")
FIRST, SECOND, T = "orders.0.1", "orders.1.1", "orders.2.1"
READ_ONLY = f"database is {TEXTS['read-only']}"
ASKED = ("/health/ready", "/transactions", f"/transactions/{FIRST}")


def begin(log: SqlDecisionLog, batch: int) -> str:
    about = {"run": "run", "query": "query", "participants": ["ledger"], "carrier": {}}
    return str(log.begin("orders", batch, Opening(**about)).record.id)


def refused(world: World, caplog: pytest.LogCaptureFixture) -> list[int]:
    """Ask for all that a service answers, once; return the statuses."""
    caplog.clear()
    asked = [world.client.get(path) for path in ASKED]
    asked.append(world.prepare("orders.3.1", OTHER, once=True))
    asked.append(world.abort("orders.4.1", once=True))
    asked.append(world.commit(T, ONE, once=True))
    with caplog.at_level(logging.WARNING):
        assert TEXTS["read-only"] in caplog.text
    return [answer.status_code for answer in asked]


def test_a_file_that_was_read_only_is_opened_anew(tmp_path):
    """SQLite would keep to it until the service is started again."""
    world = tagged_rows(sqlite_url(tmp_path))
    assert world.prepare(T).status_code == 200
    with database_of(world).engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
        connection.commit()
    assert world.commit(T, ONE, once=True).status_code == 503
    assert world.commit(T, ONE, once=True).status_code == 200
    close(world)


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS)
def test_sessions_that_may_not_write_are_left(
    postgres_database, kind, monkeypatch, caplog
):
    """A setting makes them so, and they keep it: new ones are opened when it ends."""
    monkeypatch.setattr(Outbox, "start", no_sender)
    world, log = KINDS[kind](postgres_database), open_log(postgres_database)
    assert world.prepare(T).status_code == 200
    with psycopg.connect(postgres_database, autocommit=True) as dba:
        alter = f"ALTER DATABASE {dba.info.dbname}"
        dba.execute(f"{alter} SET default_transaction_read_only = on")
        database_of(world).engine.dispose()
        log.close()
        assert set(refused(world, caplog)) == {503}
        with pytest.raises(DecisionLogError, match=TEXTS["read-only"]):
            begin(log, 0)
        dba.execute(f"{alter} RESET default_transaction_read_only")
    assert world.commit(T, ONE, once=True).status_code == 200
    assert world.client.get("/health/ready").status_code == 200
    assert world.visible() == ONE.rows
    assert begin(log, 0) == FIRST
    close(world)
    log.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_cause_reaches_who_asks(
    postgres_database, kind, tmp_path, monkeypatch, capsys
):
    """The job, `check` and `ls` are told what the service knows, and the cure of that.

    It is neither the token nor a database that is down.
    """
    monkeypatch.setattr(Outbox, "start", no_sender)
    monkeypatch.setenv("TPC_PAUSE", "100ms")
    monkeypatch.setenv("TPC_LOG", "sqlite:///decisions.db")
    monkeypatch.setenv("TPC_TOKEN", "a-token-of-an-operator")
    monkeypatch.chdir(tmp_path)
    world = KINDS[kind](postgres_database)
    assert world.prepare(T).status_code == 200
    with psycopg.connect(postgres_database, autocommit=True) as dba:
        alter = f"ALTER DATABASE {dba.info.dbname}"
        dba.execute(f"{alter} SET default_transaction_read_only = on")
        database_of(world).engine.dispose()
        with serving(world.app) as url:
            monkeypatch.setenv("TPC_PARTICIPANTS", f"ledger={url}")
            assert main(["init"]) == 0
            capsys.readouterr()
            participant = HttpParticipant("ledger", url, None, PATIENT)
            with pytest.raises(ParticipantUnavailableError, match=READ_ONLY):
                participant.abort_branch(
                    TransactionId.parse(T), BranchId(0, 1), ONE.digest
                )
            for command in ("check", "ls"):
                assert main([command]) == 1
                said = " ".join(capsys.readouterr().out.split())
                assert READ_ONLY in said
                assert "start its database" not in said
                assert "refused" not in said
        dba.execute(f"{alter} RESET default_transaction_read_only")
    close(world)


@pytest.mark.ci
def test_after_a_failover_work_goes_on_without_a_restart(
    new_database, tmp_path, monkeypatch, caplog, capsys
):
    """Nobody takes a standby's past for the truth. When it is promoted, all goes on."""
    address = tmp_path / "now"

    def moving() -> str:
        url = new_database()
        databases.append(url)
        where = url.partition("?host=")[2]
        if not address.is_symlink():
            address.symlink_to(where)
        return url.replace(where, str(address))

    databases: list[str] = []
    worlds = [kind(moving()) for kind in KINDS.values()]
    log_url = moving()
    log = open_log(log_url)
    with standby(databases[0]) as copy:
        for world in worlds:
            assert world.prepare(T).status_code == 200
        assert begin(log, 0) == FIRST
        address.unlink()
        address.symlink_to(copy.folder)  # as a name that now leads there
        for url in databases:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(_END_SESSIONS)
        for world in worlds:
            assert set(refused(world, caplog)) == {503}
        for ask in (log.applications, lambda: begin(log, 1)):
            with pytest.raises(DecisionLogError, match=TEXTS["read-only"]):
                ask()
        monkeypatch.setenv("TPC_LOG", log_url)
        monkeypatch.setenv("TPC_PAUSE", "100ms")
        assert main(["watch", "--once"]) == 1
        out = capsys.readouterr().out
        assert "unreadable log" in out
        assert TEXTS["read-only"] in out
        copy.promote()
        assert main(["watch", "--once"]) == 0
        for world in worlds:
            assert world.commit(T, ONE).status_code == 200
            assert world.client.get("/health/ready").status_code == 200
            assert world.visible() == ONE.rows
            close(world)
        assert begin(log, 1) == SECOND
        log.close()
    for url in databases:
        drop(url)


LEDGER, QUEUE, TABLE = "ledger", "notifier", "accounts"
NAMES = dict(zip((LEDGER, QUEUE, TABLE), KINDS, strict=True))
ROWS = [{"id": 1, "text": "x"}]


class AnHourLater(SystemClock):
    """By it nothing is young any more."""

    def now(self) -> float:
        return super().now() + 3600


@pytest.mark.parametrize(
    ("behind", "kind"),
    [
        pytest.param("before the votes", "lost", marks=pytest.mark.ci),
        pytest.param("before the commit", "orphaned", marks=pytest.mark.nightly),
    ],
)
def test_what_a_standby_that_was_promoted_lacks_is_found(
    new_database, tmp_path, monkeypatch, behind, kind
):
    """It followed asynchronously. What was acknowledged is gone, at each participant.

    The job goes on. `watch` finds it, and `check --deep` names it for each.
    """
    monkeypatch.setattr(Outbox, "start", no_sender)
    address = tmp_path / "now"
    databases = {name: new_database() for name in NAMES}
    where = databases[LEDGER].partition("?host=")[2]
    address.symlink_to(where)
    moving = {n: url.replace(where, str(address)) for n, url in databases.items()}
    log_url = f"sqlite:///{tmp_path}/log.db"
    with contextlib.ExitStack() as stack:
        worlds = {name: KINDS[of](moving[name]) for name, of in NAMES.items()}
        urls = {}
        for name, world in worlds.items():
            stack.callback(close, world)
            urls[name] = stack.enter_context(serving(world.app))
        sink = ParticipantSink(urls, token=None, timeout=PATIENT)
        log = stack.enter_context(contextlib.closing(open_log(log_url)))
        apply = partial(run_one_batch, sink, ROWS, log=log)
        apply(batch=0)
        copy = stack.enter_context(standby(databases[LEDGER]))
        decide = log.decide
        if behind == "before the votes":
            copy.stay_behind()
        else:
            behind_then = lambda *a, **k: (copy.stay_behind(), decide(*a, **k))[1]  # noqa: E731
            monkeypatch.setattr(log, "decide", behind_then)
        apply(batch=1)
        monkeypatch.setattr(log, "decide", decide)
        address.unlink()
        address.symlink_to(copy.folder)
        for url in databases.values():
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(_END_SESSIONS)
        copy.promote()
        apply(batch=2)
        for world in worlds.values():
            assert world.visible() == 2
            journal_of(world).clock = AnHourLater().now
        asked = {n: HttpParticipant(n, url, None, PATIENT) for n, url in urls.items()}
        evidence = survey_all(log, asked, Settings(), AnHourLater(), bool)
        (found,) = diagnose(evidence, Settings())
        told = str(found.about), str(found.kind), found.participants
        assert told == ("test.1.1", kind, tuple(NAMES))
        deep = check_run(log_url, list(moving.items()))
        assert {(one.transaction, one.participant) for one in deep} == {
            ("test.1.1", name) for name in NAMES
        }
    for url in databases.values():
        drop(url)


_END_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
