"""The SDK's parts for metrics. Imports it, so it is imported in functions only."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Final

from opentelemetry.sdk.metrics import (
    Counter,
    Histogram,
    MeterProvider,
    ObservableCounter,
)
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation

from tracing_2pc.core.forks import after_fork
from tracing_2pc.tracing.sdk import environment, exporting, prometheus

_OTLP_METRICS: Final = "OTEL_EXPORTER_OTLP_METRICS"
_DELTAS: Final[dict[str, tuple[type, ...]]] = {
    "DELTA": (Counter, Histogram, ObservableCounter),
    "LOWMEMORY": (Counter, Histogram),
}
logger = logging.getLogger(__name__)


class LazyExporter(MetricExporter):
    """Makes its exporter in the thread that uses it, and warns once.

    Counts are cumulative unless `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE`
    says otherwise. After a fork the child's copy sends nothing: the parent sends
    earlier measurements.
    """

    def __init__(self, make: Callable[[], MetricExporter]) -> None:
        # The SDK reads these when it makes an exporter: too late for the reader.
        wanted = os.environ.get(f"{_OTLP_METRICS}_TEMPORALITY_PREFERENCE", "")
        deltas = _DELTAS.get(wanted.strip().upper(), ())
        shape = os.environ.get(f"{_OTLP_METRICS}_DEFAULT_HISTOGRAM_AGGREGATION", "")
        exponential = shape.strip() == "base2_exponential_bucket_histogram"
        super().__init__(
            dict.fromkeys(deltas, AggregationTemporality.DELTA),
            {Histogram: ExponentialBucketHistogramAggregation()} if exponential else {},
        )
        self._make = make
        self._is_copy = False
        after_fork(self._reset)
        self._inner: MetricExporter | None = None
        self._failed = False

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any
    ) -> MetricExportResult:
        """Send what was measured. Never raises: the next export has the whole count.

        With delta temporality what could not be sent is lost.
        """
        if self._is_copy:
            return MetricExportResult.SUCCESS
        try:
            self._inner = self._inner or self._make()
            result = self._inner.export(metrics_data, timeout_millis)
        except Exception:  # a library's fault costs metrics only
            logger.debug("metrics could not be sent", exc_info=True)
            result = MetricExportResult.FAILURE
        if result is not MetricExportResult.SUCCESS and not self._failed:
            self._failed = True
            logger.warning(
                "metrics are not delivered; work goes on without them. Look at "
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT and ..._PROTOCOL, or set "
                "OTEL_METRICS_EXPORTER=none if that collector takes traces only"
            )
        return result

    def _reset(self) -> None:
        self._is_copy = True

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Have nothing to flush."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Close the connection, if there is one; a try that waits gives up."""
        if self._inner is not None and not self._is_copy:
            self._inner.shutdown(timeout_millis)


def to_prometheus(service: str) -> tuple[MeterProvider, Callable[[], str]]:
    """Make a provider that is read on request, and the reader, which returns text."""
    reader = InMemoryMetricReader()
    provider = _provider(service, reader)
    return provider, lambda: prometheus.text(reader.get_metrics_data())


def to_exporters(service: str) -> MeterProvider:
    """Make what sends by itself, every `OTEL_METRIC_EXPORT_INTERVAL` and at the end.

    Raises:
        ConfigurationError: no such exporter, protocol, or headers.
        ImportError: the library for this protocol is not installed.
    """
    made = [exporting.exporter("METRICS", n) for n in environment.exporters("METRICS")]
    often = environment.number("OTEL_METRIC_EXPORT_INTERVAL")
    timeout = environment.number("OTEL_METRIC_EXPORT_TIMEOUT")
    exporters = map(LazyExporter, made)
    readers = [PeriodicExportingMetricReader(e, often, timeout) for e in exporters]
    return _provider(service, *readers)


def _provider(service: str, *readers: MetricReader) -> MeterProvider:
    """Make one of this process alone: its counts are series of their own."""
    resource = exporting.resource(service)
    return MeterProvider(readers, resource=resource, shutdown_on_exit=False)
