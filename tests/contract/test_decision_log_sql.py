"""What a decision log in a database promises beyond the common contract."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import resource
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.log_tables import (
    copy_database,
    decide,
    fill,
    lock_waits,
    locked,
    stay,
)
from support.texts import texts
from support.waiting import AT_LAST, AT_ONCE, PATIENT, UNDELAYED, until

from tracing_2pc.cli import main
from tracing_2pc.core.errors import (
    AbortedError,
    ConfigurationError,
    ContractError,
    DecisionLogError,
    DecisionUnknownError,
)
from tracing_2pc.core.model import (
    BranchId,
    JournalAt,
    Receipt,
    TransactionId,
    TransactionRecord,
    branch_receipts,
)
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision, TransactionState, Vote
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.store.engines.database import Database
from tracing_2pc.store.log import database, records, schema

TEXTS = texts("log")

ABORT, COMMIT = Decision.ABORT, Decision.COMMIT
ENDED = int(AT_LAST * 1_000)
LOST = "connection lost"
NOW = 1_700_000_000.0


@pytest.fixture
def base(url) -> Iterator[Database]:
    """The connections of an empty log."""
    opened = database.connect(url, lock_wait=PATIENT)
    SqlDecisionLog(opened).create()
    yield opened
    opened.close()


@pytest.fixture
def log(base) -> SqlDecisionLog:
    """A log over `base`, whose clock stands still."""
    return SqlDecisionLog(base, now=lambda: NOW)


def begin(
    log: SqlDecisionLog, batch: int = 0, run: str = "r", **other: Any
) -> TransactionRecord:
    return log.begin(
        "orders",
        batch,
        Opening(
            run=run,
            query=None,
            participants=["ledger", "notifier"],
            carrier={"traceparent": "00-aa-bb-01"},
            **other,
        ),
    ).record


def receipts() -> list[Receipt]:
    votes = {"ledger": Vote.COMMIT, "notifier": Vote.COMMIT}
    return [
        receipt
        for p in range(2)
        for receipt in branch_receipts(BranchId(p, 7), 3, "digest", votes, {"p": p})
    ]


def commit(log: SqlDecisionLog, batch: int = 0) -> TransactionRecord:
    return decide(log, begin(log, batch), COMMIT, receipts())


def forget(log: SqlDecisionLog) -> int:
    return log.forget("orders", finished_before=NOW + 1, limit=9)


def finish(log: SqlDecisionLog, record: TransactionRecord) -> None:
    for participant in record.participants:
        log.acknowledge(record.id, participant)
    log.finish(record.id)


def write(base: Database, statement: str) -> int:
    with base.write() as connection:
        return int(connection.exec_driver_sql(statement).rowcount)


def ask(base: Database, statement: str) -> list[tuple[Any, ...]]:
    with base.read() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(statement)]


# --- durability ----------------------------------------------------------------------


@pytest.fixture
def flushed(base) -> Callable[[Callable[[], object]], list[bool]]:
    """Say, for each commit that a call makes, whether it waits for the disk."""
    seen: list[bool] = []

    def look(connection: sa.Connection) -> None:
        asked = "SHOW synchronous_commit"
        if connection.dialect.name == "sqlite":
            asked = "PRAGMA synchronous"
        value = connection.exec_driver_sql(asked).scalar()
        assert value in {1, 2, "on", "off"}
        seen.append(value in {2, "on"})

    one_per_pool = {e.pool: e for e in (base.relaxed_engine, base.engine)}
    for engine in one_per_pool.values():
        sa.event.listen(engine, "commit", look)

    def watch(call: Callable[[], object]) -> list[bool]:
        seen.clear()
        call()
        return list(seen)

    return watch


def test_begin_and_decide_wait_for_the_disk(log, flushed):
    """Each of them is one flushed commit; acknowledging and finishing need none."""
    record = TransactionId("orders", 0, 1)
    assert flushed(lambda: begin(log)) == [True]
    assert flushed(lambda: log.decide(record, COMMIT, receipts())) == [True]
    assert flushed(lambda: log.postpone(record, "ledger", "why", NOW)) == [False]
    assert flushed(lambda: log.acknowledge(record, "ledger")) == [False]
    assert flushed(lambda: log.acknowledge(record, "notifier")) == [False]
    assert flushed(lambda: log.finish(record)) == [False]
    assert flushed(log.unfinished) == []


def test_to_forget_waits_for_no_disk(log, flushed):
    """With nothing to forget nothing is done; the next begin flushes what was."""
    finish(log, commit(log))
    assert flushed(lambda: forget(log)) == []
    begin(log, 1)
    assert flushed(lambda: forget(log)) == [False]
    assert flushed(lambda: forget(log)) == []


def test_participants_are_told_forgotten_through_that_is_durable(log, flushed):
    """What was forgotten is in no record, before a begin has flushed that.

    Of a begin, too, that only finds what is there already.
    """
    finish(log, commit(log))
    begin(log, 1)
    assert forget(log) == 1
    assert [record.forgotten_through for record in log.unfinished()] == [None]
    found: list[int | None] = []
    assert flushed(lambda: found.append(begin(log, 1).forgotten_through)) == [True]
    found += [record.forgotten_through for record in log.unfinished()]
    assert found == [0, 0]


def test_what_a_person_does_waits_for_the_disk(log, flushed):
    """Quarantine, resume, conclude, abort and init are kept for ever."""
    record = commit(log).id
    who = {"who": "ada", "why": "looked"}
    assert flushed(lambda: log.quarantine(record, "why")) == [True]
    assert flushed(lambda: log.resume(record, COMMIT, **who)) == [True]
    log.quarantine(record, "why")
    assert flushed(lambda: log.conclude(record, "mixed", **who)) == [True]
    other = begin(log, 1).id
    assert flushed(lambda: log.abort(other, **who)) == [True]
    assert flushed(lambda: log.initialise("other", 3)) == [True]
    adopted = TransactionId("third", 3, 1)
    by = {"journals": {}, "who": "me", "why": ""}
    assert flushed(lambda: log.adopt(adopted, "q", ("a",), (), **by)) == [True]


def test_a_role_that_does_not_flush_is_overruled(postgres_database):
    """`synchronous_commit = off` as the database's default loses no decision."""
    base = database.connect(postgres_database)
    name = base.url.database
    write(base, f"ALTER DATABASE {name} SET synchronous_commit = off")
    base.close()
    with base.write() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    base.close()


