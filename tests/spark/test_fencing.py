"""Real Spark, real services: a driver that slept through its replacement obeys."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stream_world import Kept
from support.telemetry import PATH
from support.waiting import AT_LAST, until

from participants.processes import Process
from tracing_2pc.core.states import TransactionState

BATCHES = 3
PAUSED = "crash.1.1"
pytestmark = pytest.mark.spark


class Left(Kept):
    """What both drivers have left."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log_url = folder, f"sqlite:///{folder / 'log.db'}"


def test_a_driver_that_sleeps_through_its_replacement_obeys(
    tmp_path: Path, command: list[str]
) -> None:
    """Paused with every vote in, replaced, woken: told abort, it ends, nothing twice.

    Spark lets two queries run on one checkpoint, so it is the log that holds them
    apart: the woken one asks it, and ends before Spark's own check, which comes when
    it commits a batch that is committed already. The last line that it prints says so.
    """
    left = Left(tmp_path)
    older, newer = (
        Process(name, command, tmp_path / f"{name}.log", {"PYTHONPATH": PATH})
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
        assert left.state(PAUSED) is TransactionState.ACTIVE
        newer.start(OWN_CHECKPOINTS="1")
        assert newer.wait(AT_LAST) == 0, newer.tail()
        assert left.state(PAUSED) is TransactionState.ABORTED
        left.assert_exactly_once(BATCHES)

        os.killpg(older.pid, signal.SIGCONT)
        assert older.wait(AT_LAST) == 1, older.tail()
        *_, last = filter(None, older.log.read_text().splitlines())
        assert f"{PAUSED} was decided abort before its votes were in: a newer" in last
        left.assert_exactly_once(BATCHES)
        assert left.state("crash.1.2") is TransactionState.COMMITTED
        assert left.state("crash.1.3") is None


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
