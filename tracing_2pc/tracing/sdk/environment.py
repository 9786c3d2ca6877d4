"""What the environment asks of OpenTelemetry; `docs/settings.md` has each variable."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.settings import is_reference, read_secret
from tracing_2pc.tracing import propagation, ring

Asked: TypeAlias = dict[str, str]

TRACE_FILE: Final = "TPC_TRACE_FILE"
HEADERS: Final = "TPC_OTLP_HEADERS"
_EXTRAS: Final = {"http/protobuf": "otlp", "grpc": "skywalking"}
_OTLP: Final = "OTEL_EXPORTER_OTLP_"
_REFUSED: Final = re.compile(
    "OTEL_(CONFIG_FILE|LOG_LEVEL|(BSP|BLRP)_EXPORT_TIMEOUT|EXPORTER_PROMETHEUS_.*|"
    "EXPORTER_ZIPKIN_.*|PYTHON_(.*CONFIGURATOR|ID_GEN.*|SDK_INTERN.*|LOGGING_AUTO.*))"
)
_SECRETS: Final = ("HEADERS", "TOKEN", "SECRET", "PASSWORD", "API_KEY")
_SECONDS: Final = 2.0


def asked() -> Asked:
    """Return what a start depends on: one that failed is repeated when it changes."""
    return {k: v for k, v in os.environ.items() if k.startswith(("OTEL_", "TPC_"))}


def disabled() -> bool:
    """Whether the environment turns OpenTelemetry off, all signals."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def refused() -> list[str]:
    """Return the variables that are set and that nothing here obeys."""
    found = filter(_REFUSED.fullmatch, os.environ)
    has_zipkin = "zipkin" in os.environ.get("OTEL_TRACES_EXPORTER", "")
    names = [name for name in found if not (has_zipkin and "ZIPKIN" in name)]
    if propagation.unusable:
        names.append(f"OTEL_PROPAGATORS ({propagation.unusable})")
    return names


def wants_traces() -> bool:
    """Whether traces are asked for, by any exporter."""
    has_file = bool(os.environ.get(TRACE_FILE))
    return not disabled() and (has_file or bool(exporters("TRACES")))


def kept_in() -> Path | None:
    """Return where spans are kept on this machine; None where they are not."""
    return None if disabled() else ring.chosen()


def exporters(signal: str) -> list[str]:
    """Return what a signal is exported by: as it is named, or OTLP to an endpoint.

    Logs need an endpoint of their own: many a collector takes none.
    """
    if named := os.environ.get(f"OTEL_{signal}_EXPORTER"):
        names = [name.strip() for name in named.split(",")]
        return [name for name in names if name not in ("none", "prometheus", "")]
    has_own = os.environ.get(f"{_OTLP}{signal}_ENDPOINT")
    common = os.environ.get(f"{_OTLP}ENDPOINT") if signal != "LOGS" else None
    return ["otlp"] if has_own or common else []


def wants(signal: str) -> bool:
    """Whether metrics, or log records, are to be sent."""
    return not disabled() and bool(exporters(signal))


def protocol(signal: str) -> str:
    """Return a signal's protocol of OTLP, or raise `ConfigurationError`."""
    own = f"{_OTLP}{signal}_PROTOCOL"
    variable = own if os.environ.get(own) else f"{_OTLP}PROTOCOL"
    named = os.environ.get(variable, "").strip() or "http/protobuf"
    if named not in _EXTRAS:
        known = ", ".join(_EXTRAS)
        raise ConfigurationError(f"{variable}: {named[:20]!r} is not one of {known}")
    return named


def extra_of(signal: str) -> str:
    """Return the extra that has what a signal needs to be sent."""
    return _EXTRAS.get(_otlp(signal, "PROTOCOL") or "", "otlp")


def otlp_headers(signal: str) -> str | None:
    """Return what `TPC_OTLP_HEADERS` refers to; a process's own headers win over it."""
    if _otlp(signal, "HEADERS") or not (reference := os.environ.get(HEADERS)):
        return None
    return read_secret(reference, HEADERS)


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
    if name == HEADERS:
        return is_reference(value)
    if name not in (TRACE_FILE, ring.VARIABLE) and not name.startswith(
        ("OTEL_", "TPC_SKYWALKING_")
    ):
        return False
    return not any(word in name for word in _SECRETS) and "@" not in value


def _otlp(signal: str, name: str) -> str | None:
    """Return a variable of OTLP: the signal's own, or that of all signals."""
    own = os.environ.get(f"{_OTLP}{signal}_{name}")
    return own or os.environ.get(f"{_OTLP}{name}")
