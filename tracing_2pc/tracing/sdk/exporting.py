"""The SDK's parts: a provider, its exporters, and a count of lost spans.

Importing this module imports the SDK, so it is imported inside functions only.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import socket
import sys
import uuid
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from pathlib import Path
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
from opentelemetry.util.re import parse_env_headers

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.forks import after_fork
from tracing_2pc.core.names import ATTRIBUTES
from tracing_2pc.tracing import ring
from tracing_2pc.tracing.sdk import environment
from tracing_2pc.tracing.spans import SCOPE

_LINES: Final = 512
"""Spans that are written to a ring at once."""
_PROGRAM: Final = "tracing-2pc"
"""Our own command: only a service of this name has our version."""
_PROTOCOLS: Final = {"otlp_proto_http": "http/protobuf", "otlp_proto_grpc": "grpc"}
_OTLP: Final = {
    "TRACES": ("trace_exporter", "OTLPSpanExporter"),
    "METRICS": ("metric_exporter", "OTLPMetricExporter"),
    "LOGS": ("_log_exporter", "OTLPLogExporter"),
}

logger = logging.getLogger(__name__)


class CountedExporter(SpanExporter):
    """An exporter, made by the process that uses it, and a count of its items."""

    def __init__(self, make: Callable[[], Any], signal: str = "traces") -> None:
        self._make = make
        self._signal = signal
        self.reset()
        self.taken = 0
        self.failed = 0
        self.successes = 0

    def export(self, spans: Sequence[Any]) -> Any:
        """Send a batch. One at a time: the batch processor holds a lock."""
        self.taken += len(spans)
        try:
            result = self._exporter().export(spans)
        except Exception:
            self.failed += len(spans)
            raise
        if result.name == "SUCCESS":
            self.successes += 1
        else:
            if not self.failed:
                logger.warning(
                    "%s are not delivered; work goes on without them. Look at "
                    "OTEL_EXPORTER_OTLP_ENDPOINT and ..._PROTOCOL: the base URL of "
                    "what takes OTLP, as a rule on port 4318, or 4317 for grpc",
                    self._signal,
                )
            self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        """Close the connection; a try that waits for its next one gives up."""
        self._exporter().shutdown()

    def reset(self) -> None:
        """Connect again after a fork: two processes must not share a connection."""
        self._made: Any = None

    def _exporter(self) -> Any:
        self._made = self._made or self._make()
        return self._made


class CountedBatches(BatchSpanProcessor):
    """The SDK's batch processor, knowing how many spans found its queue full."""

    def __init__(self, exporter: CountedExporter) -> None:
        self._room = environment.whole("OTEL_BSP_MAX_QUEUE_SIZE")
        schedule = environment.number("OTEL_BSP_SCHEDULE_DELAY")
        self._ended = itertools.count(1)
        self.counted = exporter
        self.overflowed = 0
        at_once = environment.batch_size("BSP")
        super().__init__(exporter, self._room, schedule, at_once)
        after_fork(exporter.reset)

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span; the oldest one goes if there is no room."""
        if span.context and span.context.trace_flags.sampled:
            waiting = next(self._ended) - self.counted.taken - self.overflowed
            self.overflowed += waiting > self._room
        super().on_end(span)

    @property
    def dropped(self) -> int:
        """Spans that found no room or could not be sent."""
        return self.overflowed + self.counted.failed


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


class Ring(SpanExporter):
    """Keeps our spans on disk, for `tracing-2pc trace`, and others about them.

    Of another library's span only attributes of ours stay.
    """

    def __init__(self, folder: Path) -> None:
        ring.prepare(folder)
        self._folder = folder
        self._is_warned = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append them in one write. Never raises: lost spans are no failure."""
        lines = [line for span in spans if (line := _kept(span))]
        try:
            if lines:
                ring.append(self._folder, b"".join(lines))
        except OSError as error:
            if not self._is_warned:
                logger.warning("%s: %s", NOT_KEPT, error)
            self._is_warned = True
        return SpanExportResult.SUCCESS


NOT_KEPT: Final = (
    "spans are not kept for `tracing-2pc trace`; work goes on without them. "
    f"Set {ring.VARIABLE} to a folder, or to {ring.OFF}"
)


def _kept(span: ReadableSpan) -> bytes | None:
    scope, line = span.instrumentation_scope, as_json(span)
    if scope is None or scope.name != SCOPE:
        shown = line["attributes"]
        if "tpc.transaction.id" not in shown:
            return None
        line["attributes"] = {k: v for k, v in shown.items() if k in ATTRIBUTES}
    line["host"] = _process(span.resource)[2]
    return json.dumps(line).encode() + b"\n"


