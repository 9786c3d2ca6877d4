"""The SDK's parts for metrics: a provider of our own for each way out.

Importing this module imports the SDK, so it is imported inside functions only.
"""

from __future__ import annotations

import importlib
import logging
import os
import uuid
from collections.abc import Callable
from typing import Any, Final

from opentelemetry.sdk.metrics import (
    Counter,
    Histogram,
    MeterProvider,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
    UpDownCounter,
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
from opentelemetry.sdk.resources import (
    SERVICE_INSTANCE_ID,
    OTELResourceDetector,
    Resource,
)

from tracing_2pc.telemetry import exporting, prometheus

PROTOCOLS: Final = ("http/protobuf", "grpc")
_CUMULATIVE: Final = dict.fromkeys(
    (
        Counter,
        Histogram,
        ObservableCounter,
        ObservableGauge,
        ObservableUpDownCounter,
        UpDownCounter,
    ),
    AggregationTemporality.CUMULATIVE,
)
_TIMEOUTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
_log: Final = logging.getLogger(__name__)


class Cumulative(MetricExporter):
    """An exporter that is made in the thread that uses it, and complains once.

    After a fork the child's copy sends nothing: what it holds, the parent sends.

    Args:
        make: makes the exporter that sends.
    """

    def __init__(self, make: Callable[[], MetricExporter]) -> None:
        super().__init__(preferred_temporality=_CUMULATIVE)  # type: ignore[arg-type]
        self._make = make
        self._process = os.getpid()
        self._inner: MetricExporter | None = None
        self._failed = False

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any
    ) -> MetricExportResult:
        """Send what was measured. Never raises: the next one says it all again."""
        if os.getpid() != self._process:
            return MetricExportResult.SUCCESS
        try:
            self._inner = self._inner or self._make()
            result = self._inner.export(metrics_data, timeout_millis)
        except Exception:  # noqa: BLE001 - a library's fault costs metrics only
            _log.debug("metrics could not be sent", exc_info=True)
            result = MetricExportResult.FAILURE
        if result is not MetricExportResult.SUCCESS and not self._failed:
            self._failed = True
            _log.warning(
                "metrics are not delivered; work goes on without them. Look at "
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT and ..._PROTOCOL, or set "
                "OTEL_METRICS_EXPORTER=none if that collector takes traces only"
            )
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Have nothing to flush."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Close the connection, if there is one; a try that waits gives up."""
        if self._inner is not None and os.getpid() == self._process:
            self._inner.shutdown(timeout_millis)


def to_prometheus(service: str) -> tuple[MeterProvider, Callable[[], str]]:
    """Make what is read by somebody who asks, and what reads it as text."""
    reader = InMemoryMetricReader(preferred_temporality=_CUMULATIVE)  # type: ignore[arg-type]
    return _provider(service, reader), lambda: prometheus.text(
        reader.get_metrics_data()
    )


def to_otlp(service: str, protocol: str) -> MeterProvider:
    """Make what sends by itself, every `OTEL_METRIC_EXPORT_INTERVAL` and at the end.

    Raises:
        ImportError: the library for this protocol is not installed.
        ValueError: there is no such protocol.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(
            f"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: {protocol[:20]!r} is not one of "
            f"{', '.join(PROTOCOLS)}"
        )
    way = protocol.partition("/")[0]
    library = f"opentelemetry.exporter.otlp.proto.{way}"
    exporter = importlib.import_module(f"{library}.metric_exporter").OTLPMetricExporter
    # It repeats itself at every try; `Cumulative` says it once.
    noisy = logging.getLogger(library)
    if noisy.level == logging.NOTSET:
        noisy.setLevel(logging.CRITICAL)
    own = any(os.environ.get(name) for name in _TIMEOUTS)
    timeout = None if own else exporting.TIMEOUT
    sending = Cumulative(lambda: exporter(timeout=timeout))
    return _provider(service, PeriodicExportingMetricReader(sending))


def _provider(service: str, reader: MetricReader) -> MeterProvider:
    """Make one of this process alone: its counts are series of their own."""
    named = OTELResourceDetector().detect().attributes.get(SERVICE_INSTANCE_ID)
    instance = Resource({SERVICE_INSTANCE_ID: str(named or uuid.uuid4())})
    resource = exporting.resource(service).merge(instance)
    return MeterProvider([reader], resource=resource, shutdown_on_exit=False)
