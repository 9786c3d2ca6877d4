"""The fork server of `multiprocessing`: a process has one, for several suites."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing import forkserver


def preload(modules: Sequence[str]) -> None:
    """Let processes that are forked from here on have these modules, and no others.

    A server that has loaded others for another suite of this worker is stopped.
    """
    server = forkserver._forkserver
    if server._preload_modules != list(modules):
        server._stop()
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))
