"""Spans around a step, a request or a statement, by the provider in force.

Attributes come from the registry only. Without an SDK everything here does nothing,
and a context that a caller passed in is passed on. Nothing raises: a failing tracer
costs a span, never a transaction. Only the API of OpenTelemetry is used.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Token
from typing import Final, TypeAlias

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode

from tracing_2pc.core import names
from tracing_2pc.core.model import Carrier, TransactionId
from tracing_2pc.core.ports import Step
from tracing_2pc.tracing.propagation import (
    extract,
    inject,
    receive,
    receive_ids,
    span_of,
)

Value: TypeAlias = str | int | float | bool
Attributes: TypeAlias = Mapping[str, Value]

SCOPE: Final = "tracing_2pc"
SHORTEST: Final = 1_000
"""Nanoseconds: what a span of something that is over takes at least. Jaeger calls none
a negative duration, and counts in microseconds."""

TRANSACTION: Final = contexts.create_key("tpc-transaction")
"""Key in a context: id of the transaction that the work inside is for."""

SPAN: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, Context())))
"""Key in a context: the current span, as OpenTelemetry has it."""

_ID: Final = "tpc.transaction.id"
logger = logging.getLogger(__name__)
_NO_PROVIDER: Final = trace.NoOpTracerProvider()
_known: tuple[trace.TracerProvider | None, trace.Tracer] = None, trace.NoOpTracer()
_unusable: str | None = None  # what the environment named, when that was tried
_own: trace.TracerProvider | None = None  # for this library's spans alone


def provider() -> trace.TracerProvider:
    """Return the provider that is in force now.

    `OTEL_PYTHON_TRACER_PROVIDER` may name one that does not load. OpenTelemetry then
    raises at each call; such a process does not trace, and logs that once.
    """
    global _unusable
    if _unusable is not None and _unusable == _named():
        return _NO_PROVIDER
    try:
        current = trace.get_tracer_provider()
    except Exception as error:  # noqa: BLE001 - no tracing is no reason not to work
        _unusable = _named()
        logger.warning(
            "nothing is traced: the provider does not load: provider=%s error=%s",
            _unusable,
            type(error).__name__,
        )
        return _NO_PROVIDER
    if _own is not None and isinstance(current, trace.ProxyTracerProvider):
        return _own
    return current


def use_until_one_is_set(own: trace.TracerProvider) -> None:
    """Have our spans go there as long as the process has no tracer provider."""
    global _own
    _own = own


def _named() -> str:
    return os.environ.get(OTEL_PYTHON_TRACER_PROVIDER, "")


def is_set() -> bool:
    """Whether this process has a tracer provider: ours, or the program's choice."""
    return is_recording() and provider() is not _own


def is_recording() -> bool:
    """Whether our spans go anywhere: to such a provider, or only to this machine."""
    return not isinstance(provider(), trace.ProxyTracerProvider)


def tracer() -> trace.Tracer:
    """Return our tracer of the provider that is in force now."""
    global _known
    now, known = provider(), _known
    if known[0] is now:
        return known[1]
    try:
        made = now.get_tracer(SCOPE)
    except Exception as error:  # noqa: BLE001 - a foreign provider raised
        kind, made = type(error).__name__, trace.NoOpTracer()
        logger.warning("nothing is traced: the provider has no tracer: error=%s", kind)
    _known = now, made
    return made


def span(
    name: str,
    *,
    carrier: Carrier | None = None,
    attributes: Attributes | None = None,
    start: int | None = None,
) -> AbstractContextManager[Step]:
    """Open an internal span; it began now, or at `start` in Unix nanoseconds.

    Its parent is the current span if that is in the carrier's trace, or if there is
    no carrier; else the carrier. An exception sets the status and `error.type`, the
    class and never the text, and goes on unchanged.
    """
    return OpenSpan(name, SpanKind.INTERNAL, parent(carrier), attributes, start)


def parent(carrier: Mapping[str, str] | None) -> Context | None:
    """Return the context that a span for this carrier opens in; None is the current.

    The current span stands in for the carrier only where it is in the same trace: a
    thread or worker may still be inside of something else.
    """
    if not carrier:
        return None
    here = ids_of(trace.get_current_span()).trace_id
    if str(carrier.get("traceparent"))[3:35] == f"{here:032x}":
        return None  # as a rule: nothing is parsed then
    if span_of(carrier).trace_id in (trace.INVALID_TRACE_ID, here):
        return None
    return extract(carrier, onto=contexts.get_current())


def ids_of(span: Span) -> SpanContext:
    """Return a span's ids; none of a foreign one that does not tell them."""
    try:
        return span.get_span_context()
    except Exception:  # a foreign span raised
        logger.debug("a span has no ids", exc_info=True)
        return trace.INVALID_SPAN_CONTEXT


def past_span(
    name: str,
    context: Context | None,
    *,
    attributes: Attributes,
    start: int,
    end: int,
    error: type[BaseException] | str | None = None,
) -> None:
    """Export an internal span of something that is over; times in nanoseconds."""
    span = start_span(name, context, registered(attributes), start=start)
    end_span(span, error, max(end, start + SHORTEST))


def start_span(
    name: str,
    parent: Context | None,
    attributes: Attributes,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    links: Sequence[Link] = (),
    start: int | None = None,
) -> Span:
    """Start a span, which is not current; an invalid one if the tracer raises.

    It names the transaction that its parent's context is for.
    """
    if _ID not in attributes and (inside := contexts.get_value(TRANSACTION, parent)):
        attributes = {**attributes, _ID: str(inside)}
    try:
        return tracer().start_span(name, parent, kind, attributes, links, start)
    except Exception:  # a foreign sampler or processor raised
        logger.debug("a span could not be started", exc_info=True)
        return trace.INVALID_SPAN


