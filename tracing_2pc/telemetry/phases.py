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
from opentelemetry.trace import NoOpTracer, ProxyTracer, SpanKind

from tracing_2pc.model import Carrier
from tracing_2pc.telemetry import lifecycle, requests_calls, spans

Method = Callable[..., Any]

_SPAN: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, Context())))
_together: tuple[object, object] = None, None
"""A span and a carrier of its trace, which were last seen together: a branch's phases
have the same."""

_INTERNAL: Final = SpanKind.INTERNAL
_log: Final = logging.getLogger(__name__)


class Phase(NamedTuple):
    """What a method is of a sink.

    Args:
        name: the word for it.
        suffix: the same in the name of its span, `<Sink>.<name>`.
        key: in a context, whose phase this is. A call of the same object inside is the
            same span: a subclass calls its parent's phase, or `recover_and_commit`
            calls `commit`.
        attributes: what is the same in each of its spans.
    """

    name: str
    suffix: str
    key: str
    attributes: dict[str, spans.Value]


def phase(name: str, mark: str = "") -> Phase:
    """Make a phase; what its span says is checked here, once, and not per call."""
    attributes: dict[str, spans.Value] = {"tpc.phase": name}
    key = f"tpc-phase-{mark or name}"
    return Phase(name, f".{name}", key, spans.registered(attributes))


def entered(phase: Phase, sink: object) -> trace.Tracer | None:
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
    return None if contexts.get_current().get(phase.key) is sink else tracer


def call(
    method: Method,
    phase: Phase,
    tracer: trace.Tracer,
    carrier: Carrier,
    attributes: dict[str, spans.Value],
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
) -> Any:
    """Call a phase in a span, under the current span or else under the carrier.

    Args:
        method: the phase, as its author wrote it.
        phase: what it is.
        tracer: as `entered` returned it.
        carrier: where the span belongs if the current one is of another trace.
        attributes: all of the span's; of the registry, which is not looked at again.
        arguments: the sink and what it is called with.
        named: what it is called with by name.
    """
    current = contexts.get_current()
    if not requests_calls.carried:
        requests_calls.carry_context()
    parent = _parent(current, carrier) if carrier else None
    if parent is None and type(tracer) is NoOpTracer:
        return method(*arguments, **named)
    try:
        name = type(arguments[0]).__name__ + phase.suffix
        span = tracer.start_span(name, parent, _INTERNAL, attributes)
    except Exception:  # noqa: BLE001 - a foreign sampler or processor raised
        _log.debug("a span could not be started", exc_info=True)
        span = trace.INVALID_SPAN
    around = current if parent is None else parent
    inside = {**around, _SPAN: span, phase.key: arguments[0]}
    if "tpc.transaction.id" in attributes:
        inside[spans.TRANSACTION] = attributes["tpc.transaction.id"]
    token = contexts.attach(Context(inside))
    failed = None
    try:
        return method(*arguments, **named)
    except BaseException as error:
        failed = type(error)
        raise
    finally:
        contexts.detach(token)
        try:
            if failed is not None:
                spans.mark_error(span, failed)
            span.end()
        except Exception:  # noqa: BLE001 - a foreign processor raised
            _log.debug("a span could not be ended", exc_info=True)


def _parent(current: Context, carrier: Carrier) -> Context | None:
    """Return the context of the carrier; None if the current span is in its trace."""
    global _together
    here: Any = current.get(_SPAN)
    seen = _together  # once: another thread may have the next one
    if seen[0] is here and seen[1] is carrier:
        return None
    if not _is_in(here, carrier):
        return spans.parent(carrier)
    _together = here, carrier
    return None


def _is_in(span: Any, carrier: Carrier) -> bool:
    try:
        trace_id = f"{span.get_span_context().trace_id:032x}"
        return carrier["traceparent"][3:35] == trace_id
    except Exception:  # noqa: BLE001 - no span, a foreign one, a carrier of anybody's
        return False


def is_around(phase: Phase) -> bool:
    """Whether this phase is being called now, of whatever object."""
    return phase.key in contexts.get_current()


def has_span() -> bool:
    """Whether a span is current here."""
    return spans.ids_of(trace.get_current_span()).is_valid


def begun_here(carrier: Carrier) -> None:
    """Remember that a carrier was made from the current span."""
    global _together
    _together = contexts.get_value(_SPAN), carrier
