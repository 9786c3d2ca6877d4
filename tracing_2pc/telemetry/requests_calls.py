"""Calls that a sink makes with `requests` carry the trace context."""

from __future__ import annotations

import logging
import sys
from typing import Final

carried = False
"""Whether there is nothing left to do in this process."""

_log: Final = logging.getLogger(__name__)


def carry_context() -> None:
    """Instrument `requests`, once per process and only if it is in use here.

    Whoever has instrumented it already keeps doing so; nothing happens without the
    package opentelemetry-instrumentation-requests.
    """
    global carried
    if "requests" in sys.modules and not carried:
        carried = True
        _instrument()


def _instrument() -> None:
    try:
        import requests
        from opentelemetry.instrumentation.requests import RequestsInstrumentor

        if not hasattr(requests.Session.send, "__wrapped__"):
            RequestsInstrumentor().instrument()
    except Exception:  # noqa: BLE001 - a sink works without the headers
        _log.debug("calls with requests carry no trace context", exc_info=True)
