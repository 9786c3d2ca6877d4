"""Metrics that came by OTLP, as the samples of `support.metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

from support.otlp_receiver import Request

CUMULATIVE = 2


class Sent(NamedTuple):
    """What one process has said last: its name, and samples as in `support.metrics`."""

    service: str
    samples: dict[str, float]
    units: dict[str, str]


def sent(requests: Iterable[Request]) -> list[Sent]:
    """Return what each process has said last of its metrics."""
    newest: dict[str, Sent] = {}
    for request in requests:
        if request.signal == "METRICS":
            newest |= _processes(request.body)
    return list(newest.values())


def _processes(body: bytes) -> Iterator[tuple[str, Sent]]:
    told = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
    for of_resource in told.resource_metrics:
        about = {a.key: a.value.string_value for a in of_resource.resource.attributes}
        metrics = [m for s in of_resource.scope_metrics for m in s.metrics]
        yield (
            about["service.instance.id"],
            Sent(
                about["service.name"],
                dict(sample for metric in metrics for sample in _samples(metric)),
                {metric.name: metric.unit for metric in metrics},
            ),
        )


def _samples(metric: Any) -> Iterator[tuple[str, float]]:
    held = getattr(metric, metric.WhichOneof("data"))
    assert getattr(held, "aggregation_temporality", CUMULATIVE) == CUMULATIVE
    for point in held.data_points:
        labels = ",".join(f'{a.key}="{a.value.string_value}"' for a in point.attributes)
        inside = f"{{{labels}}}" if labels else ""
        if metric.WhichOneof("data") == "histogram":
            yield f"{metric.name}_count{inside}", point.count
        else:
            yield f"{metric.name}{inside}", getattr(point, point.WhichOneof("value"))