def end_span(
    span: Span,
    error: type[BaseException] | str | None = None,
    end: int | None = None,
) -> None:
    """End a span, now or at `end`.

    An error is shown by its class, never its text, or is a word of ours.
    """
    try:
        if error is not None:
            with contextlib.suppress(Exception):  # it must end all the same
                if isinstance(error, str):
                    span.set_status(StatusCode.ERROR, error)
                else:
                    span.set_status(StatusCode.ERROR)
                    span.set_attribute("error.type", error.__name__)
        span.end(end)
    except Exception:  # a foreign span or processor raised
        logger.debug("a span could not be ended", exc_info=True)


def client_span(
    name: str, attributes: Attributes | None = None
) -> AbstractContextManager[Step]:
    """Open a span around a request that we send; inject inside it."""
    return OpenSpan(name, SpanKind.CLIENT, None, attributes)


def set_status(step: Step, status: int, *, error: bool) -> None:
    """Set the status of a request's answer (0: none), and whether it is an error."""
    step.set("http.response.status_code", status)
    if error:
        step.set("error.type", str(status))


def database_span(
    operation: str, database: Attributes, table: str = ""
) -> AbstractContextManager[Step]:
    """Open a span around a statement that moves data or makes it durable.

    One per statement, never one per record. It shows the statement's first words
    (`COPY`, `COMMIT PREPARED`), where, and nothing of its text or values.
    """
    about = {**database, "db.operation.name": operation}
    if table:
        about["db.collection.name"] = table
    return OpenSpan(operation, SpanKind.CLIENT, None, about)


def server_span(
    name: str,
    headers: Mapping[str, str],
    attributes: Attributes | None = None,
    *,
    trusted: bool = True,
) -> AbstractContextManager[Step]:
    """Open a span around a request that we answer, as a child of its caller.

    In a service that is instrumented already, a server span of the request is current:
    it gets the attributes, and none is opened. A caller that is not trusted is linked
    to from a new trace, which takes over only the ids of its headers.
    """
    current = trace.get_current_span()
    if not trusted:
        related = (receive_ids(headers), ids_of(current))
        links = [Link(_ids_only(span)) for span in related if span.is_valid]
        return OpenSpan(name, SpanKind.SERVER, Context(), attributes, links=links)
    caller = receive(headers)
    if _is_a_server_span(current):
        return JoinedSpan(current, attributes)
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


def current_carrier() -> dict[str, str]:
    """Return the current trace context as headers; empty if there is none.

    For requests that go out now. A context that is stored, or leaves for outsiders, is
    `storable_context`.
    """
    headers: dict[str, str] = {}
    inject(headers)
    return headers


def identity(transaction: TransactionId) -> dict[str, Value]:
    """Return the attributes that identify the transaction of a span."""
    return {
        "tpc.transaction.id": str(transaction),
        "tpc.application": transaction.application,
        "tpc.batch": transaction.batch,
        "tpc.attempt": transaction.attempt,
    }


def registered(attributes: Attributes | None) -> dict[str, Value]:
    """Keep the attributes of the registry; warn about others, so that tests fail."""
    if not attributes:
        return {}
    for name in attributes.keys() - names.ATTRIBUTES.keys():
        warnings.warn(f"attribute {name!r} is not in names.ATTRIBUTES", stacklevel=3)
        attributes = {k: v for k, v in attributes.items() if k != name}
    return dict(attributes)


class JoinedSpan:
    """A span of another library that takes our attributes inside of a `with`."""

    __slots__ = ("_context", "_span", "_token")

    _token: Token[Context]

    def __init__(self, current: Span, attributes: Attributes | None) -> None:
        self._span = current
        self._context = contexts.get_current()
        set_attributes(current, attributes)

    def __enter__(self) -> Step:
        self._token = contexts.attach(self._context)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        contexts.detach(self._token)

    def set(self, attribute: str, value: Value) -> None:
        """Add an attribute of the registry; `error.type` makes the span an error.

        Log records and spans inside get a transaction id.
        """
        set_attributes(self._span, {attribute: value})
        if attribute == "error.type":
            with contextlib.suppress(Exception):  # a foreign span raised
                self._span.set_status(StatusCode.ERROR)
        if attribute == _ID:
            inside = contexts.set_value(TRANSACTION, value)
            contexts.detach(self._token)
            self._token = contexts.attach(inside)

    def end(self) -> None:
        """Leave its end to the code that opened it."""


class OpenSpan(JoinedSpan):
    """A span from here on, current inside of a `with`, which ends it.

    Written by hand because a generator context manager costs more than the span's
    own bookkeeping.
    """

    __slots__ = ()

    def __init__(
        self,
        name: str,
        kind: SpanKind,
        parent: Context | None,
        attributes: Attributes | None,
        start: int | None = None,
        links: Sequence[Link] = (),
    ) -> None:
        around = contexts.get_current() if parent is None else parent
        known = registered(attributes)
        self._span = start_span(
            name, around, known, kind=kind, links=links, start=start
        )
        inside = {**around, SPAN: self._span}
        if transaction := known.get(_ID):
            inside[TRANSACTION] = transaction
        self._context = Context(inside)

    def end(self) -> None:
        """End it now; it stays current until the `with` is left."""
        end_span(self._span)
        self._span = trace.INVALID_SPAN

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        contexts.detach(self._token)
        end_span(self._span, kind)


def set_attributes(target: Span, attributes: Attributes | None) -> None:
    """Add attributes of the registry to a span."""
    try:
        for name, value in registered(attributes).items():
            target.set_attribute(name, value)
    except Exception:  # a foreign span raised
        logger.debug("a span takes no attributes", exc_info=True)
