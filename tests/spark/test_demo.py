"""`tracing-2pc demo` keeps its promise, in short."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.texts import texts

from tracing_2pc.testing import read_trace_file

FIELDS = {
    *("batches", "records", "kills", "committed", "aborted"),
    *("lost", "duplicated", "split", "unfinished", "seconds"),
}


@pytest.mark.spark
@pytest.mark.parametrize(
    "path",
    ["driver", pytest.param("executors", marks=pytest.mark.nightly)],
)
def test_five_days_through_two_kills(tmp_path, path):
    """Real flights, driver and notifier killed: nothing lost, nothing twice.

    The ledger is a table that the job opens itself. The transaction that waits for the
    notifier is flagged while it does. Both kills come to batches that the driver wrote
    itself, or executors: the second one to the fourth or fifth, so not to the first of
    a start, which executors write always.
    """
    limit = {"TPC_DRIVER_PATH_BYTES": "0"} if path == "executors" else {}
    command = [sys.executable, "-m", "tracing_2pc", "demo", "--json", "--keep"]
    done = subprocess.run(
        [*command, "--batches", "5", "--embedded", "sqlite"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)} | limit,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert found.keys() >= FIELDS
    assert found["kills"] == 2
    assert len(found["flagged"]) == 1
    (flagged,) = [s for s in done.stderr.splitlines() if s.startswith("FLAGGED")]
    assert f"{found['flagged'][0]} is stuck" in flagged
    assert "not acknowledged by notifier" in flagged
    assert (found["batches"], found["records"]) == (5, 4334)
    assert (found["lost"], found["duplicated"], found["split"]) == (0, 0, 0)
    assert (found["unfinished"], found["committed"]) == (0, 5)
    # The power cut: readers see a flight at one place, and at both after the restart.
    said = texts("spark")["demo: the state at the kill"]
    assert said in done.stderr
    before, _, after = done.stderr.partition(said)
    places = [re.findall(r"at the \w+ +(.+)", part) for part in (before, after)]
    assert places == [["there, once", "NOT THERE"], ["there, once", "there, once"]]
    (file,) = tmp_path.glob("tracing-2pc-demo-*/trace.jsonl")
    for killed in ("flights.1.1", found["flagged"][0]):
        assert written_by(file, killed) == {path}, killed


def written_by(file: Path, transaction: str) -> set[str]:
    """Return who wrote a transaction's branches, by the process of its spans."""
    spans = read_trace_file(file)
    ours = [
        s for s in spans if s["attributes"].get("tpc.transaction.id") == transaction
    ]
    drivers = {s["instance"] for s in ours if s["name"] == "tpc.begin"}
    branches = {s["instance"] for s in ours if s["name"] == "tpc.branch"}
    return {"driver" if instance in drivers else "executors" for instance in branches}
