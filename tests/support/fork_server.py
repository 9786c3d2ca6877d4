"""The fork server of `multiprocessing`: a process has one, for several suites."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing import forkserver


def preload(modules: Sequence[str]) -> None:
    """Let processes that are forked from here on have these modules, and no others.

    A server that has loaded others for another suite of this worker is killed. It would
    end by itself when a pipe is closed, and for ever wait for it where anything in this
    worker has kept a copy of that.
    """
    server = forkserver._forkserver
    if server._preload_modules != list(modules):
        if server._forkserver_pid is not None:
            os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))
