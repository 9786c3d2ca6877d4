"""Roots whose ids are fixed first and which are exported last, perhaps elsewhere.

A root that is kept open is lost in the crash that it should explain. So its ids are
reserved first, and the process that is there at the end makes the span.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, TraceFlags

from tracing_2pc.core.model import Carrier, Facts, Root
from tracing_2pc.skywalking import in_use
from tracing_2pc.tracing import spans
from tracing_2pc.tracing.propagation import span_of, storable_context

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Tracer as SdkTracer

RANDOM: Final = 0x02
"""The flag of a trace id that is random."""

_described: tuple[object, str] = None, ""


def reserve(name: str, ids: tuple[int, int] | None = None) -> Root:
    """Return a root that is not exported yet; an empty one if nothing records spans.

    `ids` are its trace id and span id, where several processes must find the same; by
    default new ones.
    """
    if (sdk := _sdk_tracer()) is None:
        return Root(Carrier(), {})
    trace_id, span_id = ids or (
        sdk.id_generator.generate_trace_id(),
        sdk.id_generator.generate_span_id(),
    )
    root = _as_started(sdk, name, trace_id, span_id)
    in_use.reserve(root, name, shared=ids is not None)
    # Onto nothing: what else is current here is not the transaction's.
    carrier = storable_context(
        trace.set_span_in_context(trace.NonRecordingSpan(root), Context())
    )
    return Root(carrier, _facts(sdk) if carrier else {})


def derive_ids(text: str) -> tuple[int, int]:
    """Return the trace id and span id that follow from a text, in any process."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")


def _facts(sdk: SdkTracer) -> Facts:
    """Return when and in which process a root begins, to be stored with its carrier.

    Every process then exports the same root. Nothing of it is ever sent. Attributes
    `process.`, command lines for example, are left out.
    """
    global _described
    if _described[0] is not sdk.resource:
        process = {
            name: value
            for name, value in sdk.resource.attributes.items()
            if isinstance(value, str) and not name.startswith("process.")
        }
        _described = sdk.resource, json.dumps(process)
    return {"root_start": time.time_ns(), "root_resource": _described[1]}


def _sdk_tracer() -> SdkTracer | None:
    """Return our tracer if it is one of the SDK's, so that spans are recorded."""
    sdk = sys.modules.get("opentelemetry.sdk.trace")
    ours = spans.tracer()
    return ours if sdk is not None and isinstance(ours, sdk.Tracer) else None


def _as_started(sdk: SdkTracer, name: str, trace_id: int, span_id: int) -> SpanContext:
    from opentelemetry.sdk.trace.sampling import Decision

    sampled = sdk.sampler.should_sample(Context(), trace_id, name)
    recorded = sampled.decision is Decision.RECORD_AND_SAMPLE
    flags = TraceFlags.SAMPLED if recorded else TraceFlags.DEFAULT
    if getattr(sdk.id_generator, "is_trace_id_random", bool)():
        flags |= RANDOM
    return SpanContext(
        trace_id,
        span_id,
        is_remote=False,
        trace_flags=TraceFlags(flags),
        trace_state=sampled.trace_state,
    )


def export(
    name: str,
    carrier: Mapping[str, str],
    attributes: dict[str, spans.Value],
    links: Sequence[Link],
    times: tuple[int, int],
    error: str | None = None,
    resource: str | None = None,
    *,
    is_new: bool = False,
) -> bool:
    """Export the root that a carrier reserved; True if it is sampled and recorded.

    `times` are its start and end, in Unix nanoseconds; `resource` is that of the
    process in which it began, as its facts have it, by default this one's. With
    `is_new` it is another root, of this process and always sampled.
    """
    sdk, root = _sdk_tracer(), span_of(carrier)
    if sdk is None or not (root.trace_flags.sampled or is_new):
        return False
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Status, StatusCode

    if is_new:
        ids, sampled = sdk.id_generator, TraceFlags(TraceFlags.SAMPLED)
        new = ids.generate_trace_id(), ids.generate_span_id()
        root = SpanContext(*new, is_remote=False, trace_flags=sampled)
    span = ReadableSpan(
        name,
        context=root,
        resource=Resource(json.loads(resource)) if resource else sdk.resource,
        attributes=spans.registered(attributes),
        links=links,
        start_time=times[0],
        # Jaeger warns of a span without length.
        end_time=max(times[1], times[0] + spans.SHORTEST),
        instrumentation_scope=InstrumentationScope(spans.SCOPE),
        status=Status(StatusCode.ERROR, error) if error else Status(),
    )
    # The SDK's tracers offer no way to choose a span's ids. What they themselves do
    # at the end of a span is this call; it is the only place that goes past them.
    sdk.span_processor.on_end(span)
    return True
