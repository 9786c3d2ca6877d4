"""A decision log for tests: the real one, in a folder that goes with it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable

from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.store.engines.database import Database


def temporary_log(*, now: Callable[[], float] = time.time) -> SqlDecisionLog:
    """Return an empty decision log in SQLite, for tests and first tries only.

    Its file is in a temporary folder, and is removed with the last reference to the
    log, or with the process. A process that is killed leaves it behind.

    Args:
        now: Unix seconds, for the times on record and for deadlines.
    """
    folder = tempfile.mkdtemp(prefix="tpc-log-")
    log = open_log(f"sqlite:///{folder}/decisions.db", now=now)
    weakref.finalize(log, _remove, log._database, folder, os.getpid())
    return log


def _remove(database: Database, folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not by a fork of it
        database.close()
        shutil.rmtree(folder, ignore_errors=True)