def test_a_server_that_does_not_flush_is_refused(postgres_database):
    """With fsync off no decision would be durable: not a place for a log."""
    import psycopg

    with psycopg.connect(postgres_database, autocommit=True) as server:
        server.execute("ALTER SYSTEM SET fsync = off")
        server.execute("SELECT pg_reload_conf()")
        try:
            until(lambda: server.execute("SHOW fsync").fetchone() == ("off",))
            with pytest.raises(ConfigurationError, match=TEXTS["no flushes"]):
                open_log(postgres_database)
        finally:
            server.execute("ALTER SYSTEM RESET fsync")
            server.execute("SELECT pg_reload_conf()")
            until(lambda: server.execute("SHOW fsync").fetchone() == ("on",))


# --- what is refused -----------------------------------------------------------------

EDITS = {
    "state": "UPDATE tpc_transaction SET state = 'aborting'",
    "no state": "UPDATE tpc_transaction SET state = 'nonsense'",
    "decision": "UPDATE tpc_transaction SET decision = 'abort'",
    "no decision": "UPDATE tpc_transaction SET decision = NULL",
    "run": "UPDATE tpc_transaction SET run = 'other'",
    "attempt": "UPDATE tpc_transaction SET attempt = 2",
    "checksum": "UPDATE tpc_transaction SET checksum = 'x'",
    "carrier": "UPDATE tpc_transaction SET carrier = '{\"torn'",
    "journal": 'UPDATE tpc_transaction SET journals = \'{"ledger":["x",""]}\'',
    "launch": "UPDATE tpc_transaction SET launch_namespace = 'x'",
    "torn journals": 'UPDATE tpc_transaction SET journals = \'{"ledger":["\'',
    "participant": "UPDATE tpc_delivery SET participant = 'x' WHERE position = 0",
    "no participant": "DELETE FROM tpc_delivery WHERE position = 1",
    "acknowledged": "UPDATE tpc_delivery SET acknowledged = 0 WHERE position = 0",
    "never decided": "UPDATE tpc_transaction SET decided = NULL",
    "rows": "UPDATE tpc_receipt SET rows = 4 WHERE position = 1",
    "digest": "UPDATE tpc_receipt SET digest = 'x' WHERE position = 0",
    "handle": "UPDATE tpc_receipt SET handle = '{\"p\":2}' WHERE position = 0",
    "vote": "UPDATE tpc_receipt SET vote = 'read_only' WHERE position = 0",
    "no receipt": "DELETE FROM tpc_receipt WHERE position = 1",
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.ci)], indirect=True
)
def test_an_edited_record_is_refused(log, base, edit):
    """Torn or edited, whatever the protocol reads: never guessed, by no operation."""
    record = commit(log)
    assert write(base, edit) > 0
    match = TEXTS["an edited record"].format(id="orders.0.1")
    for operation in (
        lambda: log.read(record.id),
        lambda: log.unfinished(),
        lambda: log.decide(record.id, ABORT),
        lambda: log.quarantine(record.id, "why"),
    ):
        with pytest.raises(DecisionLogError, match=match) as refused:
            operation()
        assert refused.value.transaction_id == "orders.0.1"


