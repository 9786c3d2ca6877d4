"""Log records by OTLP, beside what the program does with them.

Importing this module imports the SDK, so it is imported inside functions only.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Final

from opentelemetry import _logs as api
from opentelemetry import context as contexts
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

from tracing_2pc.core.forks import after_fork
from tracing_2pc.tracing.sdk import environment, exporting

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
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter))  # type: ignore[arg-type]
    with warnings.catch_warnings():  # its successor is no part of the SDK
        warnings.simplefilter("ignore", DeprecationWarning)
        handler = _Handler(logger_provider=provider)
    logging.getLogger().addHandler(handler)
    return provider.shutdown


class _Handler(LoggingHandler):
    """The SDK's, which raises nothing and does not feed itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record, unless it comes of sending another one."""
        is_sdk = record.name.startswith("opentelemetry.")
        if is_sdk or contexts.get_value(_EXPORTING):
            return
        try:
            super().emit(record)
        except Exception:  # noqa: BLE001 - a log record stops no transaction
            self.handleError(record)
