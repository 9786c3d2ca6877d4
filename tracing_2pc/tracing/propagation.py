"""Trace context in headers: W3C by us, the rest by those that `OTEL_PROPAGATORS` names.

Nothing here raises, changes an answer or trusts: what is malformed is as if absent,
and counted where it was received. The user's global propagator is read, never replaced.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Final

from opentelemetry import baggage, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tracing_2pc.core import names
from tracing_2pc.core.model import Carrier
from tracing_2pc.skywalking import propagator as skywalking
from tracing_2pc.tracing import w3c

unusable = ""
"""Why `OTEL_PROPAGATORS` has no effect here."""

try:
    from opentelemetry import propagate
except Exception as error:  # noqa: BLE001 - a name without its package
    unusable = str(error).rstrip(".")
    named = os.environ["OTEL_PROPAGATORS"]
    os.environ["OTEL_PROPAGATORS"] = "tracecontext"
    from opentelemetry import propagate

    os.environ["OTEL_PROPAGATORS"] = named  # a task's process may have its package

logger = logging.getLogger(__name__)
_W3C: Final = TraceContextTextMapPropagator()
_BAGGAGE: Final = "baggage"
_MOST_AT_REST: Final = 2048
"""Characters of names and values of a carrier that is kept."""

TRACED_TRIES: Final = 10
"""Tries in vain of which each leaves spans."""

_OURS: Final = frozenset({w3c.TRACEPARENT, w3c.TRACESTATE})

_rejected: Final = dict.fromkeys(names.LABELS["header"], 0)
_counting: Final = threading.Lock()


def inject(carrier: Carrier, context: Context | None = None) -> None:
    """Write a trace context, by default the current one; nothing if there is none."""
    # Ours is last, under the same names: nothing is there twice.
    _inject(propagate.inject, carrier, context)
    _inject(_W3C.inject, carrier, context)


def traceparent() -> str | None:
    """Return the current span as W3C writes it, if there is one."""
    carrier: Carrier = {}
    _inject(_W3C.inject, carrier, None)
    return carrier.get(w3c.TRACEPARENT)


def _inject(write: Callable[..., None], carrier: Carrier, of: Context | None) -> None:
    try:
        write(carrier, of)
    except Exception as error:  # noqa: BLE001 - a foreign propagator or span
        logger.debug("a propagator failed to inject: error=%s", type(error).__name__)


def at_rest(context: Context | None = None) -> Carrier:
    """Return a trace context to keep, or to show outsiders: without the user's baggage.

    Baggage is a user's own text, often about persons: it goes with requests, and stays
    nowhere. The carrier is bounded: of `tracestate` it has whole members, of the rest
    what is short and can be printed.
    """
    carrier: Carrier = {}
    inject(carrier, baggage.clear(context))
    return _bounded(carrier)


def _bounded(carrier: Carrier) -> Carrier:
    """Keep ours first; a header that is too long is as if absent."""
    if state := carrier.get(w3c.TRACESTATE):
        carrier[w3c.TRACESTATE] = w3c.shorten_state(state)
    left, kept = _MOST_AT_REST, {}
    for name, value in sorted(carrier.items(), key=lambda item: item[0] not in _OURS):
        if value and f"{name}{value}".isprintable() and len(name + value) <= left:
            kept[name] = value
            left -= len(name + value)
    return kept


def extract(headers: Mapping[str, str], onto: Context | None = None) -> Context:
    """Read a trace context from headers or a carrier at rest, onto an empty context.

    Names may be in any case; a name given twice is joined by a comma.
    """
    return _read(headers, Context() if onto is None else onto)[0]


def receive(headers: Mapping[str, str]) -> Context:
    """Read the trace context of a request, and count what of it is malformed."""
    context, malformed = _read(headers, Context())
    _count(malformed)
    return context


def receive_ids(headers: Mapping[str, str]) -> SpanContext:
    """Read the caller's span of a request that is not trusted, and nothing else of it.

    A propagator that is not ours may keep what it reads, and log it.
    """
    parent, malformed = w3c.read(_split(headers)[0])
    _count(malformed)
    return parent or trace.INVALID_SPAN_CONTEXT


def span_of(carrier: Carrier) -> SpanContext:
    """Return the span that a carrier at rest names, as if it were of this process.

    It is an invalid one if the carrier names none.
    """
    parent, _ = w3c.read(_split(carrier)[0], is_remote=False)
    return parent or trace.INVALID_SPAN_CONTEXT


def thin_out_after(carrier: Carrier, in_vain: int) -> Carrier:
    """Return the trace context for the next try, after so many in vain.

    A trace must not grow for as long as an outage lasts. After ten, the 16th, 32nd,
    64th … leave spans; the others have the same trace, unsampled.
    """
    parent = carrier.get(w3c.TRACEPARENT)
    if in_vain < TRACED_TRIES or in_vain & (in_vain + 1) == 0 or parent is None:
        return carrier
    return {**carrier, w3c.TRACEPARENT: f"{parent[:-2]}00"}


def _count(malformed: str | None) -> None:
    if malformed is not None:
        with _counting:
            _rejected[malformed] += 1


def rejected() -> dict[str, int]:
    """Return how often each header could not be read, since this process began."""
    return {**_rejected, "sw8": skywalking.malformed()}


def _read(headers: Mapping[str, str], onto: Context) -> tuple[Context, str | None]:
    context = onto
    try:
        ours, others = _split(headers)
        # OpenTelemetry logs what of it is malformed, as it was sent.
        if baggage_sent := others.pop(_BAGGAGE, None):
            others[_BAGGAGE] = w3c.read_baggage(baggage_sent)
        context = _foreign(others, context)
        parent, malformed = w3c.read(ours)
    except Exception as error:  # noqa: BLE001 - whatever was sent, it is as if absent
        logger.debug("trace context was malformed: error=%s", type(error).__name__)
        return context, None
    if parent is not None:
        span = trace.NonRecordingSpan(parent)
        context = trace.set_span_in_context(span, context)
    return context, malformed


def _foreign(headers: Carrier, context: Context) -> Context:
    try:
        return propagate.extract(headers, context)
    except Exception as error:  # noqa: BLE001 - must not hide traceparent
        # Its class only: the text may be what a client sent.
        logger.debug("a propagator failed to extract: error=%s", type(error).__name__)
        return context


def _split(headers: Mapping[str, str]) -> tuple[Carrier, Carrier]:
    """Separate what we read from what others may, so that nothing is read twice."""
    ours: Carrier = {}
    others: Carrier = {}
    for name, value in headers.items():
        key = name.lower()
        target = ours if key in _OURS else others
        target[key] = f"{target[key]},{value}" if key in target else value
    return ours, others
