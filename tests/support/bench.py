"""Run a family of the exact counts as a user does, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def assert_counts_hold(family: str, folder: Path) -> None:
    """Assert that the command exits 0, and that every count of the family held."""
    file = folder / "counts.json"
    command = [sys.executable, "-m", "bench", "counts", family, "--json", str(file)]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "COUNTS_TRANSACTIONS": "100"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    counted = json.loads(file.read_text())
    assert counted["ok"]
    assert counted["counts"]
    assert all(count["actual"] == count["expected"] for count in counted["counts"])
