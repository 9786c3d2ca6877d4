"""OpenTelemetry's settings in the environment; `docs/settings.md` has each variable."""

from __future__ import annotations

import logging
import math
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
QUEUE: Final = 32768
SCHEDULE_MS: Final = 500.0
_MILLISECONDS: Final = "a number of milliseconds above 0"
_NUMBERS: Final = {
    "OTEL_BSP_SCHEDULE_DELAY": (_MILLISECONDS, SCHEDULE_MS),
    "OTEL_BLRP_SCHEDULE_DELAY": (_MILLISECONDS, 1000.0),
    "OTEL_METRIC_EXPORT_INTERVAL": (_MILLISECONDS, 60_000.0),
    "OTEL_METRIC_EXPORT_TIMEOUT": (_MILLISECONDS, 30_000.0),
    "OTEL_BSP_MAX_QUEUE_SIZE": ("a whole number above 0", QUEUE),
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": ("a whole number above 0", 512),
    "OTEL_BLRP_MAX_QUEUE_SIZE": ("a whole number above 0", 2048),
    "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE": ("a whole number above 0", 512),
    **{
        f"OTEL_EXPORTER_OTLP_{signal}TIMEOUT": ("a number of seconds above 0", 2.0)
        for signal in ("", "TRACES_", "METRICS_", "LOGS_")
    },
}
"""The rule of each number that has a default, and that: OpenTelemetry's, or ours."""

_SAMPLERS: Final = tuple(
    f"{based}{name}"
    for based in ("", "parentbased_")
    for name in ("always_on", "always_off", "traceidratio")
)
_LIMITS: Final = re.compile("OTEL_.*_LIMIT")
_SECRETS: Final = ("HEADERS", "TOKEN", "SECRET", "PASSWORD", "API_KEY")


def asked() -> Asked:
    """Return what a start depends on: one that failed is repeated when it changes."""
    return {k: v for k, v in os.environ.items() if k.startswith(("OTEL_", "TPC_"))}


def disabled() -> bool:
    """Whether the environment turns OpenTelemetry off, all signals."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def refused() -> list[str]:
    """Return the variables that are set and that nothing here obeys."""
    candidates = filter(_REFUSED.fullmatch, os.environ)
    has_zipkin = "zipkin" in os.environ.get("OTEL_TRACES_EXPORTER", "")
    names = [name for name in candidates if not (has_zipkin and "ZIPKIN" in name)]
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


def otlp_timeout(signal: str) -> float:
    """Return how long an export may take, in seconds."""
    own = f"{_OTLP}{signal}_TIMEOUT"
    is_own = os.environ.get(own, "").strip()
    return number(own if is_own else f"{_OTLP}TIMEOUT")


def number(name: str) -> float:
    """Return a variable's number; the default where none is set, or none of its kind.

    The SDK would take its own default for some, and raise for others.
    """
    _, default = _NUMBERS[name]
    text = os.environ.get(name, "").strip()
    return default if not text or _unusable(name) else float(text)


def whole(name: str) -> int:
    """Return the same of a whole number."""
    return int(number(name))


def batch_size(of: str) -> int:
    """Return how many are sent at once, of `BSP` or `BLRP`: no more than wait."""
    most = whole(f"OTEL_{of}_MAX_QUEUE_SIZE")
    return min(whole(f"OTEL_{of}_MAX_EXPORT_BATCH_SIZE"), most)


def defaulted() -> list[str]:
    """Return which numbers cannot be used, with the rule, and the default that is."""
    lines = []
    for name in filter(_NUMBERS.__contains__, os.environ):
        if reason := _unusable(name):
            lines.append(f"{reason}: {_NUMBERS[name][1]:g} is used")
    for processor in ("BSP", "BLRP"):
        batch, most = (
            f"OTEL_{processor}_MAX_EXPORT_BATCH_SIZE",
            f"OTEL_{processor}_MAX_QUEUE_SIZE",
        )
        if os.environ.get(batch, "").strip() and whole(batch) > whole(most):
            larger = f"{whole(batch)} is more than {most}, {whole(most)}"
            lines.append(f"{batch}: {larger}: {whole(most)} is used")
    return lines + _wrong_sampler()


def _wrong_sampler() -> list[str]:
    named = os.environ.get("OTEL_TRACES_SAMPLER", "").lower()
    share = os.environ.get("OTEL_TRACES_SAMPLER_ARG", "")
    if named and named not in _SAMPLERS:
        rule = f"is not one of {', '.join(_SAMPLERS)}"
        default = "parentbased_always_on is used"
        return [f"OTEL_TRACES_SAMPLER: {named[:20]!r} {rule}: {default}"]
    if named.endswith("ratio") and not _is_share(share):
        problem = f"{share[:20]!r} is not a number from 0 to 1: 1 is used"
        return [f"OTEL_TRACES_SAMPLER_ARG: {problem}"]
    return []


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def wrong_limits() -> list[str]:
    """Return which limits of spans the SDK refuses, at its import, with the rule."""
    set_ = {n: v.strip() for n, v in os.environ.items() if _LIMITS.fullmatch(n)}
    return [
        f"{name}: {text[:20]!r} is not a whole number from 0"
        for name, text in set_.items()
        if text and not text.isdecimal()
    ]


def check_exporter(signal: str, protocol: str) -> None:
    """Raise `ConfigurationError` for a setting on which an OTLP exporter would fail.

    That is a missing file, or a number that gRPC's exporter reads by itself.
    """
    for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
        for variable in (f"{_OTLP}{signal}_{name}", f"{_OTLP}{name}"):
            path = os.environ.get(variable)
            if path and not os.access(path, os.R_OK):
                problem = f"{variable}: {path}: no such file, or it cannot be read"
                raise ConfigurationError(problem)
    if protocol == "grpc" and (reason := _unusable(f"{_OTLP}{signal}_TIMEOUT")):
        raise ConfigurationError(reason)
    packed = (_otlp(signal, "COMPRESSION") or "gzip").strip().lower()
    if protocol == "grpc" and packed != "gzip":
        problem = f"{packed[:20]!r} is not gzip, all that there is by gRPC"
        raise ConfigurationError(f"{_OTLP}COMPRESSION: {problem}")


def _unusable(name: str) -> str | None:
    """Return why a number cannot be used; None if it can, or none is set."""
    rule, default = _NUMBERS[name]
    text = os.environ.get(name, "").strip()
    try:
        number = int(text) if isinstance(default, int) else float(text)
    except ValueError:
        number = 0
    if not text or 0 < number < math.inf:
        return None
    return f"{name}: {text[:20]!r} is not {rule}"


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
