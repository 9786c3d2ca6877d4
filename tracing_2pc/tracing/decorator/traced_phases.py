"""The wrappers that `@traced_sink` puts around a sink's phases."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry import trace

from tracing_2pc.core.model import BranchContext, Carrier, TransactionId
from tracing_2pc.tracing import spans
from tracing_2pc.tracing.decorator import branches, handles, phases
from tracing_2pc.tracing.decorator.phases import Method, Phase, arrow_rows
from tracing_2pc.tracing.propagation import storable_context

_BEGIN: Final = Phase("begin")
_INVOKE: Final = Phase("invoke")
_PRE_COMMIT: Final = Phase("pre_commit")
_COMMIT: Final = Phase("commit")
_ABORT: Final = Phase("abort")

Rows = Callable[[tuple[Any, ...], Mapping[str, Any]], int]
Wrapper = Callable[[Method], Method]


def _begin(method: Method) -> Method:
    """Open a branch under the carrier it is given, and remember it for its phases."""
    takes_context = len(inspect.signature(method).parameters) > 1

    @functools.wraps(method)
    def begin(*args: Any, **kwargs: Any) -> Any:
        if not takes_context:  # the coordinator gives one; Flink's begin has none
            args = tuple(a for a in args if not isinstance(a, BranchContext))
            kwargs = {
                k: v for k, v in kwargs.items() if not isinstance(v, BranchContext)
            }
        if (tracer := phases.entered(_BEGIN, args[0])) is None:
            return method(*args, **kwargs)
        carrier, attributes = read_context((*args[1:], *kwargs.values()))
        parent = storable_context(spans.parent(carrier))
        inside: list[Carrier] = [parent]
        has_parent = "traceparent" in parent
        call = method if has_parent else functools.partial(as_root, inside, method)
        handle = phases.call(call, _BEGIN, tracer, carrier, attributes, args, kwargs)
        if handle is not None:
            parent = inside[0]
            if "traceparent" in parent:
                handles.keep_in_dataclass(handle, parent)
            branches.remember(handle, parent)
        return handle

    return begin


def _invoke(rows: Rows, call: Method, method: Method) -> Method:
    handle_name = _first_parameter(method)

    @functools.wraps(method)
    def invoke(*args: Any, **kwargs: Any) -> Any:
        if not branches.OPEN:
            return method(*args, **kwargs)
        handle = args[1] if len(args) > 1 else kwargs.get(handle_name)
        if (branch := branches.find(handle)) is None:
            return method(*args, **kwargs)
        return call(branch, method, rows(args, kwargs), args, kwargs)

    return invoke


def _of_branch(phase: Phase, method: Method) -> Method:
    handle_name = _first_parameter(method)
    ends_writing = phase.name == "pre_commit"

    @functools.wraps(method)
    def of_branch(*args: Any, **kwargs: Any) -> Any:
        if (tracer := phases.entered(phase, args[0])) is None:
            return method(*args, **kwargs)
        handle = args[1] if len(args) > 1 else kwargs.get(handle_name)
        place = carrier = handles.kept(handle)
        if branches.OPEN and (branch := branches.find(handle)) is not None:
            carrier = branch.carrier
            place = end_records(phase, args[0], handle, branch)
        answer = phases.call(
            method, phase, tracer, place, phase.attributes, args, kwargs
        )
        if ends_writing and (branches.OPEN or handles.kept(handle) is not carrier):
            keep_context(handle, carrier)
        return answer

    return of_branch


def _of_transaction(phase: Phase, method: Method) -> Method:
    @functools.wraps(method)
    def of_transaction(*args: Any, **kwargs: Any) -> Any:
        if (tracer := phases.entered(phase, args[0])) is None:
            return method(*args, **kwargs)
        given = (*args[1:], *kwargs.values())
        attributes = phase.attributes
        if given and isinstance(given[0], (str, TransactionId)):
            attributes = {**attributes, "tpc.transaction.id": str(given[0])}
        carrier = Carrier()
        for argument in given[1:]:
            if isinstance(argument, list) and argument:
                carrier = close_branches(argument)
                break
        return phases.call(method, phase, tracer, carrier, attributes, args, kwargs)

    return of_transaction


def one_row(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Count a call of invoke."""
    return 1


