"""Short spans around a step. Roots, server spans and phases have modules of their own.

Attributes come from the registry only. Without an SDK everything here does nothing,
and a context that somebody passed in is passed on. Nothing raises: a failing tracer
costs a span, never a transaction.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeAlias

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode

from tracing_2pc import names
from tracing_2pc.interfaces import Step
from tracing_2pc.model import Carrier, TransactionId
from tracing_2pc.telemetry import providers
from tracing_2pc.telemetry.propagation import extract, inject

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Tracer as SdkTracer

Value: TypeAlias = str | int | float | bool
Attributes: TypeAlias = Mapping[str, Value]

SCOPE: Final = "tracing_2pc"
TRANSACTION: Final = contexts.create_key("tpc-transaction")
"""Key in a context: id of the transaction that the work inside is for."""

_ID: Final = "tpc.transaction.id"
_log: Final = logging.getLogger(__name__)
_known: tuple[trace.TracerProvider | None, trace.Tracer] = None, trace.NoOpTracer()


def tracer() -> trace.Tracer:
    """Return our tracer of the provider that is in force now."""
    global _known
    provider = providers.current()
    known = _known
    if known[0] is not provider:
        known = _known = provider, _tracer_of(provider)
    return known[1]


def _tracer_of(provider: trace.TracerProvider) -> trace.Tracer:
    try:
        return provider.get_tracer(SCOPE)
    except Exception as error:  # noqa: BLE001 - a foreign provider raised
        about = {"error": type(error).__name__}
        _log.warning("nothing is traced: the provider has no tracer", extra=about)
        return trace.NoOpTracer()


def sdk_tracer() -> SdkTracer | None:
    """Return our tracer if it is one of the SDK's, so that spans are recorded."""
    sdk = sys.modules.get("opentelemetry.sdk.trace")
    ours = tracer()
    return ours if sdk is not None and isinstance(ours, sdk.Tracer) else None


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


def parent(carrier: Carrier | None) -> Context | None:
    """Return the context that a span for this carrier opens in; None is the current.

    The current span stands in for the carrier only where it is in the same trace: a
    thread or worker may still be inside of something else.
    """
    if not carrier:
        return None
    here = ids_of(trace.get_current_span()).trace_id
    if str(carrier.get("traceparent"))[3:35] == f"{here:032x}":
        return None
    found = extract(carrier, onto=contexts.get_current())
    there = ids_of(trace.get_current_span(found)).trace_id
    return None if here == there else found


def ids_of(span: Span) -> SpanContext:
    """Return a span's ids; none of a foreign one that does not tell them."""
    try:
        return span.get_span_context()
    except Exception:  # noqa: BLE001 - a foreign span raised
        _log.debug("a span has no ids", exc_info=True)
        return trace.INVALID_SPAN_CONTEXT


def past_span(
    name: str,
    context: Context | None,
    *,
    attributes: Attributes,
    start: int,
    end: int,
    error: type[BaseException] | None = None,
) -> None:
    """Export an internal span of something that is over; times in nanoseconds."""
    try:
        done = tracer().start_span(
            name, context, attributes=registered(attributes), start_time=start
        )
        if error is not None:
            mark_error(done, error)
        done.end(end)
    except Exception:  # noqa: BLE001 - a foreign sampler or processor raised
        _log.debug("a span could not be exported", exc_info=True)


def client_span(
    name: str, attributes: Attributes | None = None
) -> AbstractContextManager[Step]:
    """Open a span around a request that we send; inject inside it."""
    return OpenSpan(name, SpanKind.CLIENT, None, attributes)


def database_span(operation: str, system: str) -> AbstractContextManager[Step]:
    """Open a span around a statement that moves data or makes it durable.

    One per statement, never one per record; nothing of its text or values.

    Args:
        operation: the statement's first words, `COPY` or `COMMIT PREPARED`.
        system: `postgresql` or `sqlite`.
    """
    about = {"db.system.name": system, "db.operation.name": operation}
    return OpenSpan(operation, SpanKind.CLIENT, None, about)


def current_carrier() -> Carrier:
    """Return the current trace context as headers; empty if there is none.

    For what goes out now. What is stored, or leaves for outsiders, is `at_rest`.
    """
    carrier: Carrier = {}
    inject(carrier)
    return carrier


def identity(transaction: TransactionId) -> dict[str, Value]:
    """Return the attributes that say which transaction a span belongs to."""
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
    kept = {k: v for k, v in attributes.items() if k in names.ATTRIBUTES}
    for name in attributes.keys() - kept.keys():
        warnings.warn(f"attribute {name!r} is not in names.ATTRIBUTES", stacklevel=3)
    return kept


class Current:
    """What is current inside a `with`, and takes attributes there."""

    __slots__ = ("_span", "_token")

    _span: Span
    _token: Token[Context]

    def set(self, attribute: str, value: Value) -> None:
        """Add an attribute of the registry; what is logged inside knows whose it is."""
        set_attributes(self._span, {attribute: value})
        if attribute == _ID:
            inside = contexts.set_value(TRANSACTION, value)
            contexts.detach(self._token)
            self._token = contexts.attach(inside)


class OpenSpan(Current):
    """A span that is current inside a `with`. Made by the functions of this module.

    Written by hand because a generator context manager costs more than the span's
    own bookkeeping.
    """

    __slots__ = ("_attributes", "_kind", "_links", "_name", "_parent", "_start")

    def __init__(
        self,
        name: str,
        kind: SpanKind,
        parent: Context | None,
        attributes: Attributes | None,
        start: int | None = None,
        links: Sequence[Link] = (),
    ) -> None:
        self._name = name
        self._kind = kind
        self._parent = parent
        self._attributes = registered(attributes)
        self._start = start
        self._links = links

    def __enter__(self) -> OpenSpan:
        try:
            self._span = tracer().start_span(
                self._name,
                self._parent,
                self._kind,
                self._attributes,
                self._links,
                self._start,
            )
        except Exception:  # noqa: BLE001 - a foreign sampler or processor raised
            _log.debug("a span could not be started", exc_info=True)
            self._span = trace.INVALID_SPAN
        context = trace.set_span_in_context(self._span, self._parent)
        if transaction := self._attributes.get(_ID):
            context = contexts.set_value(TRANSACTION, transaction, context)
        self._token = contexts.attach(context)
        return self

    def end(self) -> None:
        """End it now; it stays current until the `with` is left."""
        try:
            self._span.end()
        except Exception:  # noqa: BLE001 - a foreign processor raised
            _log.debug("a span could not be ended", exc_info=True)
        self._span = trace.INVALID_SPAN

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        contexts.detach(self._token)
        if kind is not None:
            mark_error(self._span, kind)
        self.end()


def mark_error(failed: Span, kind: type[BaseException]) -> None:
    """Say that a span failed and by which class of error; never its text."""
    try:
        failed.set_status(StatusCode.ERROR)
        failed.set_attribute("error.type", kind.__name__)
    except Exception:  # noqa: BLE001 - a foreign span raised
        _log.debug("a span could not be marked", exc_info=True)


def set_attributes(target: Span, attributes: Attributes | None) -> None:
    """Tell a span more, of the registry."""
    try:
        for name, value in registered(attributes).items():
            target.set_attribute(name, value)
    except Exception:  # noqa: BLE001 - a foreign span raised
        _log.debug("a span could not be told more", exc_info=True)
