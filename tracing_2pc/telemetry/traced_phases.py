"""The wrappers that `@traced_sink` puts around a sink's phases."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tracing_2pc.model import BranchContext, Carrier, TransactionId
from tracing_2pc.telemetry import branches, handles, phases, spans
from tracing_2pc.telemetry.phases import Method, Phase
from tracing_2pc.telemetry.propagation import inject

_BEGIN: Final = phases.phase("begin")
_IDS: Final = (str, TransactionId)
_INVOKE: Final = phases.phase("invoke")


def _begin(method: Method) -> Method:
    takes_context = len(inspect.signature(method).parameters) > 1

    @functools.wraps(method)
    def begin(*arguments: Any, **named: Any) -> Any:
        if not takes_context:  # the coordinator gives one; Flink's begin has none
            arguments, named = without_context(arguments, named)
        return traced_begin(method, arguments, named)

    return begin


def _invoke(method: Method) -> Method:
    named_handle = _first_parameter(method)

    @functools.wraps(method)
    def invoke(*arguments: Any, **named: Any) -> Any:
        if not branches.OPEN:
            return method(*arguments, **named)
        handle = arguments[1] if len(arguments) > 1 else named.get(named_handle)
        if (branch := branches.find(handle)) is None:
            return method(*arguments, **named)
        return branch.count(method, 1, arguments, named)

    return invoke


def _invoke_batch(method: Method) -> Method:
    named_handle = _first_parameter(method)

    @functools.wraps(method)
    def invoke_batch(*arguments: Any, **named: Any) -> Any:
        if not branches.OPEN:
            return method(*arguments, **named)
        handle = arguments[1] if len(arguments) > 1 else named.get(named_handle)
        if (branch := branches.find(handle)) is None:
            return method(*arguments, **named)
        return branch.count(method, rows_in(arguments, named), arguments, named)

    return invoke_batch


def _each(rows: Callable[..., int], method: Method) -> Method:
    named_handle = _first_parameter(method)

    @functools.wraps(method)
    def invoke(*arguments: Any, **named: Any) -> Any:
        if not branches.OPEN:
            return method(*arguments, **named)
        handle = arguments[1] if len(arguments) > 1 else named.get(named_handle)
        if (branch := branches.find(handle)) is None:
            return method(*arguments, **named)
        given = rows(arguments, named)
        return traced_record(method, given, branch.carrier, arguments, named)

    return invoke


def _of_branch(phase: Phase, method: Method) -> Method:
    named_handle = _first_parameter(method)

    @functools.wraps(method)
    def of_branch(*arguments: Any, **named: Any) -> Any:
        handle = arguments[1] if len(arguments) > 1 else named.get(named_handle)
        carrier = handles.kept(handle)
        if branches.OPEN:
            carrier = after_records(phase, arguments[0], handle) or carrier
        answer = phases.call(method, phase, carrier, phase.attributes, arguments, named)
        if carrier and phase.name == "pre_commit" and not handles.kept(handle):
            handles.keep(handle, carrier)  # a sink may clear what it has sent
        return answer

    return of_branch


def _of_transaction(phase: Phase, method: Method) -> Method:
    @functools.wraps(method)
    def of_transaction(*arguments: Any, **named: Any) -> Any:
        return traced_transaction(method, phase, arguments, named)

    return of_transaction


WRAPPERS: Final[dict[str, Callable[[Method], Method]]] = {
    "begin": _begin,
    "invoke": _invoke,
    "invoke_batch": _invoke_batch,
    "pre_commit": functools.partial(_of_branch, phases.phase("pre_commit")),
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


def one_row(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Count a call of invoke."""
    return 1


def rows_in(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Count a call of invoke_batch: a batch of Arrow knows its own rows."""
    given = (*arguments[2:], *named.values())
    return next((b.num_rows for b in given if hasattr(b, "num_rows")), 1)


PER_RECORD: Final[dict[str, Callable[[Method], Method]]] = {
    "invoke": functools.partial(_each, one_row),
    "invoke_batch": functools.partial(_each, rows_in),
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
    if not phases.is_on(arguments[0]) or phases.is_inside(_BEGIN, arguments[0]):
        return method(*arguments, **named)
    carrier, attributes = _given((*arguments[1:], *named.values()))
    parent: Carrier = {}
    around = spans.parent(carrier)
    inject(parent, around)
    is_here = around is None and bool(parent)
    if not parent:
        method = functools.partial(_as_root, parent, method)
    handle = phases.call(method, _BEGIN, carrier, attributes, arguments, named)
    if handle is not None:
        if parent:
            handles.keep(handle, parent)
        if is_here:
            phases.begun_here(parent)
        branches.remember(handle, parent)
    return handle


def _as_root(carrier: Carrier, method: Method, /, *arguments: Any, **named: Any) -> Any:
    # Child of begin's span: one held open until commit would be lost in the crash it
    # should explain.
    inject(carrier)
    return method(*arguments, **named)


def _given(arguments: Iterable[Any]) -> tuple[Carrier, dict[str, spans.Value]]:
    given = next((a for a in arguments if isinstance(a, BranchContext)), None)
    if given is None:
        return {}, _BEGIN.attributes
    return given.carrier, {
        "tpc.phase": "begin",
        "tpc.transaction.id": str(given.transaction_id),
        "tpc.branch": str(given.branch),
    }


def traced_record(
    method: Method,
    rows: int,
    carrier: Carrier,
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
) -> Any:
    """Call invoke in a span of its own, with the rows that it is given."""
    attributes: dict[str, spans.Value] = {"tpc.phase": "invoke", "tpc.rows": rows}
    return phases.call(method, _INVOKE, carrier, attributes, arguments, named)


def after_records(phase: Phase, sink: Any, handle: Any) -> Carrier:
    """End what a branch counts before its next phase; return what it remembers."""
    if (branch := branches.find(handle)) is None:
        return {}
    # A handle that carries its context needs no memory after its records.
    if phase.name != "pre_commit" or handles.kept(handle):
        branches.forget(handle)
    if branch.first:
        _records(sink, branch)
    return branch.carrier


def traced_transaction(
    method: Method,
    phase: Phase,
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
) -> Any:
    """Call a phase of a transaction in one span; its first handle is the guide."""
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
    return phases.call(method, phase, carrier, attributes, arguments, named)


def forget_all(several: list[Any]) -> Carrier:
    """Close the branches of a transaction; return what the first one remembers."""
    carrier = handles.carrier_of(several[0])
    for handle in several:
        branches.forget(handle)
    return carrier


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
