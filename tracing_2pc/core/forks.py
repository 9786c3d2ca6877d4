"""What a forked process must recreate: locks, threads, connections, queues.

A fork copies locks that another thread may hold, connections on which two processes
would then talk, and queues whose content the parent sends. It copies no thread.
"""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable


def after_fork(reset: Callable[[], object]) -> None:
    """Call `reset` in each child of a fork, before anything else runs there.

    A method is called as long as its object lives; the object is not kept alive. An
    exception in a reset is printed and ignored, so that the others run. It takes no
    lock that it has not made: the thread that holds it is in the parent.
    """
    find = weakref.WeakMethod(reset) if inspect.ismethod(reset) else lambda: reset

    def call() -> None:
        if (living := find()) is not None:
            living()

    os.register_at_fork(after_in_child=call)
