"""A participant's measurements as Prometheus text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tracing_2pc.names import LABELS, METRICS
from tracing_2pc.telemetry import lifecycle, propagation

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def exposition(gauges: Mapping[str, float]) -> str:
    """Write a resource's measurements, and what this process has counted.

    Each name must be in the registry. Gauges are read in the database, and the same
    in every worker; the counters are of the worker that answers.
    """
    lines = []
    for name, value in gauges.items():
        lines += [*_head(name), f"{name} {float(value):.15g}"]
    for name, counts in _counted().items():
        lines += _head(name)
        (label,) = METRICS[name].labels
        lines += [f'{name}{{{label}="{v}"}} {counts[v]}' for v in LABELS[label]]
    return "\n".join(lines) + "\n"


def _head(name: str) -> list[str]:
    metric = METRICS[name]
    return [f"# HELP {name} {metric.meaning}", f"# TYPE {name} {metric.kind}"]


def _counted() -> dict[str, Mapping[str, int]]:
    return {
        "tpc_propagation_rejected_total": propagation.rejected(),
        "tpc_telemetry_dropped_total": {"traces": lifecycle.dropped()},
    }
