"""`@traced_sink`: a span per phase of a sink, and its context in the calls it makes.

The class is changed in place, so its name, its pickling and `super()` stay as they
are. The wrappers reach everything through importable modules: a class of the main
program is pickled by value, and a copied global would be a second, empty memory.
Tracing is on in a process that has a tracer provider; `begin` starts ours if the
environment asks for one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, overload

from opentelemetry import context as contexts
from opentelemetry.trace import SpanKind

from tracing_2pc.errors import ContractError
from tracing_2pc.model import BranchContext, Carrier
from tracing_2pc.telemetry import branches, lifecycle, requests_calls, spans
from tracing_2pc.telemetry.propagation import inject

CARRIER: Final = "tpc_carrier"
"""Key that a handle which is a dict gets: with it, the trace context survives in the
log, and a commit after a restart joins the transaction's own trace."""

_INSIDE: Final = contexts.create_key("tpc-phase")
_Method = Callable[..., Any]
_Class = TypeVar("_Class", bound=type)


@overload
def traced_sink(sink: _Class, /) -> _Class: ...


@overload
def traced_sink(
    *,
    begin: str = "begin",
    invoke: str = "invoke",
    pre_commit: str = "pre_commit",
    commit: str = "commit",
    abort: str = "abort",
) -> Callable[[_Class], _Class]: ...


def traced_sink(sink: _Class | None = None, /, **methods: str) -> Any:
    """Trace a sink: any class with begin, invoke, pre_commit, commit and abort.

    Every phase becomes a span `<Sink>.<phase>`, `invoke` one span per branch with a
    count; calls made inside with `requests` carry the trace context, if the
    package's `requests` extra is installed (else send `trace_headers()`). Arguments,
    results and errors pass unchanged, but for a key `tpc_carrier` in a handle that
    is a dict. Phases with other names are named: `@traced_sink(begin="open")`. A
    class that says `__tpc_traced__ = True` traces its own methods and is left alone.

    Raises:
        ContractError: a method that was named is not there.
    """
    if sink is None:
        return functools.partial(_trace, names=methods)
    return _trace(sink, names=methods)


def trace_headers() -> dict[str, str]:
    """Return the current trace context as headers, for clients other than requests."""
    return spans.current_carrier()


def _trace(sink: _Class, names: dict[str, str]) -> _Class:
    for phase, wrap in _WRAPPERS.items():
        name = names.get(phase, phase)
        method, owner = _find(sink, name)
        if method is None and phase in names:
            raise ContractError(f"{sink.__name__} has no method {name!r} ({phase})")
        if method is not None and "__tpc_traced__" not in vars(owner):
            setattr(sink, name, wrap(method))
    sink.__tpc_traced__ = True  # type: ignore[attr-defined]
    return sink


def _find(sink: type, name: str) -> tuple[_Method | None, type]:
    for owner in sink.__mro__:
        if inspect.isfunction(method := vars(owner).get(name)):
            return method, owner
    return None, sink


def _begin(method: _Method) -> _Method:
    takes_context = len(inspect.signature(method).parameters) > 1

    @functools.wraps(method)
    def begin(self: Any, *context: Any, **named: Any) -> Any:
        if not takes_context:
            context, named = (), {}
        return traced_begin(method, self, *context, **named)

    return begin


def _invoke(method: _Method) -> _Method:
    @functools.wraps(method)
    def invoke(self: Any, handle: Any, record: Any) -> Any:
        if not branches.OPEN or (branch := branches.find(handle)) is None:
            return method(self, handle, record)
        return branch.count(method, 1, self, handle, record)

    return invoke


def _invoke_batch(method: _Method) -> _Method:
    @functools.wraps(method)
    def invoke_batch(self: Any, handle: Any, batch: Any) -> Any:
        if not branches.OPEN or (branch := branches.find(handle)) is None:
            return method(self, handle, batch)
        rows = getattr(batch, "num_rows", 1)
        return branch.count(method, rows, self, handle, batch)

    return invoke_batch


def _of_branch(phase: str, method: _Method) -> _Method:
    @functools.wraps(method)
    def of_branch(self: Any, handle: Any) -> Any:
        return traced_phase(method, phase, self, handle)

    return of_branch


