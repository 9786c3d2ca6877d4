"""Behind a pooler: what a transaction of its own is enough for, and what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import psycopg
import pytest
from support.branches import ONE, TWIN
from support.kinds import KINDS
from support.log_tables import count_committed
from support.pooler import pgbouncer
from support.spark import serving
from support.texts import texts

from tracing_2pc.cli.check import lines
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import BranchId, branch_receipts
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision, Vote
from tracing_2pc.operations.check import check
from tracing_2pc.store import open_log

TEXTS = texts("kits")


@pytest.fixture
def behind(postgres_database) -> Iterator[Callable[[str], str]]:
    """Put a pooler of some mode before the database."""
    with contextlib.ExitStack() as stack:
        yield lambda mode: stack.enter_context(pgbouncer(postgres_database, mode))


def set_in_sessions(url: str) -> set[tuple[str, ...]]:
    """Say what those get who share the pooler: several sessions of its."""
    names = ("lock_timeout", "idle_in_transaction_session_timeout")
    asked = ", ".join(f"current_setting('{name}')" for name in names)
    sessions = [psycopg.connect(url) for _ in range(6)]
    found = {session.execute(f"SELECT {asked}").fetchone() for session in sessions}
    for session in sessions:
        session.close()
    return found  # type: ignore[return-value]


def test_a_log_needs_no_session_of_its_own(behind, postgres_database):
    """In transaction mode every decision waits for the disk, and nothing is left."""
    with psycopg.connect(postgres_database, autocommit=True) as person:
        name = person.info.dbname
        person.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    pooled = behind("transaction")
    logs = [open_log(pooled) for _ in range(3)]
    flushed = []
    for batch in range(12):
        log = logs[batch % 3]
        record = log.begin(
            "orders",
            batch,
            Opening(run="run", query=None, participants=["a"], carrier={}),
        ).record
        receipts = branch_receipts(BranchId(0, 0), 1, "digest", {"a": Vote.COMMIT})
        log.decide(record.id, Decision.COMMIT, receipts)
        log.acknowledge(record.id, "a")
        log.finish(record.id)
        with log._database.write() as connection:
            asked = connection.exec_driver_sql("SHOW synchronous_commit")
            flushed.append(asked.scalar())
    assert set(flushed) == {"on"}
    assert logs[0]._database.durability()["synchronous_commit"] == "on"
    assert count_committed(logs[0], "orders") == 12
    assert set_in_sessions(pooled) == {("0", "0")}
    for log in logs:
        log.close()


def test_votes_that_rest_on_sessions_are_refused_behind_a_pooler_of_transactions(
    behind,
):
    """PreparedTransactions says so at start, and leaves nothing."""
    pooled = behind("transaction")
    with pytest.raises(ConfigurationError, match=TEXTS["pool mode"]):
        KINDS["PreparedTransactions"](pooled)
    assert set_in_sessions(pooled) == {("0", "0")}
    with psycopg.connect(pooled) as person:
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        assert person.execute(locks).fetchone() == (0,)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("TaggedRows", "transaction"),
        pytest.param("TaggedRows", "session", marks=pytest.mark.ci),
        pytest.param("Outbox", "transaction", marks=pytest.mark.ci),
        ("PreparedTransactions", "session"),
    ],
)
def test_a_participant_behind_a_pooler(behind, monkeypatch, kind, mode):
    """It is as good as the server itself."""
    pooled = behind(mode)
    world, other = (KINDS[kind](pooled) for _ in range(2))
    for batch in range(8):
        assert world.prepare(f"orders.{batch}.1").status_code == 200
        assert other.prepare(f"orders.{batch}.1", TWIN).status_code == 200
        assert other.commit(f"orders.{batch}.1", ONE).status_code == 200
    with world.writing("orders.9.1") as upload:
        assert other.abort("orders.9.1").status_code == 200
        assert upload.finish().status_code == 409
    assert world.visible() == 8 * ONE.rows
    with serving(world.app) as url:
        monkeypatch.setenv("TPC_TOKEN", "none-is-asked-for-here")
        settings = Settings.load(participants={"ledger": url})
        warned = TEXTS["pool size"] in " ".join(
            "\n".join(lines(check(settings))).split()
        )
    assert warned == (mode == "transaction")
    for made in (world, other):
        made.resource.close()
