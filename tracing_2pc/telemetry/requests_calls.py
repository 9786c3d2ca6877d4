"""Calls that a sink makes with `requests` carry the trace context.

OpenTelemetry's own instrumentation does it, for the whole process. What we add is that
it waits for an import of `requests` inside of a phase, and keeps query strings to
itself.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Any, Final

carried = False
"""Whether there is nothing left to do in this process."""

_INSTRUMENTATION: Final = "opentelemetry.instrumentation.requests"
_URLS: Final = ("http.url", "url.full", "http.target", "url.query")
_log: Final = logging.getLogger(__name__)


def carry_context() -> None:
    """Instrument `requests`, once per process: now, or as soon as it is imported.

    Whoever has instrumented it already keeps doing so; nothing happens without the
    package opentelemetry-instrumentation-requests.
    """
    global carried
    if carried:
        return
    carried = True
    try:
        if importlib.util.find_spec(_INSTRUMENTATION) is not None:
            import wrapt

            wrapt.register_post_import_hook(_instrument, "requests")
    except Exception:  # noqa: BLE001 - a sink works without the headers
        _log.debug("calls with requests carry no trace context", exc_info=True)


def _instrument(requests: Any) -> None:
    try:
        from opentelemetry.instrumentation.requests import RequestsInstrumentor

        if not hasattr(requests.Session.send, "__wrapped__"):
            RequestsInstrumentor().instrument(request_hook=_leave_out_query)
    except Exception:  # noqa: BLE001 - a sink works without the headers
        _log.debug("calls with requests carry no trace context", exc_info=True)


def _leave_out_query(span: Any, request: object) -> None:
    """Take out of a span's URLs what may be a secret, or a person's."""
    try:
        told = getattr(span, "attributes", None) or {}
        for name in _URLS:
            if name in told:
                span.set_attribute(name, _bare(name, str(told[name])))
    except Exception:  # noqa: BLE001 - a foreign span must not break the request
        _log.debug("a span could not be told its URL", exc_info=True)


def _bare(name: str, url: str) -> str:
    if name == "url.query":
        return ""
    path = url.partition("#")[0].partition("?")[0]
    scheme, sep, rest = path.rpartition("://")
    host, slash, rest = rest.partition("/")
    return f"{scheme}{sep}{host.rpartition('@')[2]}{slash}{rest}"
