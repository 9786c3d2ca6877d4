"""The processes of a run are alone in their sessions, and none outlives it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from support.waiting import AT_LAST, until

from crash.deaths import Deaths, variables
from crash.processes import Life, Process, pipe, start_server
from tracing_2pc.core import failpoints

POINT = "driver.after_decide"


@pytest.fixture
def lifeline() -> Iterator[tuple[Connection, Connection]]:
    start_server()
    ends = pipe()
    yield ends
    for end in ends:
        end.close()


def sleeping() -> None:
    time.sleep(AT_LAST)


def reaching() -> None:
    failpoints.failpoint(POINT)


def test_a_failpoint_kills_its_own_process_only(
    lifeline: tuple[Connection, Connection], tmp_path: Path
) -> None:
    """Each process is a session and group of its own; ours lives on."""
    deaths = Deaths(tmp_path, "driver", [POINT])
    assert deaths.missing() == [POINT]
    life = Life(tmp_path / "log", lifeline[0], deaths.next_life("driver"))
    assert Process(life, reaching).wait(AT_LAST) == -signal.SIGKILL
    assert deaths.missing() == []
    assert deaths.next_life("driver") == {}


def test_a_process_that_takes_another_along_goes_not_one_step_further(
    lifeline: tuple[Connection, Connection], tmp_path: Path
) -> None:
    """A decision after the driver's death would be one that no test expects."""
    driver = Process(Life(tmp_path / "log", lifeline[0], {}), sleeping)
    until(lambda: os.getpgid(driver.pid) == driver.pid)
    armed = variables(POINT, tmp_path / "fired")
    armed["TPC_FAILPOINT_GROUP"] = str(driver.pid)
    life = Life(tmp_path / "log", lifeline[0], armed)
    assert Process(life, reaching).wait(AT_LAST) == -signal.SIGKILL
    assert driver.wait(AT_LAST) == -signal.SIGKILL


def test_a_process_ends_when_nobody_holds_its_lifeline(
    lifeline: tuple[Connection, Connection], tmp_path: Path
) -> None:
    """However its harness ended, and in a session of its own as it is."""
    process = Process(Life(tmp_path / "log", lifeline[0], {}), sleeping)
    assert process.ended() is None
    lifeline[1].close()
    assert process.wait(AT_LAST) == 3


def test_a_process_is_killed_by_its_id(
    lifeline: tuple[Connection, Connection], tmp_path: Path
) -> None:
    """Once is enough, and twice is no fault."""
    process = Process(Life(tmp_path / "log", lifeline[0], {}), sleeping)
    process.kill()
    process.kill()
    assert process.ended() == -signal.SIGKILL


def test_a_process_is_armed_by_the_environment_that_it_has_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`arm` reads again what was read at import, before the fork."""
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
    monkeypatch.setenv("TPC_FAILPOINT", f"{POINT}:2")
    monkeypatch.setenv("TPC_FAILPOINT_FILE", str(tmp_path / "fired"))
    try:
        failpoints.arm()
        failpoints.failpoint(POINT)
        assert killed == []
        failpoints.failpoint(POINT)
        assert killed == [os.getpgrp()]
    finally:
        monkeypatch.delenv("TPC_FAILPOINT")
        failpoints.arm()
    (tmp_path / "fired").unlink()
    failpoints.failpoint(POINT)
    failpoints.failpoint(POINT)
    assert killed == [os.getpgrp()]
