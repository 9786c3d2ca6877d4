"""What a forked process must make anew: locks, threads, connections, queues.

A fork copies locks that another thread may hold, connections on which two processes
would then talk, and queues whose content the parent sends. It copies no thread.
"""

from __future__ import annotations

import inspect
import os
import traceback
import weakref
from collections.abc import Callable
from typing import Final


def after_fork(reset: Callable[[], object]) -> None:
    """Call `reset` in each child of a fork, before anything else runs there.

    A method is called as long as its object lives; the object is not kept alive. What
    a reset raises is printed and ignored, so that the others run. It takes no lock that
    it has not made: the thread that holds it is in the parent.
    """
    global _most
    find = weakref.WeakMethod(reset) if inspect.ismethod(reset) else lambda: reset
    _resets.append(find)
    if len(_resets) > _most:  # a process may make and drop objects without end
        _resets[:] = [find for find in _resets if find() is not None]
        _most = 2 * len(_resets) + 100


def _call() -> None:
    for find in list(_resets):
        if (living := find()) is not None:
            try:
                living()
            except Exception:  # noqa: BLE001 - the others must run
                traceback.print_exc()


_resets: Final[list[Callable[[], Callable[[], object] | None]]] = []
_most = 100

os.register_at_fork(after_in_child=_call)
