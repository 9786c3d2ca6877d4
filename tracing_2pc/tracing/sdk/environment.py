"""What the environment asks of OpenTelemetry, for traces and for metrics."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Final, TypeAlias

Asked: TypeAlias = tuple[str | None, ...]

TRACE_FILE: Final = "TPC_TRACE_FILE"
_OTLP: Final = "OTEL_EXPORTER_OTLP_"
_TRACES: Final = "OTEL_TRACES_EXPORTER"
_METRICS: Final = "OTEL_METRICS_EXPORTER"
_ASKING: Final = (
    *(TRACE_FILE, _TRACES, _METRICS),
    *(f"{_OTLP}{signal}ENDPOINT" for signal in ("TRACES_", "METRICS_", "")),
    *(f"{_OTLP}{signal}PROTOCOL" for signal in ("METRICS_", "")),
)
_SECRETS: Final = ("HEADERS", "TOKEN", "SECRET", "PASSWORD", "API_KEY")
_SECONDS: Final = 2.0


def asked() -> Asked:
    """Return what a start depends on: one that failed is repeated when it changes."""
    return tuple(os.environ.get(name) for name in _ASKING)


def disabled() -> bool:
    """Whether the environment turns OpenTelemetry off, traces and metrics."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def wants_traces() -> bool:
    """Whether traces are asked for, by any exporter."""
    has_file = bool(os.environ.get(TRACE_FILE))
    return not disabled() and (has_file or wants_otlp_traces() or wants_skywalking())


def wants_otlp_traces() -> bool:
    """Whether traces are to be sent by OTLP: there is an endpoint to send them to."""
    return _names(_TRACES, "otlp") and bool(_otlp("TRACES", "ENDPOINT"))


def wants_skywalking() -> bool:
    """Whether traces are to be sent to SkyWalking."""
    return _names(_TRACES, "skywalking")


def wants_otlp_metrics() -> bool:
    """Whether metrics are to be sent by OTLP: by name, or as there is an endpoint."""
    if disabled():
        return False
    if os.environ.get(_METRICS):
        return _names(_METRICS, "otlp")
    return bool(_otlp("METRICS", "ENDPOINT"))


def metrics_protocol() -> str:
    """Return the protocol that metrics are sent by, as it is named."""
    return _otlp("METRICS", "PROTOCOL") or "http/protobuf"


def otlp_timeout(signal: str) -> float | None:
    """Return how long an export may take, in seconds; None if the environment says."""
    return None if _otlp(signal, "TIMEOUT") else _SECONDS


def quiet(library: str) -> None:
    """Keep an exporter from logging each failure: we log the first, and count."""
    noisy = logging.getLogger(library)
    if noisy.level == logging.NOTSET:
        noisy.setLevel(logging.CRITICAL)


def telemetry_settings() -> dict[str, str]:
    """Return this process's telemetry environment, without secrets.

    For the closure of a task, so that an executor on another host can `apply` it.
    """
    return {k: v for k, v in os.environ.items() if _travels(k, v)}


def apply(settings: Mapping[str, str]) -> None:
    """Take over another process's telemetry environment where this one has none.

    `OTEL_PROPAGATORS` is read when OpenTelemetry is imported: it must be in the
    executor's own environment to have an effect.
    """
    for name, value in settings.items():
        if _travels(name, value):
            os.environ.setdefault(name, value)


def _travels(name: str, value: str) -> bool:
    if name != TRACE_FILE and not name.startswith(("OTEL_", "TPC_SKYWALKING_")):
        return False
    return not any(word in name for word in _SECRETS) and "@" not in value


def _otlp(signal: str, name: str) -> str | None:
    """Return a variable of OTLP: the signal's own, or that of all signals."""
    own = os.environ.get(f"{_OTLP}{signal}_{name}")
    return own or os.environ.get(f"{_OTLP}{name}")


def _names(variable: str, exporter: str) -> bool:
    exporters = os.environ.get(variable) or "otlp"
    return exporter in (name.strip() for name in exporters.split(","))
