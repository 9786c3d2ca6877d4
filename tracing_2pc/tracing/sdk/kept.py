"""Spans that are kept on this machine and go nowhere else: a third of the SDK's cost.

Ids, sampling, resource and processors are the SDK's. A span lacks the parts that only
exporting and other libraries need: limits, events, locks, a copy at its end. It is
written by a thread, later.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Tracer, TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util import types

from tracing_2pc.tracing.sdk.roots import RANDOM
from tracing_2pc.tracing.spans import SCOPE, SPAN

_SCOPE: Final = InstrumentationScope(SCOPE)
_UNSET: Final = Status()


class KeptSpan(trace.Span):
    """A span of this library that is sampled, as exporters read one."""

    instrumentation_scope = _SCOPE

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        attributes: types.Attributes,
        links: Sequence[Link],
        start_time: int,
    ) -> None:
        self.name = name
        self.context = context
        self.parent = parent
        self.kind = kind
        self.attributes: dict[str, types.AttributeValue] = dict(attributes or {})
        self.links = links
        self.start_time = start_time
        self.end_time: int | None = None
        self.status = _UNSET
        self._tracer = tracer

    @property
    def resource(self) -> Resource:
        """The process's attributes."""
        return self._tracer.resource

    def get_span_context(self) -> SpanContext:
        return self.context

    def is_recording(self) -> bool:
        return self.end_time is None

    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        if self.end_time is None:
            self.attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def set_status(
        self, status: Status | StatusCode, description: str | None = None
    ) -> None:
        """Mark it as failed; an ended span stays as it is."""
        if self.end_time is None:
            if isinstance(status, StatusCode):
                status = Status(status, description)
            self.status = status

    def update_name(self, name: str) -> None:
        self.name = name

    def add_event(self, *_: Any, **_more: Any) -> None:
        """Keep no event."""

    def record_exception(self, *_: Any, **_more: Any) -> None:
        """Keep no text of an exception: it may have a record."""

    def end(self, end_time: int | None = None) -> None:
        """Hand it on, once."""
        if self.end_time is None:
            self.end_time = time.time_ns() if end_time is None else end_time
            self._tracer.span_processor.on_end(self)  # type: ignore[arg-type]


class KeptTracer(Tracer):
    """A tracer of the SDK's whose spans are `KeptSpan`."""

    def __init__(self, sdk: Tracer) -> None:
        # Not the SDK's own: what it takes has changed from release to release.
        self.sampler = sdk.sampler
        self.resource = sdk.resource
        self.id_generator = sdk.id_generator
        self.span_processor = sdk.span_processor
        self._is_random = getattr(sdk.id_generator, "is_trace_id_random", bool)

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: types.Attributes = None,
        links: Sequence[Link] | None = (),
        start_time: int | None = None,
        *_: Any,
        **_more: Any,
    ) -> trace.Span:
        """Start a span as the SDK would; one that is not sampled records nothing."""
        above = context.get(SPAN) if context else trace.get_current_span()
        parent = above.get_span_context() if isinstance(above, trace.Span) else None
        if parent is not None and parent.is_valid:
            trace_id, flags = parent.trace_id, parent.trace_flags & RANDOM
        else:
            parent, trace_id = None, self.id_generator.generate_trace_id()
            flags = RANDOM if self._is_random() else 0
        if self.sampler is DEFAULT_ON:  # as its parent; that is asked at each span
            is_sampled = parent is None or parent.trace_flags.sampled
            state = parent and parent.trace_state
        else:
            sampled = self.sampler.should_sample(
                context, trace_id, name, kind, attributes, links
            )
            is_sampled = sampled.decision is Decision.RECORD_AND_SAMPLE
            state, attributes = sampled.trace_state, sampled.attributes
        if is_sampled:
            flags |= trace.TraceFlags.SAMPLED
        ids = SpanContext(
            trace_id,
            self.id_generator.generate_span_id(),
            is_remote=False,
            trace_flags=trace.TraceFlags(flags),
            trace_state=state,
        )
        if not is_sampled:
            return trace.NonRecordingSpan(ids)
        start = time.time_ns() if start_time is None else start_time
        return KeptSpan(self, name, ids, parent, kind, attributes, links or (), start)


class KeptProvider(TracerProvider):
    """A provider of such tracers."""

    def get_tracer(self, *args: Any, **options: Any) -> trace.Tracer:
        made = super().get_tracer(*args, **options)
        return KeptTracer(made) if isinstance(made, Tracer) else made
