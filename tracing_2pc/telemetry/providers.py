"""The providers that are in force. One that cannot be had does nothing."""

from __future__ import annotations

import logging
import os
from typing import Final

from opentelemetry import metrics, trace
from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER

_NONE: Final = trace.NoOpTracerProvider()
_NO_METERS: Final = metrics.NoOpMeterProvider()
_log: Final = logging.getLogger(__name__)
_unusable: str | None = None  # what the environment named, when that was tried


def current() -> trace.TracerProvider:
    """Return the provider that is in force now. Never raises.

    `OTEL_PYTHON_TRACER_PROVIDER` may name one that is not installed here, or that does
    not start. OpenTelemetry raises then, at each call. Here such a process does not
    trace, and its log says so once.
    """
    global _unusable
    if _unusable is not None and _unusable == _named():
        return _NONE
    try:
        return trace.get_tracer_provider()
    except Exception as error:  # noqa: BLE001 - no tracing is no reason not to work
        _unusable = _named()
        about = {"provider": _unusable, "error": type(error).__name__}
        _log.warning("nothing is traced: the provider does not load", extra=about)
        return _NONE


def meters() -> metrics.MeterProvider:
    """Return the meter provider that is in force now. Never raises."""
    try:
        return metrics.get_meter_provider()
    except Exception:  # noqa: BLE001 - it was named, and does not load
        _log.debug("the program's meter provider does not load", exc_info=True)
        return _NO_METERS


def has_meters() -> bool:
    """Whether the program has set a meter provider, or named one."""
    # The stand-in of the API, which passes on to one that is set later, is private.
    return type(meters()).__name__ != "_ProxyMeterProvider"


def _named() -> str:
    return os.environ.get(OTEL_PYTHON_TRACER_PROVIDER, "")
