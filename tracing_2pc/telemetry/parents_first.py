"""Export a span after its parent, so that a killed process leaves no half tree.

A span is exported when it ends, children before their parents. A process that dies in
between would leave children whose parent nobody ever sees. Here they wait for it, and
die with it.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from tracing_2pc.telemetry.spans import SCOPE

PATIENCE: Final = 10 * 10**9
"""Nanoseconds. A parent that has been open for longer holds nothing back. A program's
own span, which may be around a whole job, never does."""

BOUND: Final = 4096
"""Open spans that are remembered; one that never ends must not fill the memory."""


class ParentsFirst(SpanProcessor):
    """Hands ended spans on, each one after its parent if that is of this process.

    Args:
        inner: what exports them.
    """

    def __init__(self, inner: SpanProcessor) -> None:
        self._inner = inner
        self._forked()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """Begin anew: what was open belongs to the parent process."""
        # Reentrant: a collection of garbage may end a span in the middle of it.
        self._lock = threading.RLock()
        self._open: dict[int, _Open] = {}

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Remember that it is open, if it is one of ours: those are short."""
        scope = span.instrumentation_scope
        if scope is None or scope.name != SCOPE:
            return
        release: list[ReadableSpan] = []
        with self._lock:
            if len(self._open) >= BOUND:
                release = self._open.pop(next(iter(self._open))).held
            self._open[span.context.span_id] = _Open(time.time_ns())
        self._hand_on(release)

    def on_end(self, span: ReadableSpan) -> None:
        """Hand it on with what waited for it, unless its own parent is open."""
        assert span.context is not None  # noqa: S101 - for the type checker
        with self._lock:
            own = self._open.pop(span.context.span_id, None)
            ended = [span, *(own.held if own else ())]
            parent = self._open.get(span.parent.span_id) if span.parent else None
            if parent is not None and not parent.held_long():
                parent.held += ended
                return
            if parent is not None:
                ended, parent.held = [*parent.held, *ended], []
        self._hand_on(ended)

    def shutdown(self) -> None:
        """Hand on all that waits, then stop what exports it."""
        with self._lock:
            waiting = [s for each in list(self._open.values()) for s in each.held]
            self._open.clear()
        self._hand_on(waiting)
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Export what was handed on, and what has waited for too long."""
        overdue: list[ReadableSpan] = []
        with self._lock:
            for parent in list(self._open.values()):
                if parent.held and parent.held_long():
                    overdue, parent.held = [*overdue, *parent.held], []
        self._hand_on(overdue)
        return self._inner.force_flush(timeout_millis)

    def _hand_on(self, ended: list[ReadableSpan]) -> None:
        for span in ended:
            self._inner.on_end(span)


class _Open:
    """A span that has not ended, and what waits for it."""

    __slots__ = ("held", "since")

    def __init__(self, since: int) -> None:
        self.since = since
        self.held: list[ReadableSpan] = []

    def held_long(self) -> bool:
        return time.time_ns() - self.since > PATIENCE
