"""A table without a service beside a folder, by each way into a real Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pyarrow.dataset as ds
import pytest
from support.spark import numbers_of, write_numbers
from support.stream_world import NEEDS_ARROW_WRITERS
from support.telemetry import PATH
from support.waiting import AT_LAST

from tracing_2pc.store import open_log

pytestmark = [pytest.mark.spark, NEEDS_ARROW_WRITERS]
HERE = Path(__file__).parent


def run(master: str, folder: Path, database: str) -> subprocess.CompletedProcess[str]:
    write_numbers(folder, range(2))
    command = [sys.executable, str(HERE / "embedded_job.py"), master, str(folder)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TPC_")}
    return subprocess.run(
        [*command, database],
        env={**environment, "PYTHONPATH": PATH, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=AT_LAST,
        check=False,
    )


@pytest.mark.ci
@pytest.mark.parametrize("master", ["local[2,2]", "local-cluster[2,1,1024]"])
def test_each_row_is_there_once(postgres_database, tmp_path, master):
    """By foreachBatch with routes, the data source and `df.write`; nothing is left."""
    done = run(master, tmp_path, postgres_database)
    assert done.returncode == 0, done.stderr[-3000:]
    whole = sorted(numbers_of(2).elements())
    for way in ("callback", "source", "frame"):
        with psycopg.connect(postgres_database) as connection:
            rows = connection.execute(f"SELECT value FROM by_{way}").fetchall()
        assert sorted(value for (value,) in rows) == whole
        table = ds.dataset(tmp_path / f"by_{way}", format="parquet").to_table()
        some = [n for n in whole if way != "callback" or n % 2 == 0]
        assert sorted(table["value"].to_pylist()) == some
    log = open_log(f"sqlite:///{tmp_path}/log.db")
    assert log.unfinished() == []
    log.close()


@pytest.mark.ci
def test_a_file_is_refused_on_a_cluster_before_anything_is_read(tmp_path):
    """In one line, by what the job is told to write to."""
    done = run("local-cluster[1,1,1024]", tmp_path, f"sqlite:///{tmp_path}/shop.db")
    assert done.returncode
    assert "ConfigurationError: numbers: SQLite is a file" in done.stderr
    assert not (tmp_path / "shop.db").exists()
    assert not (tmp_path / "ck-callback" / "offsets").exists()
