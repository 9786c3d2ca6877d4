"""A service and two folders in one transaction, on real Spark: killed in the middle."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import sys
from pathlib import Path

import pandas as pd
import pytest
from support.service import create_app
from support.spark import held, numbers_of, serving, write_numbers
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


def in_files(folder: Path) -> collections.Counter[int]:
    return collections.Counter(
        n for file in folder.glob("*.json") for n in json.loads(file.read_text())
    )


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(KILLS[2:], id="between two renames"),
        pytest.param(KILLS, id="every step", marks=pytest.mark.nightly),
    ],
)
def test_a_service_and_folders_hold_the_same_whatever_is_killed(
    tmp_path: Path, kills: tuple[str, ...]
) -> None:
    """Each batch lands in all once; nothing that was prepared is left over."""
    write_numbers(tmp_path, range(BATCHES))
    out = tmp_path / "out"
    with contextlib.ExitStack() as stack:
        app = create_app(f"sqlite:///{tmp_path / 'a.db'}")
        stack.callback(app.extensions["resource"].close)
        url = stack.enter_context(serving(app))
        command = [sys.executable, str(HERE / "composite_job.py"), str(tmp_path), url]
        path = os.pathsep.join([str(HERE.parent), str(HERE.parents[1])])
        job = Process("job", command, tmp_path / "job.log", {"PYTHONPATH": path})
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
