"""A decision log on SQLite, copied and put back as an operator would."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path


def copy_database(source: Path, target: Path) -> None:
    """Copy what is committed now, also while it is in use; the target is replaced."""
    with (
        contextlib.closing(sqlite3.connect(source)) as read,
        contextlib.closing(sqlite3.connect(target)) as written,
    ):
        read.backup(written)
