"""One call of a phase in one span. This is on the path of every phase: it is short.

Written out by hand: a context manager costs more than the span's own bookkeeping.
Nothing here raises but the phase itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NoOpTracer, Span, SpanKind

from tracing_2pc.model import Carrier
from tracing_2pc.telemetry import lifecycle, requests_calls, spans

Method = Callable[..., Any]

_INSIDE: Final = contexts.create_key("tpc-phase")
_SPAN: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, Context())))
_log: Final = logging.getLogger(__name__)


class Phase(NamedTuple):
    """What a method is of a sink.

    Args:
        name: the word in its span, `<Sink>.<name>`.
        mark: a call inside a call with the same mark is one span: a subclass calls
            its parent's phase, or `recover_and_commit` calls `commit`.
        attributes: what is the same in each of its spans.
    """

    name: str
    mark: str
    attributes: dict[str, spans.Value]


def phase(name: str, mark: str = "") -> Phase:
    """Make a phase; what its span says is checked here, once, and not per call."""
    attributes: dict[str, spans.Value] = {"tpc.phase": name}
    return Phase(name, mark or name, spans.registered(attributes))


def is_on(sink: object) -> bool:
    """Whether this process traces; it starts if its environment asks for it."""
    if not lifecycle.is_set():
        lifecycle.start(type(sink).__name__)
    return lifecycle.is_set()


def is_inside(phase: Phase, sink: object) -> bool:
    """Whether this phase of this object is being called already."""
    return contexts.get_value(_INSIDE) == (phase.mark, id(sink))


def call(
    method: Method,
    phase: Phase,
    carrier: Carrier,
    attributes: dict[str, spans.Value],
    sink: object,
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
) -> Any:
    """Call a phase in a span, under the current span or else under the carrier."""
    if is_inside(phase, sink):
        return method(sink, *arguments, **named)
    requests_calls.carry_context()
    parent = spans.parent(carrier)
    tracer = spans.tracer()
    if parent is None and isinstance(tracer, NoOpTracer):
        return method(sink, *arguments, **named)
    span = _start(tracer, f"{type(sink).__name__}.{phase.name}", parent, attributes)
    token = contexts.attach(_within(span, parent, (phase.mark, id(sink)), attributes))
    failed = None
    try:
        return method(sink, *arguments, **named)
    except BaseException as error:
        failed = type(error)
        raise
    finally:
        contexts.detach(token)
        _end(span, failed)


def _start(
    tracer: trace.Tracer,
    name: str,
    parent: Context | None,
    attributes: dict[str, spans.Value],
) -> Span:
    try:
        return tracer.start_span(name, parent, SpanKind.INTERNAL, attributes)
    except Exception:  # noqa: BLE001 - a foreign sampler or processor raised
        _log.debug("a span could not be started", exc_info=True)
        return trace.INVALID_SPAN


def _within(
    span: Span,
    parent: Context | None,
    mark: tuple[str, int],
    attributes: dict[str, spans.Value],
) -> Context:
    """Return the context inside the span: all that is set there, in one copy."""
    keys: dict[str, object] = {_SPAN: span, _INSIDE: mark}
    if transaction := attributes.get("tpc.transaction.id"):
        keys[spans.TRANSACTION] = transaction
    return Context(contexts.get_current() if parent is None else parent, **keys)


def _end(span: Span, failed: type[BaseException] | None) -> None:
    try:
        if failed is not None:
            spans.mark_error(span, failed)
        span.end()
    except Exception:  # noqa: BLE001 - a foreign processor raised
        _log.debug("a span could not be ended", exc_info=True)