def rows_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Count a call of invoke_batch: a batch of Arrow knows its own rows."""
    known = map(arrow_rows, (*args[2:], *kwargs.values()))
    return next((rows for rows in known if rows is not None), 1)


def traced_record(
    branch: branches.Branch,
    method: Method,
    rows: int,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call invoke in a span of its own, with the rows that it is given."""
    if (tracer := phases.entered(_INVOKE, args[0])) is None:
        return method(*args, **kwargs)
    attributes = {**_INVOKE.attributes, "tpc.rows": rows}
    place = _place(branch)
    return phases.call(method, _INVOKE, tracer, place, attributes, args, kwargs)


WRAPPERS: Final[dict[str, Wrapper]] = {
    "begin": _begin,
    "invoke": functools.partial(_invoke, one_row, branches.Branch.count),
    "invoke_batch": functools.partial(_invoke, rows_in, branches.Branch.count),
    "pre_commit": functools.partial(_of_branch, _PRE_COMMIT),
    "commit": functools.partial(_of_branch, _COMMIT),
    "abort": functools.partial(_of_branch, _ABORT),
    "recover_and_commit": functools.partial(_of_branch, _COMMIT),
    "recover_and_abort": functools.partial(_of_branch, _ABORT),
    "commit_transaction": functools.partial(
        _of_transaction, Phase("commit", "commit_transaction")
    ),
    "abort_transaction": functools.partial(
        _of_transaction, Phase("abort", "abort_transaction")
    ),
}
PER_RECORD: Final[dict[str, Wrapper]] = {
    "invoke": functools.partial(_invoke, one_row, traced_record),
    "invoke_batch": functools.partial(_invoke, rows_in, traced_record),
}
"""The wrappers that make each call a span."""


def _first_parameter(method: Method) -> str:
    names = list(inspect.signature(method).parameters)
    return names[1] if len(names) > 1 else ""


def as_root(inside: list[Carrier], method: Method, /, *args: Any, **kwargs: Any) -> Any:
    """Call begin, and tell its span: the parent of the other phases."""
    # Child of begin's span: one held open until commit would be lost in the crash it
    # should explain.
    inside[0] = storable_context()
    return method(*args, **kwargs)


def read_context(
    args: Iterable[Any],
) -> tuple[Carrier, dict[str, spans.Value]]:
    """Return the carrier that begin is given, and what its span says of the branch."""
    own_id = None
    for argument in args:
        if isinstance(argument, BranchContext):
            return argument.carrier, {
                **_BEGIN.attributes,
                "tpc.transaction.id": str(argument.transaction_id),
                "tpc.branch": str(argument.branch),
            }
        own_id = own_id or _own_id(argument)
    about = {"tpc.transaction.id": own_id} if own_id else {}
    return Carrier(), {**_BEGIN.attributes, **about}


def _own_id(context: object) -> str | None:
    """Return the transaction id of a context that is a driver's own, if it has one."""
    try:
        own = getattr(context, "transaction_id", None)
    except Exception:  # noqa: BLE001 - a class of the user's own
        return None
    return own if isinstance(own, str) else None


def end_records(
    phase: Phase, sink: Any, handle: Any, branch: branches.Branch
) -> Carrier:
    """Export what a branch counted before its next phase; return where that belongs."""
    # A handle that carries its context needs no memory after its records.
    if phase.name != "pre_commit" or handles.kept(handle) is branch.carrier:
        branches.forget(handle)
    place = _place(branch)
    # A caller that goes on after an error has left that record out on purpose.
    has_failed = phase.name == "abort"
    for name, counts in branch.counted(type(sink).__name__):
        spans.past_span(
            f"{name}.invoke",
            spans.parent(place),
            attributes={**_INVOKE.attributes, "tpc.rows": counts.rows},
            start=counts.first,
            end=counts.last,
            error=counts.error if has_failed else None,
        )
    return place


def keep_context(handle: Any, carrier: Carrier) -> None:
    """Let the handle carry its context from here on, or keep that in this process."""
    # Another sink's pre_commit may be around this one, and goes on.
    if _PRE_COMMIT.key in contexts.get_current():
        branches.prepared(handle)
    elif "traceparent" not in carrier or handles.keep(handle, carrier):
        branches.forget(handle)
    else:
        branches.prepared(handle)


def _place(branch: branches.Branch) -> Carrier:
    """Return where a branch's spans belong; empty is the current span."""
    is_inside = branch.is_shared and spans.ids_of(trace.get_current_span()).is_valid
    return Carrier() if is_inside else branch.carrier


def close_branches(several: list[Any]) -> Carrier:
    """Forget the branches of a transaction; return what its first handle carries."""
    if not branches.OPEN:
        return handles.kept(several[0])
    carrier = handles.carrier_of(several[0])
    for handle in several:
        branches.forget(handle)
    return carrier
