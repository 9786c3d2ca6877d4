"""Trace context in headers: W3C by us, the rest by those that `OTEL_PROPAGATORS` names.

Nothing here raises, changes an answer or trusts: a malformed header is as if absent,
and counted where it was received. The user's global propagator is read, never replaced.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from opentelemetry import baggage, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tracing_2pc.core import names
from tracing_2pc.core.model import Carrier
from tracing_2pc.skywalking import in_use, propagator
from tracing_2pc.tracing import w3c
from tracing_2pc.tracing.counted import Counted

in_use.endpoints.add("tpc.phase")  # a phase is an endpoint of SkyWalking's

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
_VARIABLE: Final = "TRACEPARENT"
"""As OpenTelemetry names it where a process starts another."""

_MOST_STORED: Final = 2048
"""Characters of names and values of a carrier that is stored."""

TRACED_TRIES: Final = 10
"""Tries in vain of which each leaves spans."""

_OURS: Final = frozenset({w3c.TRACEPARENT, w3c.TRACESTATE})

_rejected: Final = Counted()


def inject(headers: dict[str, str], context: Context | None = None) -> None:
    """Write a trace context, by default the current one; nothing if there is none."""
    _inject(propagate.inject, headers, context)
    if w3c.TRACEPARENT not in headers:
        _inject(_W3C.inject, headers, context)


def _inject(
    write: Callable[..., None], headers: dict[str, str], context: Context | None
) -> None:
    try:
        write(headers, context)
    except Exception as error:  # noqa: BLE001 - a foreign propagator or span
        logger.debug("a propagator failed to inject: error=%s", type(error).__name__)


def storable_context(context: Context | None = None) -> Carrier:
    """Return a trace context to keep, or to show outsiders: without the user's baggage.

    Baggage is a user's own text, often about persons: it goes with requests, and stays
    nowhere. The carrier is bounded: of `tracestate` it has whole members, of the rest
    what is short and can be printed.
    """
    headers: dict[str, str] = {}
    inject(headers, baggage.clear(context))
    if state := headers.get(w3c.TRACESTATE):
        headers[w3c.TRACESTATE] = w3c.shorten_state(state)
    left, kept = _MOST_STORED, {}
    for name in sorted(headers, key=lambda name: name not in _OURS):
        text = name + headers[name]
        if headers[name] and text.isprintable() and len(text) <= left:
            kept[name] = headers[name]
            left -= len(text)
    return Carrier(kept)


def extract(headers: Mapping[str, str], onto: Context | None = None) -> Context:
    """Read a trace context from headers or a carrier, onto an empty context.

    Names may be in any case; a name given twice is joined by a comma.
    """
    context = read(headers).context
    return context if onto is None else Context({**onto, **context})


def receive(headers: Mapping[str, str]) -> Context:
    """Read the trace context of a request, and count what of it is malformed."""
    context, _, malformed = read(headers)
    _count(malformed)
    return context


def receive_ids(headers: Mapping[str, str]) -> SpanContext:
    """Read the caller's span of a request that is not trusted, and nothing else of it.

    A propagator that is not ours may keep what it reads, and log it.
    """
    parent, malformed = w3c.read(_split(headers)[0])
    _count(malformed)
    return parent or trace.INVALID_SPAN_CONTEXT


def environment_of(carrier: Mapping[str, str]) -> dict[str, str]:
    """Return the variable by which a process that is started knows who started it."""
    return (
        {_VARIABLE: traceparent} if (traceparent := carrier.get("traceparent")) else {}
    )


def started_by() -> str | None:
    """Return the `traceparent` of the program that started this process, if given."""
    traceparent = os.environ.get(_VARIABLE, "")
    return traceparent if span_of({"traceparent": traceparent}).is_valid else None


def span_of(carrier: Mapping[str, str]) -> SpanContext:
    """Return the span that a carrier names; an invalid one if it names none."""
    return read(carrier).span


def thin_out_after(carrier: Carrier, in_vain: int) -> Carrier:
    """Return the trace context for the next try, after so many failed ones.

    A trace must not grow for as long as an outage lasts. After ten, the 16th, 32nd,
    64th … leave spans; the others have the same trace, unsampled.
    """
    parent = carrier.get(w3c.TRACEPARENT)
    if in_vain < TRACED_TRIES or in_vain & (in_vain + 1) == 0 or parent is None:
        return carrier
    return Carrier({**carrier, w3c.TRACEPARENT: f"{parent[:-2]}00"})


def _count(malformed: str | None) -> None:
    if malformed is not None:
        _rejected.add(malformed)


def rejected() -> dict[str, int]:
    """Return how often each header could not be read, since this process began."""
    known = {**dict.fromkeys(names.LABELS["header"], 0), **_rejected.read()}
    return {**known, "sw8": propagator.malformed()}


class Parsed(NamedTuple):
    """The content of headers, parsed."""

    context: Context = Context()
    span: SpanContext = trace.INVALID_SPAN_CONTEXT
    malformed: str | None = None
    """The header of ours that cannot be read."""


def read(headers: Mapping[str, str]) -> Parsed:
    """Read headers; those of a `Carrier` once, however often it is asked for."""
    if not isinstance(headers, Carrier):
        return _parse(headers)
    if headers.parsed is None:
        headers.parsed = _parse(headers)
    return headers.parsed  # type: ignore[no-any-return]


def _parse(headers: Mapping[str, str]) -> Parsed:
    try:
        ours, others = _split(headers)
        # OpenTelemetry logs what of it is malformed, as it was sent.
        if baggage_sent := others.pop(_BAGGAGE, None):
            others[_BAGGAGE] = w3c.read_baggage(baggage_sent)
        context = _foreign(others, Context())
        parent, malformed = w3c.read(ours)
        if parent is not None:
            context = trace.set_span_in_context(trace.NonRecordingSpan(parent), context)
        span = trace.get_current_span(context).get_span_context()
        return Parsed(context, span, malformed)
    except Exception as error:  # noqa: BLE001 - whatever was sent, it is as if absent
        logger.debug("trace context was malformed: error=%s", type(error).__name__)
        return Parsed()


def _foreign(headers: dict[str, str], context: Context) -> Context:
    try:
        return propagate.extract(headers, context)
    except Exception as error:  # noqa: BLE001 - must not hide traceparent
        # Its class only: the text may be what a client sent.
        logger.debug("a propagator failed to extract: error=%s", type(error).__name__)
        return context


def _split(headers: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Separate our headers from those of other propagators: none is read twice."""
    ours: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower()
        target = ours if key in _OURS else others
        target[key] = f"{target[key]},{value}" if key in target else value
    return ours, others
