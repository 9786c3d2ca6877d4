"""The demo's own job, as a real backend shows it."""

from __future__ import annotations

import signal

import pytest

from backends.backend import Trace, count, wait_for, without_parent
from backends.conftest import REAL
from backends.demo_path import armed, demo_path, run
from participants import flights


@pytest.mark.spark
@pytest.mark.parametrize("backend", [REAL], indirect=True)
def test_each_day_of_the_demo_is_one_whole_trace(backend, tmp_path):
    """Real Spark, real flights, and a driver that was killed after a decision."""
    flights.feed(tmp_path / "in", range(1, 4))
    with demo_path(tmp_path, backend.endpoint) as path:
        point = armed("driver.after_decide", tmp_path)
        assert run(path.spark_job(), **point) == -signal.SIGKILL
        assert run(path.spark_job()) == 0
    for batch in range(3):
        trace = wait_for(backend, f"flights.{batch}.1", is_whole)
        assert {span["service"] for span in trace} == {"flights", "ledger", "notifier"}
        assert count(trace, "tpc.transaction") > 0


def is_whole(trace: Trace) -> bool:
    """Whether it has come to its end, and no span lacks its parent."""
    return count(trace, "tpc.finish") > 0 and not without_parent(trace)
