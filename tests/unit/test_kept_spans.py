"""A span that is only kept tells what the SDK's own would have told."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, DEFAULT_ON, Sampler
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags

from tracing_2pc.tracing.sdk.exporting import as_json
from tracing_2pc.tracing.sdk.kept import KeptProvider
from tracing_2pc.tracing.spans import SCOPE

NEAR, FAR = 5, 6
"""Ids of callers."""


class Counted(IdGenerator):
    """Ids in order, so that two runs have the same."""

    def __init__(self) -> None:
        self._numbers = itertools.count(100)

    def generate_span_id(self) -> int:
        return next(self._numbers)

    def generate_trace_id(self) -> int:
        return next(self._numbers)


class Ended(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[Any] = []

    def on_end(self, span: ReadableSpan) -> None:
        assert span.context is not None
        if span.context.trace_flags.sampled:
            self.spans.append(span)


def caller(number: int, *, sampled: bool, flags: int = 0) -> SpanContext:
    both = flags | (TraceFlags.SAMPLED if sampled else 0)
    state = trace.TraceState([("a", "b")])
    return SpanContext(
        number, number, is_remote=True, trace_flags=TraceFlags(both), trace_state=state
    )


def below(span: trace.Span | SpanContext) -> Context:
    if isinstance(span, SpanContext):
        span = trace.NonRecordingSpan(span)
    return trace.set_span_in_context(span, Context())


def told(make: type[TracerProvider], sampler: Sampler) -> tuple[list[Any], list[Any]]:
    """Make a root with a child, spans of two callers, and one that is over."""
    provider = make(
        sampler=sampler,
        id_generator=Counted(),
        resource=Resource({"service.name": "job", "host.name": "here"}),
        shutdown_on_exit=False,
    )
    ended = Ended()
    provider.add_span_processor(ended)
    tracer = provider.get_tracer(SCOPE)
    links = [Link(caller(NEAR, sampled=True))]
    root = tracer.start_span(
        "root", Context(), attributes={"a": 1, "b": "x"}, links=links, start_time=1
    )
    child = tracer.start_span("child", below(root), SpanKind.CLIENT, start_time=2)
    child.set_attribute("a", 2)
    child.set_attributes({"c": True})
    child.set_status(StatusCode.ERROR, "no")
    child.end(3)
    child.end(4)
    child.set_attribute("late", 1)
    child.set_status(StatusCode.OK)
    made = [root, child]
    for parent in (caller(NEAR, sampled=True, flags=2), caller(FAR, sampled=False)):
        span = tracer.start_span("served", below(parent), SpanKind.SERVER, start_time=5)
        span.update_name("renamed")
        span.add_event("one")
        span.record_exception(KeyError("secret"))
        span.end(6)
        made.append(span)
    with tracer.start_as_current_span(
        "now", Context(), start_time=7, end_on_exit=False
    ) as now:
        assert trace.get_current_span() is now
    now.end(8)
    root.end(9)
    assert [span.is_recording() for span in made] == [False] * 4
    return [as_json(span) for span in ended.spans], [
        span.get_span_context() for span in [*made, now]
    ]


@pytest.mark.parametrize("sampler", [DEFAULT_ON, ALWAYS_ON, ALWAYS_OFF])
def test_a_kept_span_is_as_the_sdk_would_have_made_it(sampler):
    """Ids, flags, state, attributes, links, status, times; what came late is not."""
    kept, theirs = (told(make, sampler) for make in (KeptProvider, TracerProvider))
    assert kept == theirs
    assert bool(kept[0]) is (sampler is not ALWAYS_OFF)
