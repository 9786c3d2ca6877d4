"""Log records by OTLP. Imports the SDK, so it is imported inside functions only."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Final

from opentelemetry import _logs as api
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

from tracing_2pc.core.forks import after_fork
from tracing_2pc.tracing.propagation import extract
from tracing_2pc.tracing.sdk import environment, exporting
from tracing_2pc.tracing.sdk.log_records import FIELDS
from tracing_2pc.tracing.spans import ids_of

_EXPORTING: Final = contexts._SUPPRESS_INSTRUMENTATION_KEY


def start(service: str) -> Callable[[], object]:
    """Send each record that reaches the root logger; return what sends the rest.

    A program with a logger provider of its own sends its records itself.

    Raises:
        ConfigurationError: no such exporter, protocol, or headers.
        ImportError: the library for this protocol is not installed.
    """
    made = [exporting.exporter("LOGS", n) for n in environment.exporters("LOGS")]
    if type(api.get_logger_provider()).__name__ != "ProxyLoggerProvider":
        return lambda: None
    provider = LoggerProvider(exporting.resource(service), shutdown_on_exit=False)
    for make in made:
        exporter = exporting.CountedExporter(make, "log records")
        after_fork(exporter.reset)
        in_batches = BatchLogRecordProcessor(
            exporter,  # type: ignore[arg-type]
            environment.number("OTEL_BLRP_SCHEDULE_DELAY"),
            environment.batch_size("BLRP"),
            max_queue_size=environment.whole("OTEL_BLRP_MAX_QUEUE_SIZE"),
        )
        provider.add_log_record_processor(in_batches)
    with warnings.catch_warnings():  # its successor is no part of the SDK
        warnings.simplefilter("ignore", DeprecationWarning)
        handler = _Handler(logger_provider=provider)
    root = logging.getLogger()
    if not root.handlers and logging.lastResort:
        root.addHandler(logging.lastResort)  # it shows warnings only where none is
    root.addHandler(handler)
    return provider.shutdown


def _context_of(record: logging.LogRecord) -> Context:
    """Return the current context, or that of another span that a record names."""
    here = contexts.get_current()
    trace_id, span_id = (str(getattr(record, n, "")) for n in FIELDS[1:])
    current = trace.format_span_id(ids_of(trace.get_current_span(here)).span_id)
    if not trace_id or span_id == current:
        return here
    return extract({"traceparent": f"00-{trace_id}-{span_id}-01"}, onto=here)


class _Handler(LoggingHandler):
    """The SDK's, which raises nothing and does not feed itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record, unless it comes of sending another one."""
        is_sdk = record.name.startswith("opentelemetry.")
        if is_sdk or contexts.get_value(_EXPORTING):
            return
        try:
            token = contexts.attach(_context_of(record))
            try:
                super().emit(record)
            finally:
                contexts.detach(token)
        except Exception:  # noqa: BLE001 - a log record stops no transaction
            self.handleError(record)
