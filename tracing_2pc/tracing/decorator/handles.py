"""What a handle remembers of its branch: where its spans belong, and what it has taken.

An object with attributes of its own has it as one more. A plain dict gets the trace
context as a key, but no earlier than its `pre_commit` has returned: until then rows may
be in it. Until then, and for what has no room at all, it is kept beside the handle, in
`HELD`. No method of a handle is called, and nothing here raises.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry import trace

from tracing_2pc.core.model import Carrier
from tracing_2pc.tracing import spans

CARRIER: Final = "tpc_carrier"
"""Key or attribute that a handle gets: with it, the trace context survives in the
log, and a commit after a restart joins the transaction's own trace."""

BOUND: Final = 256
"""Handles that are held at once; a task that was killed leaves its own here."""

HELD: Final[dict[int, Branch]] = {}
"""Branches by `id(handle)`, which no other object can get: the handle is held, too."""

in_use = False
"""Whether this process has begun a branch that is traced."""

_NONE: Final = Carrier()


@dataclass(slots=True)
class Counts:
    """What one sink's `invoke` calls add up to. Times are Unix nanoseconds."""

    name: str
    rows: int = 0
    first: int = 0
    last: int = 0
    error: type[BaseException] | None = None
    inside: set[int] = field(default_factory=set)
    """Threads that are in a call of it."""


class Branch:
    """One branch, from its begin on; pickled, it is its trace context as a dict."""

    __slots__ = ("carrier", "counts", "handle")

    def __init__(self, carrier: Mapping[str, str]) -> None:
        self.carrier = carrier
        self.counts: dict[int, Counts] = {}
        """By `id(sink)`: one sink may hand its records to another one."""
        self.handle: object = None
        """None if the handle has this as an attribute."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.carrier),)

    def count(
        self,
        method: Callable[..., Any],
        rows: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call, and add to what the sink's one `invoke` span will count."""
        sink, thread = args[0], threading.get_ident()
        if (counts := self.counts.get(id(sink))) is None:
            counts = self.counts.setdefault(id(sink), Counts(type(sink).__name__))
        if thread in counts.inside:  # a subclass calls its parent's invoke
            return method(*args, **kwargs)
        counts.inside.add(thread)
        counts.first = counts.first or time.time_ns()
        try:
            answer = method(*args, **kwargs)
            counts.rows += rows
        except BaseException as error:
            counts.error = type(error)
            raise
        finally:
            counts.last = time.time_ns()
            counts.inside.discard(thread)
        return answer

    def place(self) -> Mapping[str, str]:
        """Return where its spans belong; empty is the current span.

        That comes first where Python may give several branches the same object, for
        instance equal texts.
        """
        if self.handle is None or type(self.handle) is dict:
            return self.carrier
        is_inside = spans.ids_of(trace.get_current_span()).is_valid
        return _NONE if is_inside else self.carrier


def remember(handle: object, carrier: Mapping[str, str]) -> None:
    """Open a branch: in its handle, or beside it, where the oldest are forgotten."""
    global in_use
    in_use = True
    branch = Branch(carrier)
    if type(handle) is dict or not put_attribute(handle, branch):
        branch.handle = handle
        HELD[id(handle)] = branch
        for oldest in list(HELD)[
            :-BOUND
        ]:  # a copy: other threads open and close theirs
            HELD.pop(oldest, None)


def branch_of(handle: object) -> Branch | None:
    """Return the branch of a handle, if this process remembers it."""
    found = _found(handle)
    return found if type(found) is Branch else None


def forget(handle: object) -> None:
    """Hold it no longer: this process will be asked nothing more of it."""
    HELD.pop(id(handle), None)


def put_attribute(carried: object, value: object) -> bool:
    """Put something beside the fields of any object that has room for it."""
    try:
        object.__setattr__(carried, CARRIER, value)
    except Exception:  # noqa: BLE001 - slots, a builtin, a descriptor of that name
        return False
    return True


def put_carrier(handle: object, carrier: Mapping[str, str]) -> bool:
    """Put a trace context into a handle, to stay; False if it has no room."""
    if type(handle) is not dict:
        return put_attribute(handle, dict(carrier))
    handle[CARRIER] = dict(carrier)
    return True


def carrier_in(handle: object) -> Mapping[str, str]:
    """Return the trace context in a handle, or held beside it; empty for none."""
    found = _found(handle)
    if type(found) is Branch:
        return found.carrier
    return found if isinstance(found, dict) else _NONE


def _found(handle: object) -> object:
    if (held := HELD.get(id(handle))) is not None:
        return held
    try:
        if type(handle) is dict:
            return handle.get(CARRIER)
        # Past a `__getattr__`, which may be a remote call.
        return object.__getattribute__(handle, CARRIER)
    except Exception:  # noqa: BLE001 - slots, a builtin, keys that cannot be compared
        return None


def to_plain(handle: object, plain: Any) -> Any:
    """Return a handle's plain form with its trace context, for the log.

    In the log it is JSON, which has room for it whatever kind of mapping or dataclass
    the handle is.
    """
    carrier = dict(carrier_in(handle))
    return {**plain, CARRIER: carrier} if carrier and isinstance(plain, dict) else plain


def from_plain(kind: Any, plain: Mapping[str, Any]) -> Any:
    """Build a handle from its plain form; it remembers the trace context in that."""
    handle = kind(**{k: v for k, v in plain.items() if k != CARRIER})
    carrier = carrier_in(plain)
    if carrier and not put_carrier(handle, carrier) and spans.is_set():
        remember(handle, carrier)
    return handle
