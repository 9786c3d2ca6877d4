"""The span processor: what OpenTelemetry starts and ends, in SkyWalking's segments."""

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

from tracing_2pc.skywalking import active, conversion
from tracing_2pc.skywalking.headers import Sw8
from tracing_2pc.skywalking.segments import Piece, Segments, context_of
from tracing_2pc.skywalking.sender import Collector, Sender

EXIT_SECONDS: Final = 1.0
_SHARDS: Final = 16


class SkyWalkingProcessor(SpanProcessor):
    """Gives every sampled span its place when it starts, and sends whole segments.

    It drives its own sender, because only it knows when a segment is whole: add it to
    the provider itself, not behind a batch processor.
    """

    def __init__(self, collector: Collector) -> None:
        self._to = collector
        self._sender = Sender(collector, self._due)
        self._shards = _shards()
        forked = weakref.WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: _call(forked))

    def _forked(self) -> None:
        """Begin anew: what was open is the parent process's to send."""
        self._shards = _shards()
        self._sender.forked()

    @property
    def dropped(self) -> int:
        """Segments that found no room, or that the collector refused."""
        return self._sender.dropped

    def _of(self, context: SpanContext) -> Segments:
        return self._shards[context.trace_id % _SHARDS]

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Fix the span's place."""
        context = span.context
        if context.trace_flags & TraceFlags.SAMPLED:
            # Who called matters only where nothing of ours did.
            asked = span.parent is not None and span.parent.is_remote
            caller = (
                contexts.get_value(active.CALLER, parent_context) if asked else None
            )
            given = caller if isinstance(caller, Sw8) else None
            shard = self._shards[context.trace_id % _SHARDS]
            shard.start(span, given, time.monotonic())
            self._sender.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Note the end."""
        context = context_of(span)
        if context.trace_flags & TraceFlags.SAMPLED:
            shard = self._shards[context.trace_id % _SHARDS]
            piece = shard.end(span, time.monotonic())
            if piece is not None:
                self._sender.put([piece])
                self._sender.start()

    def reserve(self, root: SpanContext, name: str, *, shared: bool) -> None:
        """Fix the place of a root that is exported later, by its ids."""
        if not root.trace_flags.sampled:
            return
        if shared:
            self._of(root).know(root, name)
            return
        # A resource is given because finding one, by default, takes two milliseconds.
        stub = ReadableSpan(
            name,
            context=root,
            resource=Resource.get_empty(),
            start_time=time.time_ns(),
        )
        self._of(root).reserve(stub, time.monotonic())

    def header(self, context: SpanContext) -> Sw8 | None:
        """Return what a request says that this span makes; None if it is not ours."""
        promised = self._of(context).promise(context)
        if promised is None:
            return None
        place, calling = promised
        peer = conversion.peer(calling.attributes or {}) if calling else ""
        return Sw8(
            sampled=True,
            trace_id=place.trace,
            segment_id=place.segment,
            span_index=place.position,
            service=self._to.service,
            instance=self._to.instance_here(),
            endpoint=place.endpoint[: conversion.MAX_NAME] or "unknown",
            peer=peer or "unknown",
        )

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Send every segment in which all has ended."""
        for shard in self._shards:
            self._sender.put(shard.whole())
        return self._sender.flush(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Send everything, what is open as incomplete; give up after a second."""
        for shard in self._shards:
            self._sender.put(shard.everything())
        self._sender.shutdown(EXIT_SECONDS)

    def _due(self, now: float) -> Iterator[Piece]:
        for shard in self._shards:
            yield from shard.due(now)


def _shards() -> tuple[Segments, ...]:
    return tuple(Segments() for _ in range(_SHARDS))


def _call(method: Callable[[], Callable[[], None] | None]) -> None:
    if (bound := method()) is not None:
        bound()
