"""A participant's measurements as Prometheus text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tracing_2pc.names import METRICS

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def exposition(gauges: Mapping[str, float]) -> str:
    """Write measurements; each name must be in the registry."""
    lines = []
    for name, value in gauges.items():
        metric = METRICS[name]
        lines.append(f"# HELP {name} {metric.meaning}")
        lines.append(f"# TYPE {name} {metric.kind}")
        lines.append(f"{name} {float(value):.15g}")
    return "\n".join(lines) + "\n"
