"""Export a span after its parent, so that a killed process leaves no half tree.

A span is exported when it ends, children before their parents. A process that is killed
in between would leave children whose parent is never exported. Here they wait for it,
and are lost with it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from tracing_2pc.core.forks import after_fork
from tracing_2pc.tracing.spans import SCOPE

PATIENCE: Final = 10 * 10**9
"""Nanoseconds. A parent that has been open for longer holds nothing back. A program's
own span, which may be around a whole job, never does."""

BOUND: Final = 4096
"""Open spans that are remembered; one that never ends must not fill the memory."""


class ParentsFirst(SpanProcessor):
    """Hands ended spans on, each one after its parent if that is of this process."""

    def __init__(self, inner: SpanProcessor) -> None:
        self._inner = inner
        self._reset()
        after_fork(self._reset)

    def _reset(self) -> None:
        """Start empty: open spans belong to the parent process."""
        # Reentrant: a collection of garbage may end a span in the middle of it.
        self._lock = threading.RLock()
        self._open: dict[int, _OpenParent] = {}

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Remember that it is open, if it is one of ours: those are short."""
        scope = span.instrumentation_scope
        if scope is None or scope.name != SCOPE:
            return
        release: list[ReadableSpan] = []
        with self._lock:
            if len(self._open) >= BOUND:
                release = self._open.pop(next(iter(self._open))).waiting
            self._open[span.context.span_id] = _OpenParent(time.time_ns())
        self._hand_on(release)

    def on_end(self, span: ReadableSpan) -> None:
        """Pass it on with the spans that waited for it, unless its parent is open."""
        assert span.context is not None  # noqa: S101 - for the type checker
        with self._lock:
            own = self._open.pop(span.context.span_id, None)
            ended = [span, *(own.waiting if own else ())]
            parent = self._open.get(span.parent.span_id) if span.parent else None
            if parent is not None and not parent.is_old():
                parent.waiting += ended
                return
            if parent is not None:
                ended, parent.waiting = [*parent.waiting, *ended], []
        self._hand_on(ended)

    def shutdown(self) -> None:
        """Hand on all that waits, then stop what exports it."""
        with self._lock:
            waiting = [s for each in list(self._open.values()) for s in each.waiting]
            self._open.clear()
        self._hand_on(waiting)
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Export the spans passed on, and those that have waited for too long."""
        overdue: list[ReadableSpan] = []
        with self._lock:
            for parent in list(self._open.values()):
                if parent.waiting and parent.is_old():
                    overdue, parent.waiting = [*overdue, *parent.waiting], []
        self._hand_on(overdue)
        return self._inner.force_flush(timeout_millis)

    def _hand_on(self, ended: list[ReadableSpan]) -> None:
        for span in ended:
            self._inner.on_end(span)


@dataclass(slots=True)
class _OpenParent:
    """A span that has not ended, and the spans that wait for it."""

    since: int
    waiting: list[ReadableSpan] = field(default_factory=list)

    def is_old(self) -> bool:
        return time.time_ns() - self.since > PATIENCE