def test_journals_are_on_record(log, base):
    """From begin to the end; of the address only what a person reads depends on it."""
    journals = {"ledger": JournalAt("a" * 32, "https://ledger")}
    record = begin(log, journals=journals)
    assert (record.journals, log.read(record.id)) == (journals, record)
    write(base, "UPDATE tpc_transaction SET journals = replace(journals, 'https', 'x')")
    moved = {"ledger": JournalAt("a" * 32, "x://ledger")}
    assert log.read(record.id).journals == moved
    decided = decide(log, record, COMMIT, receipts())
    log.acknowledge_last(decided, dict.fromkeys(record.participants))
    finished = log.read(record.id)
    assert (decided.journals, finished.journals) == (moved, moved)
    assert finished.finished is not None


def test_begin_refuses_an_edited_record(log, base):
    """It neither replays nor supersedes what it cannot trust; nothing changes."""
    begin(log)
    write(base, EDITS["checksum"])
    edited = TEXTS["an edited record"].format(id="orders.0.1")
    with pytest.raises(DecisionLogError, match=edited):
        begin(log, run="other")
    found = ask(base, "SELECT id, state FROM tpc_transaction")
    assert found == [("orders.0.1", "active")]
    assert ask(base, "SELECT run FROM tpc_run") == [("r",)]


def test_a_newer_schema_is_refused(url, base):
    """A log of a later release is not touched by this one."""
    newer = schema.VERSION + 1
    write(base, f"UPDATE tpc_schema SET version = {newer}")
    refused = TEXTS["a newer schema"].format(version=newer)
    with pytest.raises(ConfigurationError, match=refused):
        open_log(url)


def test_a_second_commit_does_not_fit_into_the_table(log, base):
    """Whatever the code above does wrong, a batch has one commit (rule 18)."""
    begin(log, run="a")
    begin(log, run="b")
    both = "UPDATE tpc_transaction SET decision = 'commit' WHERE attempt = "
    write(base, both + "1")
    with pytest.raises(DecisionLogError, match=r"(?i)unique"):
        write(base, both + "2")


# --- second guards -------------------------------------------------------------------


def sneak_in(
    base: Database, record: TransactionRecord, attempt: int
) -> TransactionRecord:
    """Open an attempt as a begin would that had not looked at the others."""
    identity = TransactionId(record.id.application, record.id.batch, attempt)
    sneaked = dataclasses.replace(
        record,
        id=identity,
        participants=("ledger",),
        state=TransactionState.ACTIVE,
        decision=None,
        receipts=(),
        decided=None,
    )
    with base.write() as connection:
        records.Change(connection, base.clock, lambda: NOW).add(sneaked)
    return sneaked


def test_an_attempt_with_a_newer_one_cannot_commit(log, base):
    """Even if begin had not aborted it: only the newest may (rule 14)."""
    record = begin(log)
    sneak_in(base, record, 2)
    told = decide(log, record, COMMIT, receipts())
    assert (told.decision, told.receipts) == (ABORT, ())
    assert log.read(record.id) == told


def test_a_committed_batch_cannot_commit_again(log, base):
    """Even if begin had not noticed the replay: once per batch (rule 18)."""
    second = sneak_in(base, commit(log), 2)
    votes = [r for r in receipts() if r.participant in second.participants]
    told = decide(log, second, COMMIT, votes)
    assert told.decision is ABORT


