"""Roots whose ids are fixed first and which are exported last, perhaps elsewhere.

A root that is kept open is lost in the crash that it should explain. So its ids are
reserved, everybody works under them, and the span is made by whoever is there at the
end: another process, or another life of the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, TraceFlags

from tracing_2pc.model import Carrier
from tracing_2pc.skywalking import active as skywalking
from tracing_2pc.telemetry import spans
from tracing_2pc.telemetry.propagation import at_rest, ids_at_rest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Tracer as SdkTracer

_RANDOM: Final = 0x02


def reserve(name: str, ids: tuple[int, int] | None = None) -> Carrier:
    """Do what the SDK does when it starts a root, and start none.

    Args:
        name: of the root; a sampler may look at it.
        ids: trace id and span id, where several processes must find the same; by
            default new ones.

    Returns:
        The carrier; empty if nothing records spans in this process.
    """
    if (sdk := spans.sdk_tracer()) is None:
        return {}
    trace_id, span_id = ids or (
        sdk.id_generator.generate_trace_id(),
        sdk.id_generator.generate_span_id(),
    )
    root = _as_started(sdk, name, trace_id, span_id)
    skywalking.reserve(root, name, shared=ids is not None)
    # Onto nothing: what else is current here is not the transaction's.
    return at_rest(trace.set_span_in_context(trace.NonRecordingSpan(root), Context()))


def _as_started(sdk: SdkTracer, name: str, trace_id: int, span_id: int) -> SpanContext:
    from opentelemetry.sdk.trace.sampling import Decision

    sampled = sdk.sampler.should_sample(Context(), trace_id, name)
    recorded = sampled.decision is Decision.RECORD_AND_SAMPLE
    flags = TraceFlags.SAMPLED if recorded else TraceFlags.DEFAULT
    if getattr(sdk.id_generator, "is_trace_id_random", bool)():
        flags |= _RANDOM
    return SpanContext(
        trace_id,
        span_id,
        is_remote=False,
        trace_flags=TraceFlags(flags),
        trace_state=sampled.trace_state,
    )


def export(
    name: str,
    carrier: Carrier,
    attributes: dict[str, spans.Value],
    links: Sequence[Link],
    times: tuple[int, int],
) -> bool:
    """Export the root that a carrier reserved; True if it is sampled and recorded.

    Args:
        name: of the root.
        carrier: as `reserve` returned it.
        attributes: of the registry.
        links: to other spans.
        times: start and end, in Unix nanoseconds.
    """
    sdk = spans.sdk_tracer()
    root = context_of(carrier)
    if sdk is None or not root.trace_flags.sampled:
        return False
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    span = ReadableSpan(
        name,
        context=root,
        resource=sdk.resource,
        attributes=spans.registered(attributes),
        links=links,
        start_time=times[0],
        end_time=max(times),  # two clocks may have written these
        instrumentation_scope=InstrumentationScope(spans.SCOPE),
    )
    # The SDK's tracers offer no way to choose a span's ids. What they themselves do
    # at the end of a span is this call; it is the only place that goes past them.
    sdk.span_processor.on_end(span)
    return True


def context_of(carrier: Carrier) -> SpanContext:
    """Return the span that a carrier names, as if it were of this process."""
    found = ids_at_rest(carrier)
    return SpanContext(
        found.trace_id,
        found.span_id,
        is_remote=False,
        trace_flags=found.trace_flags,
        trace_state=found.trace_state,
    )
