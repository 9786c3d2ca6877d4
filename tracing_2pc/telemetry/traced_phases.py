"""The wrappers that `@traced_sink` puts around a sink's phases."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tracing_2pc.model import BranchContext, Carrier, TransactionId
from tracing_2pc.telemetry import branches, handles, phases, spans
from tracing_2pc.telemetry.phases import Method, Phase
from tracing_2pc.telemetry.propagation import at_rest
from tracing_2pc.telemetry.rows import known_rows

_BEGIN: Final = phases.phase("begin")
_IDS: Final = (str, TransactionId)
_INVOKE: Final = phases.phase("invoke")
_PRE_COMMIT: Final = phases.phase("pre_commit")

Rows = Callable[[tuple[Any, ...], Mapping[str, Any]], int]
Call = Callable[..., Any]


def _begin(method: Method) -> Method:
    takes_context = len(inspect.signature(method).parameters) > 1

    @functools.wraps(method)
    def begin(*arguments: Any, **named: Any) -> Any:
        if not takes_context:  # the coordinator gives one; Flink's begin has none
            arguments, named = without_context(arguments, named)
        return traced_begin(method, arguments, named)

    return begin


def _invoke(rows: Rows, call: Call, method: Method) -> Method:
    named_handle = _first_parameter(method)

    @functools.wraps(method)
    def invoke(*arguments: Any, **named: Any) -> Any:
        if not branches.OPEN:
            return method(*arguments, **named)
        handle = arguments[1] if len(arguments) > 1 else named.get(named_handle)
        if (branch := branches.find(handle)) is None:
            return method(*arguments, **named)
        return call(branch, method, rows(arguments, named), arguments, named)

    return invoke


def _of_branch(phase: Phase, method: Method) -> Method:
    named_handle = _first_parameter(method)
    ends_writing = phase.name == "pre_commit"

    @functools.wraps(method)
    def of_branch(*arguments: Any, **named: Any) -> Any:
        if (tracer := phases.entered(phase, arguments[0])) is None:
            return method(*arguments, **named)
        handle = arguments[1] if len(arguments) > 1 else named.get(named_handle)
        place = carrier = handles.kept(handle)
        if branches.OPEN and (branch := branches.find(handle)) is not None:
            carrier = branch.carrier
            place = after_records(phase, arguments[0], handle, branch)
        answer = phases.call(
            method, phase, tracer, place, phase.attributes, arguments, named
        )
        if ends_writing and (branches.OPEN or handles.kept(handle) is not carrier):
            after_pre_commit(handle, carrier)
        return answer

    return of_branch


def _of_transaction(phase: Phase, method: Method) -> Method:
    @functools.wraps(method)
    def of_transaction(*arguments: Any, **named: Any) -> Any:
        return traced_transaction(method, phase, arguments, named)

    return of_transaction


def one_row(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Count a call of invoke."""
    return 1


