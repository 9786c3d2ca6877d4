"""What Prometheus reads: the SDK's measurements, as text.

Written here, because `opentelemetry-exporter-prometheus` lets us use one minor version
of the SDK only, has labels for the scope that most of those we allow cannot turn off,
and gives one of two scrapes at a time the other one's samples as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from tracing_2pc.names import METRICS

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import (
        HistogramDataPoint,
        Metric,
        MetricsData,
    )

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def text(read: MetricsData | None) -> str:
    """Write what was read, in the order of the registry, under its names."""
    found = {metric.name: metric for metric in _metrics(read)}
    return "".join(
        f"{line}\n" for name in METRICS if name in found for line in _lines(found[name])
    )


def _metrics(read: MetricsData | None) -> Iterator[Metric]:
    for of_resource in read.resource_metrics if read else ():
        for of_scope in of_resource.scope_metrics:
            yield from of_scope.metrics


def _lines(metric: Metric) -> Iterator[str]:
    name, known = metric.name, METRICS[metric.name]
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
    inside = ",".join(_pairs(labels.items()))
    return (
        f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"
    )


def _pairs(labels: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f'{label}="{value.translate(_LABEL)}"' for label, value in labels)


def _number(value: float) -> str:
    return f"{value:.15g}"
