"""A handle's memory of its branch: its trace context, and its counts.

A dataclass has it as an attribute that is no field. A plain dict gets the trace context
as a key, but no earlier than its `pre_commit` has returned: until then rows may be in
it. Until then, and for all other handles, it is kept beside the handle, in `HELD`: they
stay what their authors made them. No method of a handle is called, and nothing here
raises.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from opentelemetry import trace

from tracing_2pc.core.model import Carrier
from tracing_2pc.tracing import spans

CARRIER: Final = "tpc_carrier"
"""Key or attribute that a handle gets: with it, the trace context survives in the
log, and a commit after a restart joins the transaction's own trace."""

BOUND: Final = 64
"""Branches held at once; a task that was killed leaves its own here."""

HELD: Final[dict[int, Branch]] = {}
"""Branches by `id(handle)`, which no other object gets meanwhile: the branch goes with
the handle, or holds one that takes no weak reference."""

in_use = False
"""Whether this process has begun a branch that is traced."""

_NONE: Final = Carrier()


@dataclasses.dataclass(slots=True)
class Counts:
    """The totals of one sink's `invoke` calls. Times are Unix nanoseconds."""

    name: str
    rows: int = 0
    first: int = 0
    last: int = 0
    error: type[BaseException] | None = None
    inside: set[int] = dataclasses.field(default_factory=set)
    """Threads that are in a call of it."""


class Branch(Carrier):
    """The trace context of one branch, and its counts; pickled, it is a plain dict."""

    def __init__(self, carrier: Mapping[str, str]) -> None:
        super().__init__(carrier)
        self.counts: dict[int, Counts] = {}
        """By `id(sink)`: one sink may hand its records to another one."""
        self.handle: object = None
        """What it is held for: the handle, or a weak reference to it."""
        self.is_shared = False
        """Whether Python may give several branches this handle: equal texts, say."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def count(
        self,
        method: Callable[..., Any],
        rows: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call, and add to the counts of the sink's one `invoke` span."""
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

    def parent(self) -> Carrier:
        """Return where its spans belong; empty is the current span.

        That comes first where the handle may be shared.
        """
        if not self.is_shared:
            return self
        return _NONE if spans.ids_of(trace.get_current_span()).is_valid else self


def remember(handle: object, carrier: Mapping[str, str]) -> None:
    """Open a branch: in its handle, or beside it, where the oldest are forgotten."""
    global in_use
    in_use = True
    branch, key = Branch(carrier), id(handle)
    if put_in_dataclass(handle, branch):
        return
    try:
        branch.handle = weakref.ref(handle, lambda _: HELD.pop(key, None))
    except TypeError:
        branch.handle, branch.is_shared = handle, type(handle) is not dict
    HELD[key] = branch
    for oldest in list(HELD)[:-BOUND]:  # of a copy: threads open and close theirs
        HELD.pop(oldest, None)


def forget(*handles: object) -> None:
    """Hold them no longer: this process will be asked nothing more of them."""
    if HELD:
        for handle in handles:
            HELD.pop(id(handle), None)


def put_attribute(carried: object, value: object, name: str = CARRIER) -> bool:
    """Put something beside the fields of any object that has room for it."""
    try:
        object.__setattr__(carried, name, value)
    except Exception:  # noqa: BLE001 - slots, a builtin, a descriptor of that name
        return False
    return True


def put_in_dataclass(handle: object, carrier: Mapping[str, str]) -> bool:
    """Put a trace context beside the fields of a dataclass; False for all else."""
    return dataclasses.is_dataclass(type(handle)) and put_attribute(handle, carrier)


def carrier_in(handle: object) -> Mapping[str, str]:
    """Return a handle's trace context; a `Branch` if this process remembers it."""
    if (held := HELD.get(id(handle))) is not None:
        return held
    return mapping_in(handle, CARRIER)


def mapping_in(handle: object, name: str) -> Mapping[str, Any]:
    """Return what `put_attribute` has put there, or a key of that name has."""
    try:
        if type(handle) is dict:
            value = handle.get(name)
        else:  # past a `__getattr__`, which may be a remote call
            value = object.__getattribute__(handle, name)
    except Exception:  # noqa: BLE001 - slots, a builtin, keys that cannot be compared
        return _NONE
    return value if isinstance(value, dict) else _NONE


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
    if carrier := carrier_in(plain):
        if type(handle) is dict:
            handle[CARRIER] = carrier
        elif not put_in_dataclass(handle, carrier) and spans.is_recording():
            remember(handle, carrier)
    return handle
