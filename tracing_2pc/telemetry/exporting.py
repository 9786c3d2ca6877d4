"""The SDK's parts: a provider, what it exports to, and a count of what was lost.

Importing this module imports the SDK, so it is imported inside functions only.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)

QUEUE: Final = 32768
SCHEDULE_MS: Final = 500
TIMEOUT: Final = 2.0

_log: Final = logging.getLogger(__name__)


class Otlp(SpanExporter):
    """OTLP over HTTP, on a connection of this process's own, counting what it sent.

    Args:
        make: makes the exporter; called again after a fork, because two processes
            must not talk on one connection.
    """

    def __init__(self, make: Callable[[], SpanExporter]) -> None:
        self._make = make
        self._inner: tuple[int, SpanExporter] | None = None
        self.taken = 0
        self.failed = 0
        self.successes = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch. One at a time: the batch processor holds a lock."""
        self.taken += len(spans)
        try:
            result = self._here().export(spans)
        except Exception:
            self.failed += len(spans)
            raise
        if result is SpanExportResult.SUCCESS:
            self.successes += 1
        else:
            if not self.failed:
                _log.warning(
                    "traces are not delivered; work goes on without them. Look at "
                    "OTEL_EXPORTER_OTLP_ENDPOINT: the base URL of what takes OTLP over "
                    "HTTP, as a rule on port 4318"
                )
            self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        """Close the connection; a try that waits for its next one gives up."""
        self._here().shutdown()

    def _here(self) -> SpanExporter:
        if self._inner is None or self._inner[0] != os.getpid():
            self._inner = (os.getpid(), self._make())
        return self._inner[1]


class CountedBatches(BatchSpanProcessor):
    """The SDK's batch processor, knowing how many spans found its queue full."""

    def __init__(self, exporter: Otlp) -> None:
        self._room = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") or QUEUE)
        schedule = float(os.environ.get("OTEL_BSP_SCHEDULE_DELAY") or SCHEDULE_MS)
        self._ended = itertools.count(1)
        self._to = exporter
        self.overflowed = 0
        super().__init__(
            exporter, max_queue_size=self._room, schedule_delay_millis=schedule
        )

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span; the oldest one goes if there is no room."""
        if span.context and span.context.trace_flags.sampled:
            waiting = next(self._ended) - self._to.taken - self.overflowed
            self.overflowed += waiting > self._room
        super().on_end(span)

    @property
    def dropped(self) -> int:
        """Spans that found no room or could not be sent."""
        return self.overflowed + self._to.failed


class TraceFile(SpanExporter):
    """Appends one line of JSON per span; many processes may share the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append in one write, which `O_APPEND` keeps whole among processes."""
        lines = "".join(json.dumps(as_json(span)) + "\n" for span in spans)
        try:
            self._append(lines.encode())
        except OSError as error:
            if not self.failed:
                _log.warning(
                    "spans are lost, work goes on without them: TPC_TRACE_FILE: %s",
                    error,
                )
            self.failed += len(spans)
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def _append(self, lines: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, lines)
        finally:
            os.close(file)


def as_json(span: ReadableSpan) -> dict[str, Any]:
    """Describe a span in plain JSON; times are Unix nanoseconds."""
    context = span.get_span_context()
    return {
        "name": span.name,
        **_ids(context),
        "parent_id": _ids(span.parent)["span_id"],
        "kind": span.kind.name,
        "start": span.start_time,
        "end": span.end_time,
        "service": span.resource.attributes.get(SERVICE_NAME),
        "attributes": dict(span.attributes or {}),
        "links": [_ids(link.context) for link in span.links],
        "status": span.status.status_code.name,
    }


def _ids(context: trace.SpanContext | None) -> dict[str, str | None]:
    if context is None:
        return {"trace_id": None, "span_id": None}
    return {
        "trace_id": trace.format_trace_id(context.trace_id),
        "span_id": trace.format_span_id(context.span_id),
    }


def resource(service: str) -> Resource:
    """Say what this process is. The environment's service name wins."""
    found = Resource.create({})
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return found.merge(Resource({SERVICE_NAME: service}))
    return found


def provider(service: str) -> TracerProvider:
    """Make a provider without exporters."""
    return TracerProvider(resource=resource(service), shutdown_on_exit=False)


def to_otlp() -> tuple[CountedBatches, Otlp]:
    """Make what sends to the collector of `OTEL_EXPORTER_OTLP_ENDPOINT`."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    own = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
    timeout = None if any(os.environ.get(name) for name in own) else TIMEOUT
    # It repeats itself at every batch; `Otlp` says it once, and `dropped` counts.
    noisy = logging.getLogger("opentelemetry.exporter.otlp.proto.http")
    if noisy.level == logging.NOTSET:
        noisy.setLevel(logging.CRITICAL)
    exporter = Otlp(lambda: OTLPSpanExporter(timeout=timeout))
    return CountedBatches(exporter), exporter


def to_file(path: str) -> tuple[SimpleSpanProcessor, TraceFile]:
    """Make what writes each span as it ends: no batch waits that a kill could lose."""
    exporter = TraceFile(Path(path))
    return SimpleSpanProcessor(exporter), exporter
