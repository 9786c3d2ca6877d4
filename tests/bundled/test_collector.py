"""What a real collector makes of spans, with the bundled configuration."""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from backends import jaeger as backend
from backends.jaeger import Jaeger, jaeger
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import format_trace_id
from support.waiting import until

from bundled.files import JAEGER

PROCESSES = 30
LIMIT = 200
pytestmark = [
    pytest.mark.dashboards,
    pytest.mark.skipif(
        not os.environ.get("TPC_JAEGER"),
        reason="a real Jaeger is asked by `make test-dashboards`",
    ),
]


@pytest.fixture
def collector(tmp_path, monkeypatch) -> Iterator[Jaeger]:
    """One with the bundled configuration, which counts spans each second."""
    config, interval = tmp_path / "config.yaml", "metrics_flush_interval: "
    text = JAEGER.read_text(encoding="utf-8")
    assert f"{interval}15s" in text
    config.write_text(text.replace(f"{interval}15s", f"{interval}1s"))
    monkeypatch.setattr(backend, "CONFIG", config)
    with jaeger(Path(os.environ["TPC_JAEGER"]), tmp_path) as running:
        yield running


def send(collector: Jaeger, instance: str, *spans: str) -> None:
    """Be a process of the service `orders`, which ends some spans."""
    about = {"service.name": "orders", "service.instance.id": instance}
    provider = TracerProvider(resource=Resource(about), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(f"{collector.endpoint}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for name in spans:
        provider.get_tracer("test").start_span(name).end()
    provider.shutdown()


def scraped(collector: Jaeger) -> list[str]:
    """Return the lines that Prometheus gets, with exemplars."""
    accept = {"Accept": "application/openmetrics-text"}
    url = f"http://{collector.metrics}/metrics"
    with urllib.request.urlopen(urllib.request.Request(url, headers=accept)) as answer:
        return answer.read().decode().splitlines()


def calls(collector: Jaeger) -> dict[str, float]:
    """Return how many spans it has counted, by series."""
    lines = (line.split(" # ")[0] for line in scraped(collector))
    pairs = (line.rpartition(" ") for line in lines)
    name = "traces_span_metrics_calls_total{"
    return {what: float(n) for what, _, n in pairs if what.startswith(name)}


def test_processes_of_a_service_share_their_series(collector):
    """Executors come and go: each would leave its series behind, for ever."""
    for number in range(PROCESSES):
        send(collector, f"executor-{number}", "tpc.branch")
    found = until(lambda: calls(collector), lambda c: sum(c.values()) == PROCESSES)
    (series,) = found
    assert 'job="orders"' in series


def test_spans_of_ever_new_names_are_bounded(collector):
    """What a library names by its paths, say: the rest is one series."""
    names = [f"GET /{number}" for number in range(LIMIT + 100)]
    send(collector, "driver", *names)
    found = until(lambda: calls(collector), lambda c: sum(c.values()) == len(names))
    assert len(found) == LIMIT + 1
    (rest,) = [n for what, n in found.items() if re.search("overflow", what)]
    assert rest == 100


def test_a_measured_time_keeps_its_trace(collector):
    """An exemplar of our histograms goes through the collector, for Prometheus."""
    exporter = OTLPMetricExporter(f"{collector.endpoint}/v1/metrics")
    reader = PeriodicExportingMetricReader(exporter)
    meters = MeterProvider([reader], shutdown_on_exit=False)
    times = meters.get_meter("test").create_histogram("tpc.phase.duration", "s")
    with TracerProvider().get_tracer("test").start_as_current_span("one") as span:
        times.record(0.3)
    meters.shutdown()
    trace_id = format_trace_id(span.get_span_context().trace_id)
    bucket = "tpc_phase_duration_seconds_bucket"
    until(
        lambda: [
            line
            for line in scraped(collector)
            if line.startswith(bucket) and f'trace_id="{trace_id}"' in line
        ]
    )
