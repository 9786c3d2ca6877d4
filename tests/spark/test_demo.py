"""`tracing-2pc demo` keeps its promise, in short."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.texts import texts

from participants.demo import KEEPING
from participants.oracle.expected import expected_sums, read_day
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
    found, told = demo(tmp_path, **limit)
    assert found.keys() >= FIELDS
    assert found["kills"] == 2
    assert len(found["flagged"]) == 1
    (flagged,) = [s for s in told.splitlines() if s.startswith("FLAGGED")]
    assert f"{found['flagged'][0]} is stuck" in flagged
    assert "not acknowledged by notifier" in flagged
    assert (found["batches"], found["records"]) == (5, 4334)
    assert (found["lost"], found["duplicated"], found["split"]) == (0, 0, 0)
    assert (found["unfinished"], found["committed"]) == (0, 5)
    # The power cut: readers see a flight at one place, and at both after the restart.
    said = texts("spark")["demo: the state at the kill"]
    assert said in told
    before, _, after = told.partition(said)
    places = [re.findall(r"at the \w+ +(.+)", part) for part in (before, after)]
    assert places == [["there, once", "NOT THERE"], ["there, once", "there, once"]]
    (file,) = tmp_path.glob("tracing-2pc-demo-*/trace.jsonl")
    for killed in ("flights.1.1", found["flagged"][0]):
        assert written_by(file, killed) == {path}, killed


@pytest.mark.spark
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("sqlite", marks=pytest.mark.ci),
        pytest.param("postgres", marks=pytest.mark.nightly),
    ],
)
def test_what_the_ledger_refuses_is_rejected_once_through_three_kills(tmp_path, kind):
    """Each of its rows is in the ledger or in `rejected`, where it belongs, once.

    Also after the driver was killed when others had voted and rejected rows were kept
    nowhere. How many they are is the source's.
    """
    found, told = demo(tmp_path, "--rejects", "--embedded", kind)
    assert (found["kills"], found["committed"], found["unfinished"]) == (3, 5, 0)
    faults = ("lost", "duplicated", "wrong", "split")
    assert [found[fault] for fault in faults] == [0, 0, 0, 0]
    days = [read_day(f"2013-01-{day:02}") for day in range(1, 6)]
    sums = expected_sums([flight for day in days for flight in day])
    assert found["rejected"] == sum(values[2] < 0 for values in sums.values()) == 49
    assert f"KILLED the driver at {KEEPING}" in told


def demo(folder: Path, *arguments: str, **more: str) -> tuple[dict[str, Any], str]:
    """Run five days to their good end; return the line of JSON and what it told."""
    command = [sys.executable, "-m", "tracing_2pc", "demo", "--json", "--keep"]
    done = subprocess.run(
        [*command, "--batches", "5", "--embedded", "sqlite", *arguments],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder)} | more,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return json.loads(line), done.stderr


def written_by(file: Path, transaction: str) -> set[str]:
    """Return who wrote a transaction's branches, by the process of its spans."""
    spans = read_trace_file(file)
    ours = [
        s for s in spans if s["attributes"].get("tpc.transaction.id") == transaction
    ]
    drivers = {s["instance"] for s in ours if s["name"] == "tpc.begin"}
    branches = {s["instance"] for s in ours if s["name"] == "tpc.branch"}
    return {"driver" if instance in drivers else "executors" for instance in branches}
