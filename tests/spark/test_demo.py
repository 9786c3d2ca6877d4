"""`tracing-2pc demo` keeps its promise, in short."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FIELDS = {
    *("batches", "records", "kills", "committed", "aborted"),
    *("lost", "duplicated", "split", "unfinished", "seconds"),
}


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_four_days_through_two_kills(tmp_path: Path) -> None:
    """Real flights, the driver and the ledger killed: nothing lost, nothing twice.

    The transaction that waits for the ledger is flagged while it does.
    """
    command = [sys.executable, "-m", "tracing_2pc", "demo", "--json"]
    done = subprocess.run(
        [*command, "--batches", "4", "--embedded", "sqlite"],
        cwd=tmp_path,
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
    assert "not acknowledged by ledger" in flagged
    assert (found["batches"], found["records"]) == (4, 3614)
    assert (found["lost"], found["duplicated"], found["split"]) == (0, 0, 0)
    assert (found["unfinished"], found["committed"]) == (0, 4)
    assert "flights.1.1: the log says committing; ledger" in done.stderr
