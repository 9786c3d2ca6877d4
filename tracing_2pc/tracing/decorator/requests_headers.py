"""Calls that a sink makes with `requests` carry the trace context, if it asks for that.

OpenTelemetry's own instrumentation does it, for the whole process. We add that no span
shows a query string.
"""

from __future__ import annotations

import logging
from typing import Any, Final

carried = False
"""Whether there is nothing left to do in this process."""

_URLS: Final = {"http.url", "url.full", "http.target", "url.query"}
logger = logging.getLogger(__name__)


def carry_context() -> None:
    """Instrument `requests`, once per process.

    A program that has instrumented it already is left as it is. Without the package
    that does it a sink works, and one line in the log reports that.
    """
    global carried
    if carried:
        return
    carried = True
    try:
        import requests
        from opentelemetry.instrumentation.requests import RequestsInstrumentor

        if not hasattr(requests.Session.send, "__wrapped__"):
            RequestsInstrumentor().instrument(request_hook=_leave_out_query)
    except Exception as error:  # noqa: BLE001 - a sink works without the headers
        logger.warning(
            "calls with requests carry no trace context: install "
            "tracing-2pc[requests]: error=%s",
            type(error).__name__,
        )


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
    """Return a URL, even a malformed one, without user, query and fragment."""
    scheme, sep, rest = url.partition("#")[0].partition("?")[0].rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{sep}{host.rpartition('@')[2]}{slash}{path}"