def _of_transaction(phase: str, method: _Method) -> _Method:
    @functools.wraps(method)
    def of_transaction(self: Any, transaction: Any, *handles: Any) -> Any:
        return traced_transaction(method, phase, self, transaction, *handles)

    return of_transaction


_WRAPPERS: Final[dict[str, Callable[[_Method], _Method]]] = {
    "begin": _begin,
    "invoke": _invoke,
    "invoke_batch": _invoke_batch,
    "pre_commit": functools.partial(_of_branch, "pre_commit"),
    "commit": functools.partial(_of_branch, "commit"),
    "abort": functools.partial(_of_branch, "abort"),
    "commit_transaction": functools.partial(_of_transaction, "commit"),
    "abort_transaction": functools.partial(_of_transaction, "abort"),
}


def traced_begin(method: _Method, sink: Any, *context: Any, **named: Any) -> Any:
    """Open a branch under the carrier it is given, and remember it for its phases."""
    lifecycle.start(type(sink).__name__)
    if not lifecycle.is_set():
        return method(sink, *context, **named)
    given = next((c for c in (*context, *named.values())), None)
    carrier: Carrier = {}
    attributes: dict[str, spans.Value] = {}
    if isinstance(given, BranchContext):
        attributes["tpc.transaction.id"] = str(given.transaction_id)
        attributes["tpc.branch"] = str(given.branch)
        carrier = given.carrier
    parent: Carrier = {}
    inject(parent, spans.parent(carrier))
    handle = _inside(method, "begin", parent, attributes, sink, *context, **named)
    if isinstance(handle, dict) and parent:
        handle.setdefault(CARRIER, parent)
    if handle is not None and branches.find(handle) is None:
        branches.remember(handle, parent)
    return handle


def traced_phase(method: _Method, phase: str, sink: Any, handle: Any) -> Any:
    """Call a phase of one branch in a span, after the span of its records."""
    if not lifecycle.is_set():
        return method(sink, handle)
    branch = branches.find(handle)
    carrier = _carrier(handle, branch)
    if branch is not None and branch.first:
        _records(sink, branch)
    # A dict carries its context on; of any other handle this process must remember it.
    if phase != "pre_commit" or isinstance(handle, dict):
        branches.forget(handle)
    return _inside(method, phase, carrier, {}, sink, handle)


def traced_transaction(
    method: _Method, phase: str, sink: Any, transaction: Any, *handles: Sequence[Any]
) -> Any:
    """Call a phase of a whole transaction in one span."""
    if not lifecycle.is_set():
        return method(sink, transaction, *handles)
    first = next((h for several in handles for h in several), None)
    carrier = _carrier(first, branches.find(first))
    attributes = {"tpc.transaction.id": str(transaction)}
    return _inside(method, phase, carrier, attributes, sink, transaction, *handles)


def _inside(
    method: _Method,
    phase: str,
    carrier: Carrier,
    attributes: dict[str, Any],
    sink: Any,
    *arguments: Any,
    **named: Any,
) -> Any:
    mark = (method.__name__, id(sink))
    if contexts.get_value(_INSIDE) == mark:  # a subclass calls its parent's phase
        return method(sink, *arguments, **named)
    requests_calls.carry_context()
    context = contexts.set_value(_INSIDE, mark, spans.parent(carrier))
    name = f"{type(sink).__name__}.{phase}"
    attributes = {"tpc.phase": phase, **attributes}
    with spans.OpenSpan(name, SpanKind.INTERNAL, context, attributes):
        return method(sink, *arguments, **named)


def _records(sink: Any, branch: branches.Branch) -> None:
    spans.past_span(
        f"{type(sink).__name__}.invoke",
        spans.parent(branch.carrier),
        attributes={"tpc.phase": "invoke", "tpc.rows": branch.rows},
        start=branch.first,
        end=branch.last,
        error=branch.error,
    )
    branch.first = 0


def _carrier(handle: Any, branch: branches.Branch | None) -> Carrier:
    kept = handle.get(CARRIER) if isinstance(handle, dict) else None
    if isinstance(kept, dict):
        return kept
    return {} if branch is None else branch.carrier
