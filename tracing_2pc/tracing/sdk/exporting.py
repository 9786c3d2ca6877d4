"""The SDK's parts: a provider, what it exports to, and a count of what was lost.

Importing this module imports the SDK, so it is imported inside functions only.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import json
import logging
import os
import socket
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.sdk.resources import (
    HOST_NAME,
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    SERVICE_VERSION,
    Resource,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)

from tracing_2pc.core.forks import after_fork
from tracing_2pc.tracing.sdk import environment

QUEUE: Final = 32768
SCHEDULE_MS: Final = 500
_PROGRAM: Final = "tracing-2pc"
"""Our own command: only a service of this name has our version."""

logger = logging.getLogger(__name__)


class Otlp(SpanExporter):
    """OTLP over HTTP, on a connection of this process's own, counting what it sent."""

    def __init__(self, make: Callable[[], SpanExporter]) -> None:
        self._make = make
        self.reset()
        self.taken = 0
        self.failed = 0
        self.successes = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch. One at a time: the batch processor holds a lock."""
        self.taken += len(spans)
        try:
            result = self._exporter().export(spans)
        except Exception:
            self.failed += len(spans)
            raise
        if result is SpanExportResult.SUCCESS:
            self.successes += 1
        else:
            if not self.failed:
                logger.warning(
                    "traces are not delivered; work goes on without them. Look at "
                    "OTEL_EXPORTER_OTLP_ENDPOINT: the base URL of what takes OTLP over "
                    "HTTP, as a rule on port 4318"
                )
            self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        """Close the connection; a try that waits for its next one gives up."""
        self._exporter().shutdown()

    def reset(self) -> None:
        """Make the connection anew after a fork: two processes must not share it."""
        self._made: SpanExporter | None = None

    def _exporter(self) -> SpanExporter:
        self._made = self._made or self._make()
        return self._made


class CountedBatches(BatchSpanProcessor):
    """The SDK's batch processor, knowing how many spans found its queue full."""

    def __init__(self, exporter: Otlp) -> None:
        self._room = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") or QUEUE)
        schedule = float(os.environ.get("OTEL_BSP_SCHEDULE_DELAY") or SCHEDULE_MS)
        self._ended = itertools.count(1)
        self.otlp = exporter
        self.overflowed = 0
        super().__init__(exporter, self._room, schedule)
        after_fork(exporter.reset)

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span; the oldest one goes if there is no room."""
        if span.context and span.context.trace_flags.sampled:
            waiting = next(self._ended) - self.otlp.taken - self.overflowed
            self.overflowed += waiting > self._room
        super().on_end(span)

    @property
    def dropped(self) -> int:
        """Spans that found no room or could not be sent."""
        return self.overflowed + self.otlp.failed


class TraceFile(SpanExporter):
    """Appends one line of JSON per span; many processes may share the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append in one write, which `O_APPEND` keeps whole among processes."""
        lines = "".join(json.dumps(as_json(span)) + "\n" for span in spans)
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(file, lines.encode())
            finally:
                os.close(file)
        except OSError as error:
            if not self.failed:
                logger.warning(
                    "spans are lost, work goes on without them: TPC_TRACE_FILE: %s",
                    error,
                )
            self.failed += len(spans)
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS


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
    """Describe this process, for its spans and its metrics. The environment wins."""
    host = socket.gethostname()
    # Jaeger compares the clocks of spans, and warns, unless their `ip` (Jaeger 2.13 and
    # older) or `host.name` is the same; for that any name of the host will do.
    ours = {SERVICE_INSTANCE_ID: _instance(os.getpid()), HOST_NAME: host, "ip": host}
    if service.startswith(_PROGRAM):
        ours[SERVICE_VERSION] = importlib.metadata.version(_PROGRAM)
    # The SDK's own id of an instance, where it has one, is new after a fork.
    described = Resource(ours).merge(Resource.create({}))
    if str(described.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return described.merge(Resource({SERVICE_NAME: service}))
    return described


@functools.cache
def _instance(_pid: int) -> str:
    return str(uuid.uuid4())


def provider(service: str) -> TracerProvider:
    """Make a provider without exporters."""
    return TracerProvider(resource=resource(service), shutdown_on_exit=False)


def to_otlp() -> CountedBatches:
    """Make what sends to the collector of `OTEL_EXPORTER_OTLP_ENDPOINT`."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    environment.quiet("opentelemetry.exporter.otlp.proto.http")
    timeout = environment.otlp_timeout("TRACES")
    return CountedBatches(Otlp(lambda: OTLPSpanExporter(timeout=timeout)))
