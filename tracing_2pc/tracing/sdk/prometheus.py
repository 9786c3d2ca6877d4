"""The SDK's measurements as text, for Prometheus.

Written here, because `opentelemetry-exporter-prometheus` lets us use one minor version
of the SDK only, has labels for the scope that most of those we allow cannot turn off,
and gives one of two scrapes at a time the other one's samples as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from tracing_2pc.core.names import METRICS, prometheus_name

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint, Metric, MetricsData

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def text(read: MetricsData | None) -> str:
    """Write what was read, in the order of the registry, as Prometheus names it."""
    metrics = {
        metric.name: metric
        for of_resource in (read.resource_metrics if read else ())
        for of_scope in of_resource.scope_metrics
        for metric in of_scope.metrics
    }
    known = [metrics[name] for name in METRICS if name in metrics]
    return "".join(f"{line}\n" for metric in known for line in _lines(metric))


def _lines(metric: Metric) -> Iterator[str]:
    name, known = prometheus_name(metric.name), METRICS[metric.name]
    yield f"# HELP {name} {known.meaning.translate(_HELP)}"
    yield f"# TYPE {name} {known.kind}"
    for point in metric.data.data_points:
        labels = {key: str(value) for key, value in (point.attributes or {}).items()}
        if known.kind == "histogram":
            yield from _histogram(name, labels, point)  # type: ignore[arg-type]
        else:
            yield _sample(name, labels, point.value)  # type: ignore[union-attr]


def _histogram(
    name: str, labels: Mapping[str, str], point: HistogramDataPoint
) -> Iterator[str]:
    bounds = [*(_number(bound) for bound in point.explicit_bounds), "+Inf"]
    for bound, count in zip(bounds, accumulate(point.bucket_counts), strict=True):
        yield _sample(f"{name}_bucket", {**labels, "le": bound}, count)
    yield _sample(f"{name}_sum", labels, point.sum)
    yield _sample(f"{name}_count", labels, point.count)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    pairs = [f'{key}="{text.translate(_LABEL)}"' for key, text in labels.items()]
    inside = f"{{{','.join(pairs)}}}" if pairs else ""
    return f"{name}{inside} {_number(value)}"


def _number(value: float) -> str:
    return f"{value:.15g}"
