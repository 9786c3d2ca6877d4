"""What a driver of real Spark reports of itself, and what is left of one that ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.spark import write_numbers
from support.stream_world import World, failing_query
from support.telemetry import PATH
from support.waiting import AT_LAST, until

from tracing_2pc.core.errors import AbortedError, DecisionLogError
from tracing_2pc.core.log_reader import Presence
from tracing_2pc.core.ports import SystemClock
from tracing_2pc.inspection.jobs import UNSEEN, JobState, jobs_of
from tracing_2pc.spark import presence
from tracing_2pc.store import SqlDecisionLog, open_log

HERE = Path(__file__).parent
BROKEN = "CAST(raise_error('it is broken') AS BIGINT) AS value"
pytestmark = pytest.mark.spark


def newest(world: World) -> Presence | None:
    with world.log() as log:
        return log.presences()[-1] if log.presences() else None


def ended(world: World) -> Presence | None:
    last = newest(world)
    return last if last and last.ended is not None else None


def waiting(world: World, callback: Any) -> Any:
    """Start a query that waits for more."""
    writer = world.source().writeStream.foreachBatch(callback)
    return writer.option("checkpointLocation", str(world.folder / "ck")).start()


def test_a_driver_is_seen_while_its_query_waits_for_input(world, monkeypatch):
    """It reports though no batch comes; `stop()` is an end, and no failure."""
    monkeypatch.setattr(presence, "EVERY", 0.0)
    write_numbers(world.folder, range(1))
    query = waiting(world, world.callback())
    first = until(lambda: newest(world))
    until(lambda: (now := newest(world)) and now.seen > first.seen)
    assert (first.application, first.process) == ("test", os.getpid())
    assert first.run == str(query.runId)
    assert first.ended is None
    query.stop()
    assert until(lambda: ended(world)).error is None


def test_a_query_that_has_read_all_there_was_is_stopped(world):
    """With `availableNow` the end is no failure."""
    write_numbers(world.folder, range(2))
    world.run(world.callback())
    assert not until(lambda: ended(world)).failed


def test_a_batch_that_ends_the_query_says_why(world):
    """Participant, reason and batch, as in the job's last line."""
    write_numbers(world.folder, range(1))
    with failing_query("it is broken"):
        world.run(world.callback(), world.source().selectExpr(BROKEN))
    last = until(lambda: ended(world))
    assert last.error.startswith("batch 0: ")
    assert "it is broken" in last.error


def test_what_fails_between_two_batches_is_reported(world):
    """Spark cannot store the next offsets; the callback is told nothing of it."""
    write_numbers(world.folder, range(1))
    query = waiting(world, world.callback())
    query.processAllAvailable()
    offsets = world.folder / "ck" / "offsets"
    shutil.rmtree(offsets)
    offsets.write_text("no folder")
    write_numbers(world.folder, range(1, 2))
    with failing_query("offsets"):
        query.awaitTermination()
    assert "offsets" in until(lambda: ended(world)).error


def test_an_error_that_was_caught_is_no_end(world, monkeypatch):
    """The next batch of the same run is seen again."""
    monkeypatch.setattr(presence, "EVERY", 0.0)
    write_numbers(world.folder, range(2))
    callback, calls = world.callback(), list[Any]()

    def careful(df: Any, batch: int) -> None:
        calls.append(batch)
        if len(calls) == 1:
            try:
                callback(df.selectExpr(BROKEN), batch)
            except AbortedError:
                calls.append("aborted")
        callback(df, batch)

    query = waiting(world, careful)
    query.processAllAvailable()
    assert calls == [0, "aborted", 1]
    assert until(lambda: newest(world), lambda last: last.ended is None)
    query.stop()


def test_a_log_that_cannot_be_written_is_no_error_of_a_batch(world, monkeypatch):
    """Nothing is known of the driver then."""

    def refuse(*_: object, **__: object) -> None:
        raise DecisionLogError("the disk is full")

    monkeypatch.setattr(SqlDecisionLog, "report_presence", refuse)
    monkeypatch.setattr(SqlDecisionLog, "report_end", refuse)
    write_numbers(world.folder, range(2))
    world.run(world.callback())
    world.assert_exactly_once(2)


# --- a process that ends -------------------------------------------------------------


@pytest.fixture
def program(tmp_path) -> Iterator[Any]:
    """`presence_job.py`, started with what it does after its first batch."""
    started = list[subprocess.Popen[bytes]]()

    def start(then: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(HERE / "presence_job.py"), str(tmp_path), then]
        told = {**os.environ, "PYTHONPATH": PATH}
        started.append(subprocess.Popen(command, env=told, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        ("raise", "its program ended: ValueError"),
        ("return", None),
        ("interrupt", None),
    ],
)
def test_a_program_that_ends_says_how(program, tmp_path, then, expected):
    """An error of its own is a failure; Ctrl-C, and its last line, are none."""
    program(then).wait(AT_LAST)
    with contextlib.closing(open_log(f"sqlite:///{tmp_path}/log.db")) as log:
        (last,) = log.presences()
    assert last.ended is not None
    assert last.error == expected


def test_a_driver_that_was_killed_is_not_seen_any_more(program, tmp_path):
    """It says nothing; half a minute later its job is gone."""
    job = program("wait")
    url = f"sqlite:///{tmp_path}/log.db"
    until(lambda: (tmp_path / "written").exists())
    with contextlib.closing(open_log(url)) as log:
        until(log.presences)
        os.killpg(job.pid, signal.SIGKILL)
        job.wait(AT_LAST)
        (last,) = log.presences()
    assert last.ended is None
    soon, later = last.seen + UNSEEN / 2, last.seen + UNSEEN
    assert jobs_of([last], soon)["orders"].state is JobState.RUNNING
    assert jobs_of([last], later)["orders"].state is JobState.GONE
    assert last.seen <= SystemClock().now()


@pytest.mark.parametrize(("earlier", "expected"), [(0, None), (1, "the disk is full")])
def test_ctrl_c_makes_no_stop_of_an_earlier_failure(monkeypatch, earlier, expected):
    """Only an end that came just before it is of what it broke off."""
    reported: list[str | None] = []
    log: Any = SimpleNamespace(report_end=lambda *_: reported.append(_[-1]))
    job = presence.Presence(log, "orders", "run", query=None)
    job.end("the disk is full")
    job._ended_at -= earlier * presence._BREAKS_OFF
    monkeypatch.setattr(sys, "last_value", KeyboardInterrupt(), raising=False)
    job.end_with_process()
    assert reported[-1] == expected
