"""Trace context in headers: W3C by us, the rest by whoever `OTEL_PROPAGATORS` names.

Nothing here raises, changes an answer or trusts: what is malformed is as if absent,
and counted where it was received. The user's global propagator is read, never replaced.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tracing_2pc import names
from tracing_2pc.model import Carrier
from tracing_2pc.skywalking import active as skywalking
from tracing_2pc.telemetry import baggage_header, trace_context

_log: Final = logging.getLogger(__name__)
_W3C: Final = TraceContextTextMapPropagator()
_BAGGAGE: Final = "baggage"
_MOST_AT_REST: Final = 2048
"""Characters of names and values of a carrier that is kept."""

_OURS: Final = frozenset({trace_context.TRACEPARENT, trace_context.TRACESTATE})

_rejected: Final = dict.fromkeys(names.LABELS["header"], 0)
_counting: Final = threading.Lock()


def inject(carrier: Carrier, context: Context | None = None) -> None:
    """Write a trace context, by default the current one; nothing if there is none."""
    # Ours is last, under the same names: nothing is there twice.
    for write in (propagate.inject, _W3C.inject):
        try:
            write(carrier, context)
        except Exception as error:  # noqa: BLE001 - a foreign propagator or span
            _log.debug("a propagator failed to inject", extra=_about(error))


def traceparent() -> str | None:
    """Return the current span as W3C writes it, if there is one."""
    carrier: Carrier = {}
    try:
        _W3C.inject(carrier)
    except Exception as error:  # noqa: BLE001 - a foreign span
        _log.debug("a propagator failed to inject", extra=_about(error))
    return carrier.get(trace_context.TRACEPARENT)


def at_rest(context: Context | None = None) -> Carrier:
    """Return a trace context to keep, or to show outsiders: without the user's baggage.

    Baggage is a user's own text, often about persons. It goes with requests among
    the job and its participants, and stays nowhere. What is kept is bounded: of
    `tracestate` whole members, of the rest what is short and can be printed.
    """
    carrier: Carrier = {}
    inject(carrier, baggage.clear(context))
    return _bounded(carrier)


def _bounded(carrier: Carrier) -> Carrier:
    """Keep ours first; a header that is too long is as if absent."""
    if trace_context.TRACESTATE in carrier:
        state = trace_context.shortened(carrier[trace_context.TRACESTATE])
        carrier[trace_context.TRACESTATE] = state
    left, kept = _MOST_AT_REST, {}
    for name, value in sorted(carrier.items(), key=lambda item: item[0] not in _OURS):
        if value and f"{name}{value}".isprintable() and len(name + value) <= left:
            kept[name] = value
            left -= len(name + value)
    return kept


def extract(headers: Mapping[str, str], onto: Context | None = None) -> Context:
    """Read a trace context from headers or from a carrier at rest.

    Args:
        headers: names in any case; a name given twice is joined by a comma.
        onto: the context to add to; empty by default.
    """
    return _read(headers, Context() if onto is None else onto)[0]


def receive(headers: Mapping[str, str]) -> Context:
    """Read the trace context of a request, and count what of it is malformed."""
    context, malformed = _read(headers, Context())
    if malformed is not None:
        _reject(malformed)
    return context


def receive_ids(headers: Mapping[str, str]) -> SpanContext:
    """Read the caller's span of a request from a stranger; nobody else reads any of it.

    A propagator that is not ours may keep what it reads, and log it.
    """
    parent, malformed = trace_context.read(_split(headers)[0])
    if malformed is not None:
        _reject(malformed)
    return trace.INVALID_SPAN_CONTEXT if parent is None else parent


def ids_at_rest(carrier: Carrier) -> SpanContext:
    """Return the span that a carrier names; an invalid one if it names none."""
    return trace_context.read(_split(carrier)[0])[0] or trace.INVALID_SPAN_CONTEXT


def _reject(header: str) -> None:
    with _counting:
        _rejected[header] += 1


def rejected() -> dict[str, int]:
    """Return how often each header could not be read, since this process began."""
    return {**_rejected, "sw8": skywalking.malformed()}


def _read(headers: Mapping[str, str], onto: Context) -> tuple[Context, str | None]:
    context = onto
    try:
        ours, others = _split(headers)
        _sift_baggage(others)
        context = _foreign(others, context)
        parent, malformed = trace_context.read(ours)
    except Exception as error:  # noqa: BLE001 - whatever was sent, it is as if absent
        _log.debug("trace context was malformed", extra=_about(error))
        return context, None
    if parent is not None:
        span = trace.NonRecordingSpan(parent)
        context = trace.set_span_in_context(span, context)
    return context, malformed


def _foreign(headers: Carrier, context: Context) -> Context:
    try:
        return propagate.extract(headers, context)
    except Exception as error:  # noqa: BLE001 - must not hide traceparent
        _log.debug("a propagator failed to extract", extra=_about(error))
        return context


def _about(error: Exception) -> dict[str, str]:
    """Its class only: the text may be what a stranger sent."""
    return {"error": type(error).__name__}


def _sift_baggage(headers: Carrier) -> None:
    """Leave what is baggage: OpenTelemetry logs what is not, as it was sent."""
    if (sent := headers.pop(_BAGGAGE, None)) is None:
        return
    if members := baggage_header.well_formed(sent):
        headers[_BAGGAGE] = members


def _split(headers: Mapping[str, str]) -> tuple[Carrier, Carrier]:
    """Separate what we read from what others may, so that nothing is read twice."""
    ours: Carrier = {}
    others: Carrier = {}
    for name, value in headers.items():
        key = name.lower()
        target = ours if key in _OURS else others
        target[key] = f"{target[key]},{value}" if key in target else value
    return ours, others
