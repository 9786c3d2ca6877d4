"""Copies of the project, in which rules are taken out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("tracing_2pc", "participants", "bench", "tests", "pyproject.toml")
"""What a test needs to run elsewhere."""

_LEFT_OUT: Final = shutil.ignore_patterns(".*")


def copy(source: Path, to: Path) -> Path:
    """Copy what a test needs, compiled or not; return where it is.

    A compiled file goes by the time and size of its source, which an edit changes.
    """
    to.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, to / name, ignore=_LEFT_OUT)
        else:
            shutil.copy2(source / name, to / name)
    return to
