"""Spans in tests: an in-memory exporter, and traces as indented trees of names.

def test_it(exported):
    ...
    assert span_tree(exported()) == ["tpc.transaction", "  tpc.begin"]
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from tracing_2pc.core import names
from tracing_2pc.testing import read_trace_file, span_tree
from tracing_2pc.tracing.decorator import handles

__all__ = ["Exported", "assert_registered", "exported", "read_trace_file", "span_tree"]


Exported = Callable[[], list[ReadableSpan]]
"""What `exported` is."""


@functools.cache
def _recording() -> tuple[TracerProvider, InMemorySpanExporter]:
    """One for the process: instrumented libraries keep the first they see."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exported]:
    """Record spans during this test; call it for those that have ended so far.

    At the end every span and attribute of the `tpc` namespace must be a registered one.
    """
    provider, exporter = _recording()
    exporter.clear()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield lambda: list(exporter.get_finished_spans())
    handles.HELD.clear()
    used = {name for span in exporter.get_finished_spans() for name in span.attributes}
    assert {n for n in used if n.startswith("tpc.")} <= names.ATTRIBUTES.keys()
    made = {span.name for span in exporter.get_finished_spans()}
    assert {n for n in made if n.startswith("tpc.")} <= names.SPANS.keys()


def assert_registered(spans: Sequence[ReadableSpan]) -> None:
    """Assert that the spans of whole transactions are as `names.SPANS` tells it.

    Their names, kinds and parents; a database's statements are below a request.
    """
    named = {s.context.span_id: _registered_name(s) for s in spans}
    for span in spans:
        name = _registered_name(span)
        parent = named[span.parent.span_id] if span.parent else "none"
        if name == "<STATEMENT>":
            assert span.kind is SpanKind.CLIENT, name
            assert names.SPANS[parent].kind == "server", (name, parent)
            continue
        told = names.SPANS[name]
        assert span.kind.name.lower() == told.kind, name
        own_abort = (name, parent) == ("<Sink>.abort", names.BRANCH)
        assert parent == told.parent or own_abort, (name, parent)


def _registered_name(span: ReadableSpan) -> str:
    return names.registered_name(
        span.name, span.kind.name.lower(), span.attributes or {}
    )
