"""The processes of a run are alone in their sessions, and none outlives it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.waiting import AT_LAST, until

from crash.deaths import Deaths, variables
from crash.processes import Life, Process, pipe, start_server
from tracing_2pc.core import failpoints

POINT = "driver.after_decide"


class Harness:
    """What starts processes that end with it."""

    def __init__(self, log: Path) -> None:
        start_server()
        self._log = log
        self.lifeline, self.held = pipe()

    def start(self, role: Callable[[], None], **environment: str) -> Process:
        return Process(Life(self._log, self.lifeline, environment), role)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    made = Harness(tmp_path / "log")
    yield made
    made.lifeline.close()
    made.held.close()


def sleeping() -> None:
    time.sleep(AT_LAST)


def reaching() -> None:
    failpoints.failpoint(POINT)


def test_a_failpoint_kills_its_own_process_only(
    harness: Harness, tmp_path: Path
) -> None:
    """Each process is a session and group of its own; ours lives on."""
    deaths = Deaths(tmp_path, "driver", [POINT])
    assert deaths.missing() == [POINT]
    process = harness.start(reaching, **deaths.next_life("driver"))
    assert process.wait(AT_LAST) == -signal.SIGKILL
    assert deaths.missing() == []
    assert deaths.next_life("driver") == {}


def test_a_process_that_takes_another_along_goes_not_one_step_further(
    harness: Harness, tmp_path: Path
) -> None:
    """A decision after the driver's death would be one that no test expects."""
    driver = harness.start(sleeping)
    until(lambda: os.getpgid(driver.pid) == driver.pid)
    armed = variables(POINT, tmp_path / "fired")
    armed["TPC_FAILPOINT_GROUP"] = str(driver.pid)
    assert harness.start(reaching, **armed).wait(AT_LAST) == -signal.SIGKILL
    assert driver.wait(AT_LAST) == -signal.SIGKILL


def test_a_process_ends_when_nobody_holds_its_lifeline(harness: Harness) -> None:
    """However its harness ended, and in a session of its own as it is."""
    process = harness.start(sleeping)
    assert process.ended() is None
    harness.held.close()
    assert process.wait(AT_LAST) == 3


def test_a_process_is_killed_by_its_id(harness: Harness) -> None:
    """Once is enough, and twice is no fault."""
    process = harness.start(sleeping)
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
