"""The branches that this process is writing: what `invoke` adds up until it ends.

A record costs a look into `OPEN`, never a span. A branch is found by the identity of
its handle, often a dict. While the entry is there the identity cannot pass to another
object: it goes with the handle, or holds a handle that takes no weak reference.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from tracing_2pc.model import Carrier

BOUND: Final = 1024
"""Branches remembered at once; a task that died without a word left its own here."""

OPEN: Final[dict[int, Branch]] = {}
"""Open branches by `id(handle)`. Empty while tracing is off: that is the flag."""


class Branch:
    """One branch between its begin and its end."""

    __slots__ = ("carrier", "error", "first", "held", "inside", "last", "rows")

    def __init__(self, handle: object, carrier: Carrier) -> None:
        self.held = _hold(handle)
        self.carrier = carrier
        self.rows = 0
        self.first = self.last = 0
        self.error: type[BaseException] | None = None
        self.inside = False

    def count(
        self,
        method: Callable[..., Any],
        rows: int,
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> Any:
        """Call, and add to what the branch's one `invoke` span will say."""
        if self.inside:  # a subclass calls its parent's invoke
            return method(*arguments, **named)
        self.inside = True
        self.first = self.first or time.time_ns()
        try:
            answer = method(*arguments, **named)
            self.rows += rows
        except BaseException as error:
            self.error = type(error)
            raise
        finally:
            self.last = time.time_ns()
            self.inside = False
        return answer


def remember(handle: object, carrier: Carrier) -> None:
    """Open a branch; the oldest one is forgotten if there are too many."""
    while len(OPEN) >= BOUND:
        OPEN.pop(next(iter(OPEN)), None)
    OPEN[id(handle)] = Branch(handle, carrier)


def _hold(handle: object) -> object:
    key = id(handle)
    try:
        return weakref.ref(handle, lambda _: OPEN.pop(key, None))
    except TypeError:
        return handle


def find(handle: object) -> Branch | None:
    """Return the open branch of a handle, if this process began it."""
    return OPEN.get(id(handle))


def forget(handle: object) -> None:
    """Close a branch: this process will be asked nothing more of it."""
    OPEN.pop(id(handle), None)
