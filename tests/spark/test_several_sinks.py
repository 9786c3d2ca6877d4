"""A service and two folders in one transaction, on real Spark: killed in the middle."""

import collections
import contextlib
import sys
from pathlib import Path

import pandas as pd
import pytest
from support.folder_sink import in_files
from support.spark import held, numbers_of, serve_numbers, write_numbers
from support.telemetry import PATH
from support.waiting import AT_LAST

from participants.processes import Process, stopping
from tracing_2pc.store import open_log

HERE = Path(__file__).parent
BATCHES = 2
pytestmark = pytest.mark.spark

KILLS = (
    "executor.after_first_prepare:1",  # the service has prepared, the folder has not
    "delivery.between_commits:1",  # one has acknowledged its commit
    "files.between_renames:1",  # the other folder shows a part of its batch
)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(KILLS[2:], id="between two renames"),
        pytest.param(KILLS, id="every step", marks=pytest.mark.nightly),
    ],
)
def test_a_service_and_folders_hold_the_same_whatever_is_killed(tmp_path, kills):
    """Each batch lands in all once; nothing that was prepared is left over."""
    write_numbers(tmp_path, range(BATCHES))
    out = tmp_path / "out"
    with contextlib.ExitStack() as stack:
        (url,) = serve_numbers(stack, tmp_path, "a")
        command = [sys.executable, str(HERE / "composite_job.py"), str(tmp_path), url]
        job = Process("job", command, tmp_path / "job.log", {"PYTHONPATH": PATH})
        stack.enter_context(stopping(job))
        for number, kill in enumerate(kills):
            fired = tmp_path / f"fired-{number}"
            job.start(TPC_FAILPOINT=kill, TPC_FAILPOINT_FILE=str(fired))
            assert job.wait(AT_LAST) == -9, job.tail()
            assert fired.exists(), kill
        job.start()
        assert job.wait(AT_LAST) == 0, job.tail()
        assert held(tmp_path / "a.db") == in_files(out) == numbers_of(BATCHES)
        assert list((out / ".tpc").rglob("*.json")) == []
        read = pd.read_parquet(tmp_path / "parquet")
        assert collections.Counter(map(int, read["value"])) == numbers_of(BATCHES)
        assert all(read["part"].astype(int) == read["value"] % 2)
        assert list((tmp_path / "parquet" / ".tpc").iterdir()) == []
        log = open_log(f"sqlite:///{tmp_path / 'log.db'}")
        stack.callback(log.close)
        assert log.unfinished() == []
