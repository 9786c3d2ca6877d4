"""Who changes an application waits for whoever does, before it looks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.log_tables import lock_waits, locked
from support.waiting import AT_LAST, PATIENT, until

from tracing_2pc.core.model import BranchId, TransactionId, branch_receipts
from tracing_2pc.core.states import Decision, Vote
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.store.engines.database import Database
from tracing_2pc.store.log import database

RECORD = TransactionId("orders", 0, 1)


@pytest.fixture(params=["sqlite", "postgresql"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """The connections of an empty log."""
    url = f"sqlite:///{tmp_path}/decisions.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_database")
    opened = database.connect(url, lock_wait=PATIENT)
    SqlDecisionLog(opened).create()
    yield opened
    opened.close()


def begin(log: SqlDecisionLog, batch: int = 0) -> Any:
    return log.begin(
        "orders", batch, run="r", query=None, participants=["a"], carrier={}
    )


def finish(log: SqlDecisionLog) -> None:
    receipts = branch_receipts(BranchId(0, 0), 1, "d", {"a": Vote.COMMIT})
    log.decide(RECORD, Decision.COMMIT, receipts)
    log.acknowledge(RECORD, "a")
    log.finish(RECORD)
    begin(log, 1)


CALLS: dict[str, Callable[[SqlDecisionLog], Any]] = {
    "begin": lambda log: begin(log, 2),
    "decide": lambda log: log.decide(TransactionId("orders", 1, 1), Decision.ABORT),
    "forget": lambda log: log.forget("orders", finished_before=2e9, limit=9),
}


@pytest.mark.parametrize("call", CALLS)
def test_begin_decide_and_forget_come_one_after_another(
    base: Database, call: str
) -> None:
    """While one of them is under way, no other of the application looks at anything."""
    log = SqlDecisionLog(base, now=lambda: 1e9)
    begin(log)
    finish(log)
    done: list[Any] = []
    other = threading.Thread(target=lambda: done.append(CALLS[call](log)))
    with lock_waits(base) as waits:
        with locked(base, "orders"):
            other.start()
            until(lambda: done or waits())
            assert not done
        other.join(AT_LAST)
    assert len(done) == 1