def test_nothing_is_decided_at_forgotten_through(log, base):
    """Even if a record were left there: participants have forgotten the batch."""
    record = begin(log)
    write(base, "UPDATE tpc_application SET durable_forgotten_through = 0")
    assert log.decide(record.id, COMMIT, receipts()) is None
    write(base, "UPDATE tpc_application SET durable_forgotten_through = NULL")
    assert log.read(record.id) == record


# --- faults --------------------------------------------------------------------------


def test_an_unreachable_log_says_so_without_its_password(monkeypatch):
    """Neither message nor traceback shows it, though the URL holds it."""
    secret = "s3cret-word"
    monkeypatch.setenv("LOG_URL", f"postgresql://tpc:{secret}@127.0.0.1:1/decisions")
    with pytest.raises(DecisionLogError, match="refused") as refused:
        open_log("env:LOG_URL")
    assert "tpc:***@127.0.0.1:1" in str(refused.value)
    assert secret not in "".join(traceback.format_exception(refused.value))
    assert secret not in repr(SqlDecisionLog(database.connect("env:LOG_URL")))


def test_an_error_shows_no_statement_and_no_values(log, base):
    """What a record holds is nobody's business who reads the driver's log."""
    record = begin(log)
    write(base, "DROP TABLE tpc_receipt")
    with pytest.raises(DecisionLogError, match="tpc_receipt") as failed:
        log.decide(record.id, COMMIT, receipts())
    text = "".join(traceback.format_exception(failed.value))
    assert "SELECT" not in text
    assert "orders.0.1" not in text


def test_a_lost_connection_before_the_commit_decides_nothing(log, base):
    """`DecisionLogError`, not unknown: it cannot have been written."""
    record = begin(log)

    def die(connection: sa.Connection, *_: object) -> None:
        raise sa.exc.OperationalError("", {}, Exception(LOST))

    sa.event.listen(base.engine, "before_cursor_execute", die)
    with pytest.raises(DecisionLogError, match=LOST):
        log.decide(record.id, COMMIT, receipts())
    sa.event.remove(base.engine, "before_cursor_execute", die)
    assert log.read(record.id) == record
    assert commit(log).decision is COMMIT


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("arrives", [False, True], ids=["request", "answer"])
def test_a_connection_lost_at_the_commit_is_unknown(base, log, arrives):
    """Request or answer was lost: nobody knows, until the log is asked again."""
    record = begin(log)

    def cut(connection: sa.Connection) -> None:
        mine = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        if arrives:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("BEGIN")  # for the driver to end
        with base.read() as other:
            other.exec_driver_sql(f"SELECT pg_terminate_backend({mine}, {ENDED})")

    sa.event.listen(base.engine, "commit", cut)
    unknown = TEXTS["ask it again"].format(id="orders.0.1")
    with pytest.raises(DecisionUnknownError, match=unknown):
        log.decide(record.id, COMMIT, receipts())
    sa.event.remove(base.engine, "commit", cut)
    told = decide(log, record, ABORT)
    assert told.decision is (COMMIT if arrives else ABORT)


