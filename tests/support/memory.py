"""A folder in memory, for what a test writes and nobody keeps."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_FOLDER = Path("/dev/shm")
_ROOM = 2 << 30
"""Bytes that must be free there: a whole run, with its PostgreSQLs, needs half."""


def folder() -> str | None:
    """Return a folder in memory that is this user's, if there is room.

    Of this user: the embedded PostgreSQL has a lock file beside what it makes, which
    nobody else may open. A killed process loses nothing that it has written, on a disk
    or not; what a power cut loses is cut off by hand. Flushes are counted there as on
    a disk, and cost nothing.
    """
    if _FOLDER.is_dir() and shutil.disk_usage(_FOLDER).free > _ROOM:
        ours = _FOLDER / f"tpc-{os.getuid()}"
        ours.mkdir(mode=0o755, exist_ok=True)
        return str(ours)
    return None


def use() -> None:
    """Make temporary files in memory from here on, here and in what is started here.

    `TMPDIR`, where it is set, is left as it is.
    """
    if "TMPDIR" not in os.environ and (found := folder()):
        os.environ["TMPDIR"] = found
        tempfile.tempdir = None
