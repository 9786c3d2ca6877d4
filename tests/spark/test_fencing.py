"""Real Spark, real services: a driver that slept through its replacement obeys."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.spark import held, numbers_of
from support.waiting import AT_LAST, until

from participants.processes import Process
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.store import SqlDecisionLog, open_log

HERE = Path(__file__).parent
BATCHES = 3
PAUSED = "crash.1.1"
pytestmark = pytest.mark.spark


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqlDecisionLog]:
    with contextlib.closing(open_log(f"sqlite:///{tmp_path / 'log.db'}")) as log:
        yield log


def state(log: SqlDecisionLog, transaction: str) -> TransactionState | None:
    record = log.read(TransactionId.parse(transaction))
    return record and record.state


def test_a_driver_that_sleeps_through_its_replacement_obeys(
    tmp_path: Path, command: list[str], log: SqlDecisionLog
) -> None:
    """Paused with every vote in, replaced, woken: told abort, it ends, nothing twice.

    Spark lets two queries run on one checkpoint, so it is the log that holds them
    apart: the woken one asks it, and ends before Spark's own check, which comes when
    it commits a batch that is committed already. The last line that it prints says so.
    """
    path = os.pathsep.join(map(str, (HERE.parent, HERE.parents[1])))
    older, newer = (
        Process(name, command, tmp_path / f"{name}.log", {"PYTHONPATH": path})
        for name in ("older", "newer")
    )
    with killing(older, newer):
        older.start(
            OWN_CHECKPOINTS="1",
            TPC_FAILPOINT="driver.before_decide:2",
            TPC_FAILPOINT_FILE=str(tmp_path / "paused"),
            TPC_FAILPOINT_SIGNAL="STOP",
        )
        until(lambda: stopped(older))
        assert state(log, PAUSED) is TransactionState.ACTIVE
        newer.start(OWN_CHECKPOINTS="1")
        assert newer.wait(AT_LAST) == 0, newer.tail()
        assert state(log, PAUSED) is TransactionState.ABORTED
        assert_exactly_once(tmp_path, log)

        os.killpg(older.pid, signal.SIGCONT)
        assert older.wait(AT_LAST) == 1, older.tail()
        *_, last = filter(None, older.log.read_text().splitlines())
        assert f"{PAUSED} was decided abort before its votes were in: a newer" in last
        assert_exactly_once(tmp_path, log)
        assert state(log, "crash.1.2") is TransactionState.COMMITTED
        assert state(log, "crash.1.3") is None


def assert_exactly_once(folder: Path, log: SqlDecisionLog) -> None:
    """Each participant has every number once, and nothing is unfinished."""
    assert held(folder / "a.db") == numbers_of(BATCHES)
    assert held(folder / "b.db") == numbers_of(BATCHES)
    assert log.unfinished() == []


@contextlib.contextmanager
def killing(*processes: Process) -> Iterator[None]:
    """Kill them at the end: one that is paused would not hear a request to stop."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def stopped(process: Process) -> bool:
    """Say whether all of a driver's Python has stopped; raise if it has ended."""
    look = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
    found = os.waitid(os.P_PID, process.pid, look)
    assert found is None or found.si_code == os.CLD_STOPPED, process.tail()
    return found is not None
