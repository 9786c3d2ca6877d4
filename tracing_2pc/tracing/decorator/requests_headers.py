"""Calls that a sink makes with `requests` carry the trace context.

OpenTelemetry's own instrumentation does it, for the whole process. We add that it waits
for an import of `requests` inside of a phase, and that no span shows a query string.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Any, Final

carried = False
"""Whether there is nothing left to do in this process."""

_INSTRUMENTATION: Final = "opentelemetry.instrumentation.requests"
_URLS: Final = {"http.url", "url.full", "http.target", "url.query"}
logger = logging.getLogger(__name__)


def carry_context() -> None:
    """Instrument `requests`, once per process: now, or as soon as it is imported.

    A program that has instrumented it already goes on as it did. Nothing happens
    without the package opentelemetry-instrumentation-requests.
    """
    global carried
    if carried:
        return
    carried = True
    try:
        if importlib.util.find_spec(_INSTRUMENTATION) is not None:
            import wrapt

            wrapt.register_post_import_hook(_instrument, "requests")
    except Exception:  # a sink works without the headers
        logger.debug("calls with requests carry no trace context", exc_info=True)


def _instrument(requests: Any) -> None:
    try:
        from opentelemetry.instrumentation.requests import RequestsInstrumentor

        if not hasattr(requests.Session.send, "__wrapped__"):
            RequestsInstrumentor().instrument(request_hook=_leave_out_query)
    except Exception:  # a sink works without the headers
        logger.debug("calls with requests carry no trace context", exc_info=True)


def _leave_out_query(span: Any, request: object) -> None:
    """Take out of a span's URLs what may be a secret, or a person's."""
    try:
        attributes = getattr(span, "attributes", None) or {}
        for name in attributes.keys() & _URLS:
            bare = "" if name == "url.query" else _bare(str(attributes[name]))
            span.set_attribute(name, bare)
    except Exception:  # a foreign span must not break the request
        logger.debug("a span takes no attributes", exc_info=True)


def _bare(url: str) -> str:
    """Return a URL without user, query and fragment, whatever it looks like."""
    scheme, sep, rest = url.partition("#")[0].partition("?")[0].rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{sep}{host.rpartition('@')[2]}{slash}{path}"
