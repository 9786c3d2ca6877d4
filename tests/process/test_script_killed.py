"""A script that is killed, and started again with its batch: `tracing_2pc.write`."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.elsewhere import elsewhere

from tracing_2pc import FileSink, ParticipantSink, TableSink, write
from tracing_2pc.conformance import check_run
from tracing_2pc.core.errors import AbortedError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.names import FAILPOINTS
from tracing_2pc.core.states import Decision
from tracing_2pc.participant import TaggedRows
from tracing_2pc.store import open_log
from tracing_2pc.testing import served

ROOT = Path(__file__).parents[2]
OF_TASKS = "driver.during_collection"  # a script has no task whose receipts it reads
BY_ABORT = "files.before_abort"
POINTS = [
    point
    for point in FAILPOINTS
    if point.startswith(("driver.", "delivery.", "executor.", "files."))
    and point != OF_TASKS
]
FIRST = {"executor.after_first_prepare", "driver.after_decide", BY_ABORT}
"""Points at which `make test` kills, too."""


def rows_of(batch: int) -> pa.Table:
    """Return a batch's rows, in two parts."""
    first = batch * 4
    parts = [range(first, first + 2), range(first + 2, first + 4)]
    return pa.concat_tables(pa.table({"id": [*part]}) for part in parts)


def script(folder: Path, ledger: str, batch: int, *, fails: bool = False) -> None:
    """Write a batch to a service and a folder, and note whether it was new."""
    rows = rows_of(batch)
    if fails:  # the ledger's table has no such column
        rows = rows.append_column("other", pa.array(["x"] * rows.num_rows))
    is_new = write(
        [FileSink(folder / "out"), ParticipantSink({"ledger": ledger})],
        rows,
        application="daily",
        batch=batch,
        log=f"sqlite:///{folder}/log.db",
    )
    (folder / "told").write_text(str(is_new))


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TPC_TOKEN", "not-looked-at")
    rows = TaggedRows(f"sqlite:///{tmp_path}/ledger.db", table="orders")
    with served(rows) as url:
        script(tmp_path, url, 0)
        yield url


def held(folder: Path) -> tuple[list[int], list[int]]:
    """Return the ids that each of both has, sorted."""
    with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as database:
        rows = database.execute("SELECT id FROM orders ORDER BY id").fetchall()
    files = [
        pq.ParquetFile(file).read() for file in (folder / "out").rglob("*.parquet")
    ]
    return [id_ for (id_,) in rows], sorted(
        n for t in files for n in t["id"].to_pylist()
    )


@pytest.mark.parametrize(
    "point",
    [pytest.param(p, marks=() if p in FIRST else pytest.mark.ci) for p in POINTS],
)
def test_a_script_that_is_killed_is_started_again(tmp_path, ledger, point):
    """Each row is everywhere once, and it is told whether the batch was written."""
    first, *about = (failing,) if point == BY_ABORT else (script, 1)
    (scratch := tmp_path / "scratch").mkdir()
    assert (
        elsewhere(scratch, first, tmp_path, ledger, *about, killed_at=point) == "killed"
    )
    assert (scratch / "fired").exists()
    with contextlib.closing(open_log(f"sqlite:///{tmp_path}/log.db")) as log:
        left = log.read(TransactionId("daily", 1, 1))
    is_decided = left is not None and left.decision is Decision.COMMIT
    assert elsewhere(scratch, script, tmp_path, ledger, 1) == "ended"
    assert (tmp_path / "told").read_text() == str(not is_decided)
    assert held(tmp_path) == ([*range(8)], [*range(8)])
    with contextlib.closing(open_log(f"sqlite:///{tmp_path}/log.db")) as log:
        assert log.unfinished() == []
    assert [*(tmp_path / "out").glob(".tpc/*")] == []
    database = f"sqlite:///{tmp_path}/ledger.db"
    assert check_run(f"sqlite:///{tmp_path}/log.db", [("ledger", database)]) == []


def rejecting(folder: Path) -> None:
    """Write a batch of which one row is refused by a table, and kept by another."""
    url = f"sqlite:///{folder}/rows.db"
    write(
        [FileSink(folder / "out"), TableSink(url, "kept"), TableSink(url, "rejected")],
        rows_of(0),
        application="daily",
        batch=0,
        log=f"sqlite:///{folder}/log.db",
        rejects="rejected",
    )


@pytest.mark.parametrize("point", [p for p in FAILPOINTS if p.startswith("rejects.")])
def test_a_row_is_rejected_once_whatever_is_killed(tmp_path, point):
    """It is in the table of rejects, and nowhere else; each other row is everywhere."""
    columns = "id bigint CHECK (id <> 2), tpc_tag bigint NOT NULL DEFAULT 0"
    with contextlib.closing(sqlite3.connect(tmp_path / "rows.db")) as database:
        database.execute(f"CREATE TABLE kept_tpc ({columns})")
    (scratch := tmp_path / "scratch").mkdir()
    ends = [
        elsewhere(scratch, rejecting, tmp_path, killed_at=killed_at)
        for killed_at in (point, None, None)
    ]
    assert ends == ["killed", "ended", "ended"]
    with contextlib.closing(sqlite3.connect(tmp_path / "rows.db")) as database:
        kept = database.execute("SELECT id FROM kept ORDER BY id").fetchall()
        rejected = database.execute("SELECT record FROM rejected").fetchall()
    files = (tmp_path / "out").rglob("*.parquet")
    filed = [n for f in files for n in pq.ParquetFile(f).read()["id"].to_pylist()]
    assert [id_ for (id_,) in kept] == sorted(filed) == [0, 1, 3]
    assert rejected == [('{"id": 2}',)]


def failing(folder: Path, ledger: str) -> None:
    """Write a batch that the ledger refuses: nothing of it stays in the folder."""
    with pytest.raises(AbortedError):
        script(folder, ledger, 1, fails=True)


def test_a_batch_that_a_participant_refuses_is_nowhere(tmp_path, ledger):
    """Not in the folder either, whose part was prepared first."""
    failing(tmp_path, ledger)
    assert held(tmp_path) == ([*range(4)], [*range(4)])


def test_one_variable_kills_at_each_start(tmp_path):
    """Without a file, by which all processes would count, until it is unset."""
    program = f"""
from tracing_2pc import TableSink, write
sink = TableSink("sqlite:///{tmp_path}/shop.db", "orders")
write(sink, [{{"id": 1}}], application="daily", batch=0, log="sqlite:///{tmp_path}/log.db")
"""
    named = {"TPC_FAILPOINT": "driver.before_decide"}
    for told, ended in ((named, -signal.SIGKILL), (named, -signal.SIGKILL), ({}, 0)):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **told, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
            check=False,
        )
        assert done.returncode == ended
