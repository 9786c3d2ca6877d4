"""Processes of a run: none outlives it; and what a machine lacks for one is named."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.programs import left_out
from support.waiting import AT_LAST, until

from crash.deaths import variables
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
def harness(tmp_path) -> Iterator[Harness]:
    made = Harness(tmp_path / "log")
    yield made
    made.lifeline.close()
    made.held.close()


def sleeping() -> None:
    time.sleep(AT_LAST)


def reaching() -> None:
    failpoints.failpoint(POINT)


def test_a_process_that_takes_another_along_goes_not_one_step_further(
    harness, tmp_path
):
    """A decision after the driver's death would be one that no test expects."""
    driver = harness.start(sleeping)
    until(lambda: os.getpgid(driver.pid) == driver.pid)
    armed = variables(POINT, tmp_path / "fired")
    armed["TPC_FAILPOINT_GROUP"] = str(driver.pid)
    assert harness.start(reaching, **armed).wait(AT_LAST) == -signal.SIGKILL
    assert driver.wait(AT_LAST) == -signal.SIGKILL


def test_a_process_ends_when_nobody_holds_its_lifeline(harness):
    """However its harness ended, and in a session of its own as it is."""
    process = harness.start(sleeping)
    assert process.ended() is None
    harness.held.close()
    assert process.wait(AT_LAST) == 3


@pytest.mark.parametrize(
    ("ci", "ends"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_a_developer_is_told_what_is_left_out_and_ci_leaves_nothing_out(
    monkeypatch, ci, ends
):
    monkeypatch.setenv("CI", ci)
    with pytest.raises(ends, match="there is no pgbouncer"):
        left_out("there is no pgbouncer")
