"""The wrappers that `@traced_sink` puts around a sink's phases."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from opentelemetry import context as contexts

from tracing_2pc.core.model import BranchContext, Carrier, TransactionId
from tracing_2pc.tracing import spans
from tracing_2pc.tracing.decorator import handles, phases
from tracing_2pc.tracing.decorator.handles import Branch
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
    """Open a branch under the carrier it is given; its handle remembers it."""
    takes_context = len(inspect.signature(method).parameters) > 1

    @functools.wraps(method)
    def begin(*args: Any, **kwargs: Any) -> Any:
        if not takes_context:  # the coordinator gives one; Flink's begin has none
            args = tuple(a for a in args if not isinstance(a, BranchContext))
            kwargs = {
                k: v for k, v in kwargs.items() if not isinstance(v, BranchContext)
            }
        if (tracer := phases.tracer_for(_BEGIN, args[0])) is None:
            return method(*args, **kwargs)
        carrier, attributes = read_context((*args[1:], *kwargs.values()))
        call = functools.partial(begun, method, storable_context(spans.parent(carrier)))
        return phases.call(call, _BEGIN, tracer, carrier, attributes, args, kwargs)

    return begin


def _invoke(rows: Rows, call: Method, method: Method) -> Method:
    handle_name = _first_parameter(method)

    @functools.wraps(method)
    def invoke(*args: Any, **kwargs: Any) -> Any:
        if not handles.in_use:
            return method(*args, **kwargs)
        handle = args[1] if len(args) > 1 else kwargs.get(handle_name)
        branch = handles.carrier_in(handle)
        if type(branch) is not Branch:
            return method(*args, **kwargs)
        return call(branch, method, rows(args, kwargs), args, kwargs)

    return invoke


def _of_branch(phase: Phase, method: Method) -> Method:
    handle_name = _first_parameter(method)
    ends_writing = phase.name == "pre_commit"

    @functools.wraps(method)
    def of_branch(*args: Any, **kwargs: Any) -> Any:
        if (tracer := phases.tracer_for(phase, args[0])) is None:
            return method(*args, **kwargs)
        handle: Any = args[1] if len(args) > 1 else kwargs.get(handle_name)
        parent = handles.carrier_in(handle)
        if type(parent) is Branch:
            if parent.counts:
                end_records(parent, has_failed=phase.name == "abort")
            if not ends_writing:
                handles.forget(handle)
            if parent.is_shared:
                parent = parent.parent()
        answer = phases.call(
            method, phase, tracer, parent, phase.attributes, args, kwargs
        )
        is_dict = ends_writing and type(handle) is dict
        if is_dict and handle.get(handles.CARRIER) is not parent:
            keep_context(handle, parent)
        return answer

    return of_branch


def _of_transaction(phase: Phase, method: Method) -> Method:
    @functools.wraps(method)
    def of_transaction(*args: Any, **kwargs: Any) -> Any:
        if (tracer := phases.tracer_for(phase, args[0])) is None:
            return method(*args, **kwargs)
        given = (*args[1:], *kwargs.values())
        attributes = phase.attributes
        if given and isinstance(given[0], (str, TransactionId)):
            attributes = {**attributes, "tpc.transaction.id": str(given[0])}
        carrier: Mapping[str, str] = Carrier()
        for argument in given[1:]:
            if isinstance(argument, list) and argument:
                carrier = handles.carrier_in(argument[0])
                handles.forget(*argument)
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
    branch: Branch,
    method: Method,
    rows: int,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call invoke in a span of its own, with the rows that it is given."""
    if (tracer := phases.tracer_for(_INVOKE, args[0])) is None:
        return method(*args, **kwargs)
    attributes = {**_INVOKE.attributes, "tpc.rows": rows}
    parent = branch.parent()
    return phases.call(method, _INVOKE, tracer, parent, attributes, args, kwargs)


WRAPPERS: Final[dict[str, Wrapper]] = {
    "begin": _begin,
    "invoke": functools.partial(_invoke, one_row, Branch.count),
    "invoke_batch": functools.partial(_invoke, rows_in, Branch.count),
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


def begun(method: Method, parent: Carrier, /, *args: Any, **kwargs: Any) -> Any:
    """Call begin; its handle remembers the parent of all phases, or begin's own span.

    A root that is held open until the commit would be lost in the crash that it should
    explain.
    """
    carrier = parent if "traceparent" in parent else storable_context()
    if (handle := method(*args, **kwargs)) is not None:
        handles.remember(handle, carrier)
    return handle


def read_context(
    args: Iterable[Any],
) -> tuple[Carrier, dict[str, spans.Value]]:
    """Return the carrier that begin is given, and the branch's span attributes."""
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


def end_records(branch: Branch, *, has_failed: bool) -> None:
    """Export what `invoke` calls have counted before the branch's next phase.

    A caller that goes on after an error has left that record out on purpose.
    """
    counted, branch.counts = branch.counts, {}
    for counts in counted.values():
        spans.past_span(
            f"{counts.name}.invoke",
            spans.parent(branch.parent()),
            attributes={**_INVOKE.attributes, "tpc.rows": counts.rows},
            start=counts.first,
            end=counts.last,
            error=counts.error if has_failed else None,
        )


def keep_context(handle: dict[Any, Any], carrier: Mapping[str, str]) -> None:
    """Let a plain dict carry its context from here on: no more rows go in."""
    # Another sink's pre_commit may be around this one, and goes on.
    if "traceparent" in carrier and _PRE_COMMIT.key not in contexts.get_current():
        handle[handles.CARRIER] = dict(carrier)
        handles.forget(handle)
