"""The span around a request that we answer: whose trace it is in, and whose span."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind

from tracing_2pc.interfaces import Step
from tracing_2pc.telemetry.propagation import receive, receive_ids
from tracing_2pc.telemetry.spans import (
    Attributes,
    Current,
    OpenSpan,
    ids_of,
    set_attributes,
)


def server_span(
    name: str,
    headers: Mapping[str, str],
    attributes: Attributes | None = None,
    *,
    trusted: bool = True,
) -> AbstractContextManager[Step]:
    """Open a span around a request that we answer, as a child of its caller.

    In a service that is instrumented already, a server span of the request is
    current: it gets the attributes, and none is opened. A caller who is not trusted
    is linked to from a new trace, which takes over nothing of what it sent but ids.
    """
    current = trace.get_current_span()
    if not trusted:
        around = (receive_ids(headers), ids_of(current))
        links = [Link(_ids_only(one)) for one in around if one.is_valid]
        return OpenSpan(name, SpanKind.SERVER, Context(), attributes, links=links)
    caller = receive(headers)
    if _is_a_server_span(current):
        return _Joined(current, attributes)
    return OpenSpan(name, SpanKind.SERVER, caller, attributes)


def _is_a_server_span(current: Span) -> bool:
    try:
        return current.is_recording() and (
            getattr(current, "kind", None) is SpanKind.SERVER
        )
    except Exception:  # noqa: BLE001 - a foreign span raised
        return False


def _ids_only(sent: SpanContext) -> SpanContext:
    """Leave out the trace state: text of its own making."""
    return SpanContext(sent.trace_id, sent.span_id, sent.is_remote, sent.trace_flags)


class _Joined(Current):
    """Somebody else's span, with our attributes; its status and end are theirs."""

    __slots__ = ("_attributes",)

    def __init__(self, current: Span, attributes: Attributes | None) -> None:
        self._span = current
        self._attributes = attributes

    def __enter__(self) -> _Joined:
        set_attributes(self._span, self._attributes)
        self._token = contexts.attach(contexts.get_current())
        return self

    def end(self) -> None:
        """Leave its end to whoever opened it."""

    def __exit__(self, *exception: object) -> None:
        contexts.detach(self._token)