def rows_in(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Count a call of invoke_batch: a batch of Arrow knows its own rows."""
    known = map(known_rows, (*arguments[2:], *named.values()))
    return next((rows for rows in known if rows is not None), 1)


def traced_record(
    branch: branches.Branch,
    method: Method,
    rows: int,
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
) -> Any:
    """Call invoke in a span of its own, with the rows that it is given."""
    if (tracer := phases.entered(_INVOKE, arguments[0])) is None:
        return method(*arguments, **named)
    attributes: dict[str, spans.Value] = {"tpc.phase": "invoke", "tpc.rows": rows}
    place = _place(branch)
    return phases.call(method, _INVOKE, tracer, place, attributes, arguments, named)


WRAPPERS: Final[dict[str, Callable[[Method], Method]]] = {
    "begin": _begin,
    "invoke": functools.partial(_invoke, one_row, branches.Branch.count),
    "invoke_batch": functools.partial(_invoke, rows_in, branches.Branch.count),
    "pre_commit": functools.partial(_of_branch, _PRE_COMMIT),
    "commit": functools.partial(_of_branch, phases.phase("commit")),
    "abort": functools.partial(_of_branch, phases.phase("abort")),
    "recover_and_commit": functools.partial(_of_branch, phases.phase("commit")),
    "recover_and_abort": functools.partial(_of_branch, phases.phase("abort")),
    "commit_transaction": functools.partial(
        _of_transaction, phases.phase("commit", "commit_transaction")
    ),
    "abort_transaction": functools.partial(
        _of_transaction, phases.phase("abort", "abort_transaction")
    ),
}
PER_RECORD: Final[dict[str, Callable[[Method], Method]]] = {
    "invoke": functools.partial(_invoke, one_row, traced_record),
    "invoke_batch": functools.partial(_invoke, rows_in, traced_record),
}
"""The wrappers that make each call a span."""


def without_context(
    arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a begin that does not want the coordinator's context."""
    return (
        tuple(a for a in arguments if not isinstance(a, BranchContext)),
        {k: v for k, v in named.items() if not isinstance(v, BranchContext)},
    )


def _first_parameter(method: Method) -> str:
    names = list(inspect.signature(method).parameters)
    return names[1] if len(names) > 1 else ""


def traced_begin(
    method: Method, arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> Any:
    """Open a branch under the carrier it is given, and remember it for its phases."""
    if (tracer := phases.entered(_BEGIN, arguments[0])) is None:
        return method(*arguments, **named)
    carrier, attributes = _given((*arguments[1:], *named.values()))
    around = spans.parent(carrier)
    parent = at_rest(around)
    has_parent = "traceparent" in parent
    if not has_parent:
        method = functools.partial(_as_root, parent, method)
    handle = phases.call(method, _BEGIN, tracer, carrier, attributes, arguments, named)
    if handle is not None:
        if "traceparent" in parent:
            handles.keep_in_dataclass(handle, parent)
        if has_parent and around is None:
            phases.begun_here(parent)
        branches.remember(handle, parent)
    return handle


def _as_root(carrier: Carrier, method: Method, /, *arguments: Any, **named: Any) -> Any:
    # Child of begin's span: one held open until commit would be lost in the crash it
    # should explain.
    carrier.update(at_rest())
    return method(*arguments, **named)


def _given(arguments: Iterable[Any]) -> tuple[Carrier, dict[str, spans.Value]]:
    given = next((a for a in arguments if isinstance(a, BranchContext)), None)
    if given is None:
        own = next(filter(None, map(_own_id, arguments)), None)
        about = {"tpc.transaction.id": own} if own else {}
        return {}, {**_BEGIN.attributes, **about}
    return given.carrier, {
        "tpc.phase": "begin",
        "tpc.transaction.id": str(given.transaction_id),
        "tpc.branch": str(given.branch),
    }


def _own_id(context: object) -> str | None:
    """Return the transaction id of a context that is a driver's own, if it has one."""
    try:
        found = getattr(context, "transaction_id", None)
    except Exception:  # noqa: BLE001 - it is anybody's
        return None
    return found if isinstance(found, str) else None


def after_records(
    phase: Phase, sink: Any, handle: Any, branch: branches.Branch
) -> Carrier:
    """End what a branch counts before its next phase; return where that belongs."""
    # A handle that carries its context needs no memory after its records.
    if phase.name != "pre_commit" or handles.kept(handle) is branch.carrier:
        branches.forget(handle)
    place = _place(branch)
    if branch.first:
        # A caller who goes on after an error has left that record out on purpose.
        failed = phase.name == "abort"
        for name, counts in branch.counted(type(sink).__name__):
            _records(name, counts, place, counts.error if failed else None)
    return place


def after_pre_commit(handle: Any, carrier: Carrier) -> None:
    """Let the handle carry its context from here on, or keep that in this process."""
    if phases.is_around(_PRE_COMMIT):  # a sink that hands on to this one goes on
        branches.prepared(handle)
    elif "traceparent" not in carrier or handles.keep(handle, carrier):
        branches.forget(handle)
    else:
        branches.prepared(handle)


def _place(branch: branches.Branch) -> Carrier:
    """Return where a branch's spans belong; empty is the current span."""
    return {} if branch.is_shared and phases.has_span() else branch.carrier


def traced_transaction(
    method: Method,
    phase: Phase,
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
) -> Any:
    """Call a phase of a transaction in one span; its first handle is the guide."""
    if (tracer := phases.entered(phase, arguments[0])) is None:
        return method(*arguments, **named)
    given = (*arguments[1:], *named.values()) if named else arguments[1:]
    attributes = phase.attributes
    if given and isinstance(given[0], _IDS):
        attributes = {**attributes, "tpc.transaction.id": str(given[0])}
    carrier: Carrier = {}
    for several in given[1:]:
        if isinstance(several, list) and several:
            carrier = handles.kept(several[0])
            if branches.OPEN:
                carrier = forget_all(several) or carrier
            break
    return phases.call(method, phase, tracer, carrier, attributes, arguments, named)


def forget_all(several: list[Any]) -> Carrier:
    """Close the branches of a transaction; return what the first one remembers."""
    carrier = handles.carrier_of(several[0])
    for handle in several:
        branches.forget(handle)
    return carrier


def _records(
    name: str,
    counts: branches.Branch,
    place: Carrier,
    error: type[BaseException] | None,
) -> None:
    spans.past_span(
        f"{name}.invoke",
        spans.parent(place),
        attributes={"tpc.phase": "invoke", "tpc.rows": counts.rows},
        start=counts.first,
        end=counts.last,
        error=error,
    )