def to_ring(folder: Path) -> BatchSpanProcessor:
    """Make what keeps spans in a ring, half a second after they have ended."""
    # All three are given: what the environment says is about what is sent.
    room, schedule = environment.QUEUE, environment.SCHEDULE_MS
    return BatchSpanProcessor(Ring(folder), room, schedule, _LINES)


def as_json(span: ReadableSpan) -> dict[str, Any]:
    """Describe a span in plain JSON; times are Unix nanoseconds."""
    service, instance, _ = _process(span.resource)
    parent = span.parent
    return {
        "name": span.name,
        **_ids(span.context),
        "parent_id": None if parent is None else f"{parent.span_id:016x}",
        "kind": span.kind.name,
        "start": span.start_time,
        "end": span.end_time,
        "service": service,
        "instance": instance,
        "attributes": dict(span.attributes or {}),
        "links": [_ids(link.context) for link in span.links],
        "status": span.status.status_code.name,
    }


def _ids(context: trace.SpanContext | None) -> dict[str, str | None]:
    if context is None:
        return {"trace_id": None, "span_id": None}
    return {
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
    }


def _process(described: Resource) -> tuple[Any, ...]:
    """Return its service, instance and host; almost all spans are of one process."""
    global _known
    resource, known = _known  # one value: threads take turns
    if resource is not described:
        names = (SERVICE_NAME, SERVICE_INSTANCE_ID, HOST_NAME)
        known = tuple(map(described.attributes.get, names))
        _known = described, known
    return known


_known: tuple[Resource | None, tuple[Any, ...]] = None, ()


def resource(service: str) -> Resource:
    """Describe this process, for its spans and its metrics. The environment wins."""
    host = socket.gethostname()
    # Jaeger compares the clocks of spans, and warns, unless their `ip` (Jaeger 2.13 and
    # older) or `host.name` is the same; for that any name of the host will do.
    ours = {SERVICE_INSTANCE_ID: _instance(os.getpid()), HOST_NAME: host, "ip": host}
    if service.startswith(_PROGRAM):
        ours[SERVICE_VERSION] = metadata.version(_PROGRAM)
    # The SDK's own id of an instance, where it has one, is new after a fork.
    described = Resource(ours).merge(Resource.create({}))
    if str(described.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return described.merge(Resource({SERVICE_NAME: service}))
    return described


@functools.cache
def _instance(_pid: int) -> str:
    return str(uuid.uuid4())


def provider(
    service: str, make: type[TracerProvider] = TracerProvider
) -> TracerProvider:
    """Make a provider without exporters."""
    return make(resource=resource(service), shutdown_on_exit=False)


def in_batches(name: str) -> CountedBatches:
    """Make what sends spans by an exporter that `OTEL_TRACES_EXPORTER` names."""
    return CountedBatches(CountedExporter(exporter("TRACES", name)))


def exporter(signal: str, name: str) -> Callable[[], Any]:
    """Return what makes an exporter that `OTEL_<signal>_EXPORTER` names.

    Raises:
        ConfigurationError: no such exporter or protocol, or headers that cannot be
            read; names the variable.
        ImportError: the library for this protocol is not installed.
    """
    if name not in ("otlp", *_PROTOCOLS):
        group = f"opentelemetry_{signal.lower()}_exporter"
        if not (points := metadata.entry_points(group=group, name=name)):
            variable = f"OTEL_{signal}_EXPORTER"
            raise ConfigurationError(f"{variable}: {name[:40]!r} is not installed")
        offered = next(iter(points)).load()
        # Standard output is the command's.
        return lambda: offered(**({"out": sys.stderr} if name == "console" else {}))
    protocol = _PROTOCOLS.get(name) or environment.protocol(signal)
    environment.check_exporter(signal, protocol)
    library = f"opentelemetry.exporter.otlp.proto.{protocol.partition('/')[0]}"
    module, of_module = _OTLP[signal]
    made = getattr(import_module(f"{library}.{module}"), of_module)
    environment.quiet(library)
    options: dict[str, Any] = {"timeout": environment.otlp_timeout(signal)}
    if headers := environment.otlp_headers(signal):
        options["headers"] = parse_env_headers(headers, liberal=True)
    return lambda: made(**options)
