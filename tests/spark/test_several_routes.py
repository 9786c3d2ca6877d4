"""Routes on a cluster: what an executor that dies between them may change."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest
from cluster import cluster
from support.service import create_app
from support.spark import held, serving, write_numbers
from support.waiting import until

from participants.processes import Process, stopping
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.store import open_log

HERE = Path(__file__).parent
PYTHON = (HERE.parent, HERE.parents[1])
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_an_executor_dies_between_the_routes(tmp_path: Path) -> None:
    """Every route sees one and the same batch, or nothing of it is committed.

    The batch is other rows whenever it is computed. Its executor dies when the first
    participant has voted: what it held is not computed again for the second one.
    """
    write_numbers(tmp_path, range(20))
    with contextlib.ExitStack() as stack:
        urls = []
        for name in ("a", "b"):
            app = create_app(f"sqlite:///{tmp_path / name}.db")
            stack.callback(app.extensions["resource"].close)
            urls.append(stack.enter_context(serving(app)))
        spark = stack.enter_context(cluster(tmp_path, *PYTHON))
        program = [sys.executable, str(HERE / "routed_job.py"), str(tmp_path)]
        path = os.pathsep.join(map(str, PYTHON))
        job = Process(
            "job",
            [*program, spark.url, *urls],
            tmp_path / "job.log",
            {"PYTHONPATH": path},
        )
        stack.enter_context(stopping(job))
        job.start()
        between = tmp_path / "between-routes"
        until(lambda: between.exists() or not job.alive(), seconds=300)
        assert job.alive(), job.tail()
        spark.kill_executor(spark.workers[0])
        (tmp_path / "go-on").touch()

        job.wait(300)
        assert held(tmp_path / "a.db") == held(tmp_path / "b.db")
        assert state(tmp_path, "routed.0.1") is TransactionState.ABORTED


def state(folder: Path, transaction: str) -> TransactionState | None:
    with contextlib.closing(open_log(f"sqlite:///{folder / 'log.db'}")) as log:
        record = log.read(TransactionId.parse(transaction))
        return record and record.state
