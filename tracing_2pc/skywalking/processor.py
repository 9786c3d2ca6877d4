"""The span processor: OpenTelemetry's spans as SkyWalking's segments."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Final

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanContext, TraceFlags

from . import segment_json
from .headers import Sw8
from .in_use import CALLER
from .segments import Piece, Segments, context_of
from .sender import Collector, Sender

EXIT_SECONDS: Final = 1.0


class SkyWalkingProcessor(SpanProcessor):
    """Gives every sampled span its place when it starts, and sends whole segments.

    It drives its own sender, because only it knows when a segment is whole: add it to
    the provider itself, not behind a batch processor.
    """

    def __init__(self, collector: Collector) -> None:
        self._to = collector
        self._segments = Segments()
        self._sender = Sender(collector, self._due)
        forked = weakref.WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: _call(forked))

    def _forked(self) -> None:
        """Start empty: the parent process sends the open spans."""
        self._segments = Segments()
        self._sender.forked()

    @property
    def dropped(self) -> int:
        """Segments that found no room, or that the collector refused."""
        return self._sender.dropped

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Fix the span's place."""
        context = span.context
        if context.trace_flags & TraceFlags.SAMPLED:
            # Who called matters only where nothing of ours did.
            asked = span.parent is not None and span.parent.is_remote
            caller = contexts.get_value(CALLER, parent_context) if asked else None
            given = caller if isinstance(caller, Sw8) else None
            self._segments.start(span, given, time.monotonic())
            self._sender.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Note the end."""
        context = context_of(span)
        if context.trace_flags & TraceFlags.SAMPLED:
            piece = self._segments.end(span, time.monotonic())
            if piece is not None:
                self._sender.put([piece])
                self._sender.start()

    def reserve(self, root: SpanContext, name: str, *, shared: bool) -> None:
        """Fix the place of a root that is exported later, by its ids.

        A root that is shared is reserved by several processes, and one of them exports
        it: then what is below it here stands in segments of its own.
        """
        if not root.trace_flags.sampled:
            return
        if shared:
            self._segments.reserve_elsewhere(root, name)
            return
        # A resource is given because finding one, by default, takes two milliseconds.
        resource, now = Resource.get_empty(), time.time_ns()
        stub = ReadableSpan(name, context=root, resource=resource, start_time=now)
        self._segments.reserve(stub, time.monotonic())

    def header(self, context: SpanContext) -> Sw8 | None:
        """Return the header of a request made in this span; None if it is not ours."""
        place_and_span = self._segments.place_for_header(context)
        if place_and_span is None:
            return None
        place, calling = place_and_span
        peer = segment_json.peer(calling.attributes or {}) if calling else ""
        return Sw8(
            sampled=True,
            trace_id=place.trace,
            segment_id=place.segment,
            span_index=place.position,
            service=self._to.service,
            instance=self._to.instance_here(),
            endpoint=place.endpoint[: segment_json.MAX_NAME] or "unknown",
            peer=peer or "unknown",
        )

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Send every segment in which all has ended."""
        self._sender.put(self._segments.take(lambda segment: not segment.open))
        return self._sender.flush(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Send everything, open spans as incomplete; give up after a second."""
        self._sender.put(self._segments.take(lambda _: True))
        self._sender.shutdown(EXIT_SECONDS)

    def _due(self, now: float) -> Iterator[Piece]:
        return self._segments.take(lambda segment: segment.is_due(now))


def _call(method: Callable[[], Callable[[], None] | None]) -> None:
    if (bound := method()) is not None:
        bound()
