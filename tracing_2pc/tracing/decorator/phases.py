"""One call of a phase in one span. This is on the path of every phase: it is short.

Written out by hand: a context manager costs more than the span's own bookkeeping.
Nothing here raises but the phase itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NoOpTracer, ProxyTracer

from tracing_2pc.core.errors import ContractError
from tracing_2pc.tracing import spans
from tracing_2pc.tracing.decorator import requests_headers
from tracing_2pc.tracing.sdk import lifecycle

Method = Callable[..., Any]

_INTERNAL: Final = trace.SpanKind.INTERNAL
_last_pair: tuple[object, object] = None, None
"""A span and a carrier of one trace: the phases of a branch have the same two."""


class Phase:
    """The phase that a method is of a sink.

    Args:
        name: the word for it, also in the name of its span, `<Sink>.<name>`.
        mark: of calls inside each other, by default the phase. A call of the same
            object inside is the same span: a subclass calls its parent's phase, or
            `recover_and_commit` calls `commit`.
    """

    __slots__ = ("attributes", "key", "name", "suffix")

    def __init__(self, name: str, mark: str = "") -> None:
        self.name = name
        self.suffix = f".{name}"
        self.key = f"tpc-phase-{mark or name}"
        self.attributes = spans.registered({"tpc.phase": name})


def tracer_for(phase: Phase, sink: Any) -> trace.Tracer | None:
    """Return the tracer for a phase that is called now; None if it is only called.

    So it is where nothing is traced (a process starts if its environment asks for it),
    and where the same phase of the same object is being called already.
    """
    tracer = spans.tracer()
    if type(tracer) is ProxyTracer:
        lifecycle.start(type(sink).__name__)
        tracer = spans.tracer()
        if type(tracer) is ProxyTracer:
            return None
    if not requests_headers.carried and type(sink).__tpc_requests__:
        requests_headers.carry_context()
    return None if contexts.get_current().get(phase.key) is sink else tracer


def call(
    method: Method,
    phase: Phase,
    tracer: trace.Tracer,
    carrier: Mapping[str, str],
    attributes: dict[str, spans.Value],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call a phase in a span, under the current span or else under the carrier.

    The tracer is what `tracer_for` returned. The attributes are all of the span's, of
    the registry. The first of `args` is the sink.
    """
    current = contexts.get_current()
    parent = _parent(current, carrier) if carrier else None
    if parent is None and type(tracer) is NoOpTracer:
        return method(*args, **kwargs)
    name = type(args[0]).__name__ + phase.suffix
    around = current if parent is None else parent
    transaction = attributes.get("tpc.transaction.id") or around.get(spans.TRANSACTION)
    if transaction:
        attributes = {**attributes, "tpc.transaction.id": str(transaction)}
    try:  # as `spans.start_span`, without the cost of a call
        span = tracer.start_span(name, parent, _INTERNAL, attributes)
    except Exception:  # noqa: BLE001 - a foreign sampler or processor raised
        spans.logger.debug("a span could not be started", exc_info=True)
        span = trace.INVALID_SPAN
    inside = {**around, spans.SPAN: span, phase.key: args[0]}
    if transaction:
        inside[spans.TRANSACTION] = transaction
    token = contexts.attach(Context(inside))
    failed = None
    try:
        return method(*args, **kwargs)
    except BaseException as error:
        failed = type(error)
        raise
    finally:
        contexts.detach(token)
        spans.end_span(span, failed)


def _parent(current: Context, carrier: Mapping[str, str]) -> Context | None:
    """Return the context of the carrier; None if the current span is in its trace."""
    global _last_pair
    here = current.get(spans.SPAN)
    span, known = _last_pair  # once: another thread may write the next pair
    if span is here and known is carrier:
        return None
    parent = spans.parent(carrier)
    if parent is None:
        _last_pair = here, carrier
    return parent


def raise_if_deferred(where: str, method: Method) -> None:
    """Refuse, by `ContractError`, a phase that returns before its work is done."""
    inner = inspect.unwrap(method)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise ContractError(
            f"{where} is async, and nobody awaits a phase: make it a plain method that "
            "runs its own loop, as in `asyncio.run(...)`"
        )
    if inspect.isgeneratorfunction(inner):
        raise ContractError(
            f"{where} is a generator, whose work is done after its call: make it a "
            "plain method that returns when the work is done"
        )


def arrow_rows(value: object) -> int | None:
    """Return the rows that a batch of Arrow tells it has; None for all else."""
    try:
        rows = getattr(value, "num_rows", None)
    except Exception:  # noqa: BLE001 - a property of the user's own class
        return None
    return rows if type(rows) is int else None