def test_a_full_disk_at_the_commit_is_loud(tmp_path):
    """SQLite cannot append the decision: unknown, then clean once there is space."""
    path = tmp_path / "decisions.db"
    log = open_log(f"sqlite:///{path}")
    record = begin(log)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    full = path.with_name("decisions.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (full, hard))
    try:
        with pytest.raises(DecisionUnknownError, match=r"orders\.0\.1"):
            log.decide(record.id, COMMIT, receipts())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.read(record.id) == record
    assert commit(log).decision is COMMIT
    log.close()


def test_a_file_that_is_no_database_is_refused(tmp_path):
    """Garbage instead of a log: an error, and the file stays as it is."""
    path = tmp_path / "decisions.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(DecisionLogError, match=TEXTS["no database"]):
        open_log(f"sqlite:///{path}")
    assert path.read_bytes() == b"not a database at all" * 100


@pytest.fixture
def path(tmp_path) -> Path:
    """Where a log of SQLite is."""
    return tmp_path / "log" / "decisions.db"


def removed(path: Path) -> None:
    """Delete a log, with what SQLite keeps beside it."""
    for name in ("", "-wal", "-shm"):
        path.with_name(path.name + name).unlink()


def moved(path: Path) -> None:
    """Put a file in the place of a log's folder."""
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.touch()


@pytest.mark.parametrize("gone", [removed, moved])
def test_nothing_is_decided_in_a_file_that_is_gone(path, gone):
    """The open file would take the decision, and keep it from everybody else."""
    with contextlib.closing(open_log(f"sqlite:///{path}")) as log:
        record = begin(log)
        gone(path)
        for _ in range(2):
            with pytest.raises(DecisionLogError, match=TEXTS["the file is gone"]):
                log.decide(record.id, COMMIT, receipts())
            with pytest.raises(DecisionLogError, match=TEXTS["the file is gone"]):
                log.read(record.id)
    assert not path.exists()


def test_a_file_in_the_place_of_the_log_is_the_log(path):
    """Whoever has it open decides where others read: never one thing in each."""
    copy = path.with_name("copy.db")
    with contextlib.closing(open_log(f"sqlite:///{path}")) as log:
        record = begin(log)
        copy_database(path, copy)
        removed(path)
        copy.rename(path)
        assert commit(log).decision is COMMIT
        with contextlib.closing(open_log(f"sqlite:///{path}")) as other:
            told = other.decide(record.id, ABORT)
    assert told is not None
    assert told.decision is COMMIT


def test_a_frozen_driver_does_not_hold_the_others_for_ever(url, base, log):
    """Whoever waits for its lock gives up with an error, having decided nothing."""
    record = begin(log)
    hasty = database.connect(url, lock_wait=AT_ONCE)
    with contextlib.closing(SqlDecisionLog(hasty)) as other:
        with locked(base, "orders"):
            with pytest.raises(DecisionLogError, match="lock"):
                other.decide(record.id, COMMIT, receipts())
            assert other.read(record.id) == record  # to read needs no lock
        assert commit(other).decision is COMMIT


def test_a_server_whose_machine_is_gone_is_not_waited_for(postgres_database):
    """It ends no connection: the kernel gives up, and not after its two hours."""
    asked = f"{postgres_database}&keepalives_count=2"
    for url, count in ((postgres_database, "4"), (asked, "2")):
        base = database.connect(url)
        with base.read() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            told = driver.info.get_parameters()
        base.close()
        wanted = {"keepalives_idle": "10", "keepalives_interval": "5"}
        wanted |= {"keepalives_count": count, "tcp_user_timeout": "30000"}
        assert {name: told.get(name) for name in wanted} == wanted


def test_a_clock_ahead_of_postgresql_expires_nothing(postgres_database):
    """The database's clock judges: no machine's own, neither that of who began."""
    about = {"run": "r", "query": None, "participants": ["a"], "carrier": {}}
    for name, ahead in (("behind", -(10.0**6)), ("ahead", 10.0**6)):
        opened = open_log(postgres_database, now=lambda by=ahead: time.time() + by)
        with contextlib.closing(opened) as log:
            record = log.begin(name, 0, Opening(**about, timeout=PATIENT)).record  # type: ignore[arg-type]
            unfinished = log.unfinished()
            assert [log.expire(one.id) for one in unfinished] == unfinished
            assert log.clock() == pytest.approx(time.time(), abs=UNDELAYED)
        assert record.deadline == pytest.approx(time.time() + PATIENT, abs=UNDELAYED)


def test_every_change_locks_its_application_first(postgres_database):
    """Before it looks at anything: what it decides upon cannot change meanwhile."""
    base = database.connect(postgres_database)
    log = SqlDecisionLog(base, now=lambda: NOW)
    log.create()
    record = commit(log)
    seen: list[str] = []

    def note(by: sa.Connection, _: object, statement: str, *__: object) -> None:
        begins = statement.startswith("BEGIN")
        only_reads = by.engine in (base.read_engine, base.look_engine)
        if not only_reads and not begins:
            seen.append(statement)

    sa.event.listen(base.engine, "before_cursor_execute", note)
    for call in (
        lambda: log.quarantine(record.id, "why"),
        lambda: log.resume(record.id, COMMIT, who="ada", why="looked"),
        lambda: finish(log, record),
        lambda: begin(log, 1),
        lambda: log.decide(TransactionId("orders", 1, 1), ABORT),
        lambda: log.abort(begin(log, 2).id, who="ada", why="looked"),
        lambda: forget(log),
    ):
        seen.clear()
        call()
        looked = [s for s in seen if not s.startswith("UPDATE tpc_delivery")]
        assert looked[0].startswith("SELECT tpc_application.name")
        assert looked[0].endswith("FOR UPDATE")
        assert looked[-1].startswith(("UPDATE", "INSERT", "DELETE", "WITH"))
    sa.event.remove(base.engine, "before_cursor_execute", note)
    base.close()


CALLS: dict[str, Callable[[SqlDecisionLog], Any]] = {
    "begin": lambda log: begin(log, 2),
    "decide": lambda log: log.decide(TransactionId("orders", 1, 1), ABORT),
    "forget": forget,
}


@pytest.mark.parametrize("call", CALLS)
def test_begin_decide_and_forget_come_one_after_another(log, base, call):
    """While one of them is under way, no other of the application looks at anything."""
    finish(log, commit(log))
    begin(log, 1)
    done: list[Any] = []
    other = threading.Thread(target=lambda: done.append(CALLS[call](log)))
    with lock_waits(base) as waits:
        with locked(base, "orders"):
            other.start()
            until(lambda: done or waits())
            assert not done
        other.join(AT_LAST)
    assert len(done) == 1


@pytest.mark.parametrize(
    ("change", "state"), [("quarantine", "quarantined"), ("give_up", "committed")]
)
def test_the_last_acknowledgement_waits_for_a_change_that_has_looked(
    log, base, monkeypatch, change, state
):
    """What one process has finished no other opens again, by what it had read."""
    record = commit(log)
    log.acknowledge(record.id, "ledger")
    answered = threading.Event()

    def finish_it() -> None:
        with contextlib.suppress(ContractError):  # it is quarantined
            log.acknowledge_last(record, {"notifier": None})
        answered.set()

    finishing = threading.Thread(target=finish_it)
    store = records.Change.write

    def store_late(self: records.Change, *about: Any, **more: Any) -> None:
        if not finishing.ident:
            stay(self.connection)
            finishing.start()
            until(lambda: answered.is_set() or waits())
            assert not answered.is_set()
        store(self, *about, **more)

    monkeypatch.setattr(records.Change, "write", store_late)
    with lock_waits(base) as waits:
        if change == "quarantine":
            log.quarantine(record.id, "it lost what it had")
        else:
            log.give_up(record.id, "notifier", who="ada", why="gone")
        finishing.join(AT_LAST)
    current = log.read(record.id)
    assert current is not None
    assert current.state == state


# --- what is in the tables -----------------------------------------------------------


def test_what_a_person_did_is_audited(log, base):
    """Who, what, why, before and after, in the same transaction as the change."""
    record = commit(log)
    log.quarantine(record.id, "ledger lost it")
    log.resume(record.id, COMMIT, who="ada", why="restored")
    log.quarantine(record.id, "again")
    log.conclude(record.id, "hazard", who="bob", why="gone")
    log.initialise("other", 3, who="eve")
    log.abort(begin(log, 1).id, who="dan", why="no driver")
    adopted = TransactionId("third", 4, 2)
    by = {"journals": {}, "who": "fay", "why": "the disk is gone"}
    log.adopt(adopted, "q", (), (), **by)
    by |= {"who": "gus", "why": "it too"}
    log.adopt(TransactionId("fourth", 4, 0), "r", (), (), **by)
    show = (
        'SELECT at, who, verb, about, why, before, "after" FROM tpc_audit ORDER BY who'
    )
    init = "it ran before without this log"
    concluded = ("gone", "quarantined", "concluded hazard")
    assert ask(base, show) == [
        (NOW, "ada", "resume", "orders.0.1", "restored", "quarantined", "committing"),
        (NOW, "bob", "conclude", "orders.0.1", *concluded),
        (NOW, "dan", "abort", "orders.1.1", "no driver", "active", "aborting"),
        (NOW, "eve", "init", "other", init, None, "from batch 3"),
        (NOW, "fay", "adopt", "third.4.2", "the disk is gone", None, "from batch 4"),
        (NOW, "gus", "adopt", "fourth", "it too", None, "from batch 4"),
    ]
    assert [entry.who for entry in log.audit(adopted)] == ["fay"]
    assert (log.application_of("q"), log.application_of("x")) == ("third", None)


def test_forget_leaves_nothing_behind(log, base):
    """Receipts and deliveries go with their transaction; runs and audit stay."""
    finish(log, commit(log))
    begin(log, 1)
    assert forget(log) == 1
    for table in ("tpc_delivery", "tpc_receipt"):
        left = ask(base, f"SELECT DISTINCT transaction_id FROM {table}")
        assert left in ([], [("orders.1.1",)])
    assert ask(base, "SELECT name, forgotten_through FROM tpc_application") == [
        ("orders", 0)
    ]
    assert ask(base, "SELECT run FROM tpc_run") == [("r",)]


def test_superseded_runs_are_kept_in_bounds(log, base):
    """A query that is started often fills no log; the newest thousand are kept.

    All of them while what they may still ask for has not been forgotten.
    """
    finish(log, commit(log))
    filler = (
        "INSERT INTO tpc_run (application, run, sequence, registered, batch) WITH"
        " RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 1500)"
        " SELECT 'orders', 'run-' || i, i, 1, 1 FROM n"
    )
    write(base, filler)
    for batch in (1, 2):
        begun = begin(log, batch, run="newest")
        finish(log, decide(log, begun, COMMIT, receipts()))
    begin(log, 3, run="newest")
    kept = []
    for limit in (1, 2):
        log.forget("orders", finished_before=NOW + 1, limit=limit)
        kept += ask(base, "SELECT COUNT(*), MAX(sequence) FROM tpc_run")
    assert kept == [(1501, 1501), (1001, 1501)]
    with pytest.raises(AbortedError, match=TEXTS["superseded"].format(run="newest")):
        begin(log, 3, run="run-1500")


def test_to_forget_costs_what_is_forgotten(tmp_path):
    """A slice of a hundred among a hundred thousand: no statement reads the others.

    Counted in steps of SQLite's machine; nothing is timed.
    """
    counted = []
    for total in (1_000, 50_000):
        base = database.connect(f"sqlite:///{tmp_path}/{total}.db")
        with contextlib.closing(SqlDecisionLog(base)) as log:
            log.create()
            commit(log, 0)
            fill(base, total, "committed", "commit")
            write(base, "DELETE FROM tpc_transaction WHERE batch = 0")
            forget = partial(log.forget, "orders", finished_before=NOW, limit=100)
            counted.append(steps(base, forget))
            assert log.forgotten_by_application() == {"orders": 100}
    small, large = counted
    assert large < 1.2 * small, counted


def steps(base: Database, call: Callable[[], object]) -> int:
    """Return how many hundreds of steps SQLite makes in a call."""
    made: list[int] = []

    def count(connection: Any, *_: object) -> None:
        connection.set_progress_handler(lambda: made.append(1), 100)

    base.close()
    for engine in (base.relaxed_engine, base.engine):
        sa.event.listen(engine.pool, "connect", count)
    call()
    return len(made)


# --- several processes ---------------------------------------------------------------


def drive(url: str, run: str) -> list[tuple[str, str]]:
    """Open a log that may not exist yet, and drive batch 0 as if alone."""
    log = open_log(url)
    told = []
    for _ in range(5):
        record = begin(log, run=run)
        decided = decide(log, record, COMMIT, receipts())
        told.append((str(decided.id), str(decided.decision)))
    log.close()
    return told


@pytest.mark.parametrize(
    "url", [pytest.param("sqlite", marks=pytest.mark.ci), "postgresql"], indirect=True
)
def test_processes_agree(url):
    """Drivers that start at once make one schema, and commit a batch once (rule 18)."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(3) as pool:
        results = [pool.apply_async(drive, (url, f"run-{n}")) for n in range(3)]
        told = [result for r in results for result in _outcome(r)]
        pool.close()
        pool.join()
    committed = {name for name, decision in told if decision == "commit"}
    assert len(committed) == 1
    log = open_log(url)
    found = {str(r.id): str(r.decision) for r in log.unfinished()}
    assert found.items() >= set(told)
    log.close()


FORKING = """
import os, sys
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.store.log import database

base = database.connect(sys.argv[1])
log = SqlDecisionLog(base)
log.create()
opening = Opening(run="r", query=None, participants=["a"], carrier={})
begun = log.begin("o", 0, opening).record
if not (child := os.fork()):
    if base.engine.pool.checkedin():
        os._exit(1)
    log.decide(begun.id, Decision.ABORT)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(log.read(begun.id).decision)
"""


def test_a_forked_process_has_connections_of_its_own(url):
    """One session for two processes would mix up their answers."""
    command = [sys.executable, "-c", FORKING, url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=AT_LAST)
    assert (ran.returncode, ran.stdout) == (0, "abort\n"), ran.stderr


def test_an_empty_database_may_be_opened_by_many_at_once(url):
    """One of them makes the schema; the others find it, and none of them fails."""
    start = threading.Barrier(6)

    def open_with_the_others() -> None:
        start.wait()
        open_log(url).close()

    with ThreadPoolExecutor(6) as pool:
        for opened in [pool.submit(open_with_the_others) for _ in range(6)]:
            opened.result()
    log = open_log(url)
    assert commit(log).decision is COMMIT
    log.close()


def test_opening_waits_for_another_that_opens(tmp_path):
    """SQLite itself would give up at once where two switch a new file to WAL."""
    other = sqlite3.connect(tmp_path / "d.db")
    other.executescript("CREATE TABLE t (x); BEGIN IMMEDIATE; INSERT INTO t VALUES (1)")
    tries: list[str] = []

    def note(statement: str) -> None:
        tries.append(statement)
        if tries.count("PRAGMA journal_mode = WAL") == 2:
            other.commit()

    def listen(connection: sqlite3.Connection, _: object) -> None:
        connection.set_trace_callback(note)

    sa.event.listen(sa.pool.Pool, "connect", listen)
    try:
        open_log(f"sqlite:///{tmp_path}/d.db").close()
    finally:
        sa.event.remove(sa.pool.Pool, "connect", listen)
    assert not other.in_transaction
    other.close()


def test_a_record_is_read_in_one_piece(url, log, base):
    """A decision that lands while it is read is seen whole or not at all."""
    record = begin(log)
    writer = open_log(url)

    def decide(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("SELECT"):
            writer.decide(record.id, COMMIT, receipts())

    sa.event.listen(base.read_engine, "after_cursor_execute", decide)
    assert log.read(record.id) == record
    sa.event.remove(base.read_engine, "after_cursor_execute", decide)
    assert log.read(record.id) == writer.read(record.id) != record
    writer.close()


def _outcome(result: Any) -> list[tuple[str, str]]:
    try:
        return list(result.get(AT_LAST))
    except AbortedError:
        return []  # superseded by another driver


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_text_is_kept_whatever_the_encoding_of_the_database(
    new_database, encoding, tmp_path, monkeypatch
):
    """`init` makes a log there; what the database cannot hold is a clear error."""
    monkeypatch.chdir(tmp_path)
    url = new_database(f"TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    assert main(["init", "--log", url]) == 0
    with contextlib.closing(open_log(url, must_exist=True)) as log:
        log.initialise("orders", 7)
        id_ = begin(log, 7).id
        log.sign("resolve", id_, who="Ada", why="größer", before="", after="")
        assert log.audit(id_)[-1].why == "größer"
        if encoding == "LATIN1":
            with pytest.raises(DecisionLogError, match="LATIN1"):
                log.sign("resolve", id_, who="Ada", why="→", before="", after="")
        strange_answers_go_on_record(log, id_)


def test_an_answer_with_strange_characters_goes_on_record(tmp_path):
    """In SQLite, too, which takes no half of a character that a file's name had."""
    with contextlib.closing(open_log(f"sqlite:///{tmp_path}/log.db")) as log:
        strange_answers_go_on_record(log, begin(log).id)


def strange_answers_go_on_record(log: SqlDecisionLog, id_: TransactionId) -> None:
    """What came from elsewhere is stored, escaped: else it would be tried for ever."""
    said = "a\0b \udce4 → €"
    log.decide(id_, Decision.ABORT)
    log.postpone(id_, "ledger", said, None)
    log.acknowledge(id_, "ledger", said)
    log.quarantine(id_, said)
    delivery = log.deliveries(id_)["ledger"]
    record = log.read(id_)
    assert record is not None
    for text in (delivery.error, delivery.untold, record.reason):
        assert text is not None
        assert text.startswith(r"a\x00b \udce4 ")
