"""The branches that this process is writing: what `invoke` adds up until it ends.

A record costs a look into `OPEN`, never a span. A branch is found by the identity of
its handle, often a dict. While the entry is there the identity cannot pass to another
object: it goes with the handle, or holds a handle that takes no weak reference.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tracing_2pc.model import Carrier

BOUND: Final = 1024
"""Branches remembered at once; a task that died without a word left its own here."""

PREPARED: Final = 64
"""Handles held after their `pre_commit`, because they take neither the context nor a
weak reference: a list, a tuple, a class with slots. Of older ones nothing is known."""

OPEN: Final[dict[int, Branch]] = {}
"""Open branches by `id(handle)`. Empty while tracing is off: that is the flag."""

_SHARED: Final = frozenset({str, bytes, int, float, bool, tuple})


class Branch:
    """One branch between its begin and its end."""

    __slots__ = (
        "carrier",
        "delegates",
        "error",
        "first",
        "held",
        "inside",
        "is_prepared",
        "is_shared",
        "last",
        "rows",
    )

    def __init__(self, handle: object, carrier: Carrier) -> None:
        self.held = _hold(handle)
        self.carrier = carrier
        self.is_shared = type(handle) in _SHARED
        """Python may give equal handles of several branches as one object."""
        self.is_prepared = False
        self.rows = 0
        self.first = self.last = 0
        self.error: type[BaseException] | None = None
        self.inside: dict[int, object] = {}
        self.delegates: dict[str, Branch] = {}

    def count(
        self,
        method: Callable[..., Any],
        rows: int,
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> Any:
        """Call, and add to what the branch's one `invoke` span will say."""
        thread, sink = threading.get_ident(), arguments[0]
        if (around := self.inside.get(thread)) is not None:
            if around is sink:  # a subclass calls its parent's invoke
                return method(*arguments, **named)
            return self._delegate(sink).count(method, rows, arguments, named)
        self.inside[thread] = sink
        self.first = self.first or time.time_ns()
        try:
            answer = method(*arguments, **named)
            self.rows += rows
        except BaseException as error:
            self.error = type(error)
            raise
        finally:
            self.last = time.time_ns()
            del self.inside[thread]
        return answer

    def _delegate(self, sink: object) -> Branch:
        """Return the counts of another sink that this one hands its records to."""
        name = type(sink).__name__
        return self.delegates.setdefault(name, Branch(None, self.carrier))

    def counted(self, name: str) -> Iterator[tuple[str, Branch]]:
        """Return whose counts there are, by the name of the class, and end them."""
        if self.first:
            yield name, self
            self.first = self.rows = 0
        for delegate, counts in self.delegates.items():
            yield from counts.counted(delegate)


def remember(handle: object, carrier: Carrier) -> None:
    """Open a branch; the oldest ones are forgotten if there are too many."""
    if len(OPEN) >= BOUND:
        _forget_oldest(list(OPEN), BOUND - 1)
    OPEN[id(handle)] = Branch(handle, carrier)


def prepared(handle: object) -> None:
    """Keep the place of a branch that is written, in case it is committed from here."""
    if (branch := find(handle)) is None or branch.held is not handle:
        return
    branch.is_prepared = True
    open_now = list(OPEN.items())  # at once: other threads open and close theirs
    _forget_oldest([key for key, other in open_now if other.is_prepared], PREPARED)


def _forget_oldest(keys: list[int], bound: int) -> None:
    for key in keys[: max(0, len(keys) - bound)]:
        OPEN.pop(key, None)


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
