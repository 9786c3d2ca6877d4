"""The branches that this process is writing, and what their `invoke` calls add up to.

A record costs a look into `OPEN`, never a span. A branch is found by its handle's
identity. No other object can get that while the entry is there: the entry goes with the
handle, or holds a handle that takes no weak reference.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tracing_2pc.core.model import Carrier

BOUND: Final = 1024
"""Branches remembered at once; a task that was killed leaves its own here."""

PREPARED: Final = 64
"""Handles held after their `pre_commit`, because they take neither the context nor a
weak reference: a list, a tuple, a class with slots. Older ones are forgotten."""

OPEN: Final[dict[int, Branch]] = {}
"""Open branches by `id(handle)`. Empty while tracing is off: that is the flag."""

_SHARED: Final = frozenset({str, bytes, int, float, bool, tuple})


@dataclass(slots=True, eq=False)
class Branch:
    """One branch between its begin and its end. Times are Unix nanoseconds."""

    handle: object
    """A weak reference to it, where its type takes one."""
    carrier: Carrier
    is_shared: bool = False
    """Python may give equal handles of several branches as one object."""
    is_prepared: bool = False
    rows: int = 0
    first: int = 0
    last: int = 0
    error: type[BaseException] | None = None
    inside: dict[int, object] = field(default_factory=dict)
    delegates: dict[str, Branch] = field(default_factory=dict)

    def count(
        self,
        method: Callable[..., Any],
        rows: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call, and add to what the branch's one `invoke` span will count."""
        thread, sink = threading.get_ident(), args[0]
        if (around := self.inside.get(thread)) is not None:
            if around is sink:  # a subclass calls its parent's invoke
                return method(*args, **kwargs)
            # It hands its records to another sink, which has counts of its own.
            fresh = Branch(None, self.carrier)
            delegate = self.delegates.setdefault(type(sink).__name__, fresh)
            return delegate.count(method, rows, args, kwargs)
        self.inside[thread] = sink
        self.first = self.first or time.time_ns()
        try:
            answer = method(*args, **kwargs)
            self.rows += rows
        except BaseException as error:
            self.error = type(error)
            raise
        finally:
            self.last = time.time_ns()
            del self.inside[thread]
        return answer

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
    is_shared = type(handle) in _SHARED
    OPEN[id(handle)] = Branch(_reference(handle), carrier, is_shared)


def prepared(handle: object) -> None:
    """Keep the place of a branch that is written, in case it is committed from here."""
    if (branch := find(handle)) is None or branch.handle is not handle:
        return
    branch.is_prepared = True
    open_now = list(OPEN.items())  # at once: other threads open and close theirs
    _forget_oldest([key for key, other in open_now if other.is_prepared], PREPARED)


def _forget_oldest(keys: list[int], bound: int) -> None:
    for key in keys[: max(0, len(keys) - bound)]:
        OPEN.pop(key, None)


def _reference(handle: object) -> object:
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
