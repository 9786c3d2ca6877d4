"""`sw8` and `sw8-correlation` in and out.

Nothing here imports the SDK.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import Final

from opentelemetry import baggage, trace
from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import (
    CarrierT,
    Getter,
    Setter,
    TextMapPropagator,
    default_getter,
    default_setter,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from . import in_use
from .headers import Sw8, format_correlation, format_sw8, parse_correlation, parse_sw8
from .in_use import CALLER

SW8: Final = "sw8"
CORRELATION: Final = "sw8-correlation"
PREFIX: Final = "sw."
"""Of baggage entries that are SkyWalking's correlation."""

_OPENTELEMETRY_ID: Final = re.compile(r"(?!0{32})[0-9a-f]{32}")
_malformed = 0
"""Counted without a lock, which a fork could copy while it is held."""


def malformed() -> int:
    """Return how many `sw8` headers could not be read since this process began."""
    return _malformed


class SkyWalkingPropagator(TextMapPropagator):
    """Reads and writes SkyWalking's headers. Never raises, for any input.

    A header that cannot be read is as if absent, and counted. Where only `sw8` arrived,
    a parent is derived from it, the same in every service that gets the same header. A
    correlation without `sw8` is ignored: it would be sent on under a `sw8` of ours.
    """

    def extract(
        self,
        carrier: CarrierT,
        context: Context | None = None,
        getter: Getter[CarrierT] = default_getter,
    ) -> Context:
        """Read both headers; a context that had a caller before loses it."""
        into = contexts.get_current() if context is None else context
        caller = _read(getter.get(carrier, SW8))
        into = contexts.set_value(CALLER, caller, into)
        known = trace.get_current_span(into).get_span_context()
        if caller is not None and not known.is_valid:
            into = trace.set_span_in_context(NonRecordingSpan(_parent(caller)), into)
        correlation = getter.get(carrier, CORRELATION) if caller is not None else None
        for value in correlation or ():
            for key, text in parse_correlation(value).items():
                into = baggage.set_baggage(f"{PREFIX}{key}", text, into)
        return into

    def inject(
        self,
        carrier: CarrierT,
        context: Context | None = None,
        setter: Setter[CarrierT] = default_setter,
    ) -> None:
        """Write `sw8` for a sampled span of ours, or hand on what came."""
        current = trace.get_current_span(context).get_span_context()
        header = _header(current, context)
        if header is None:
            return
        setter.set(carrier, SW8, format_sw8(header))
        pairs = {
            key.removeprefix(PREFIX): str(value)
            for key, value in baggage.get_all(context).items()
            if key.startswith(PREFIX)
        }
        if pairs:
            setter.set(carrier, CORRELATION, format_correlation(pairs))

    @property
    def fields(self) -> set[str]:
        """The headers that it writes."""
        return {SW8, CORRELATION}


def _header(current: SpanContext, context: Context | None) -> Sw8 | None:
    """Return the current span's place, or the received header if it is not ours."""
    if not (current.is_valid and current.trace_flags.sampled):
        return None
    processor = in_use.processor()
    if processor and (own := processor.header(current)) is not None:
        return own
    caller = contexts.get_value(CALLER, context)
    return caller if current.is_remote and isinstance(caller, Sw8) else None


def _read(values: list[str] | None) -> Sw8 | None:
    global _malformed
    if not values or values == [""]:
        return None
    caller = parse_sw8(values[0]) if len(values) == 1 else None
    if caller is None:
        _malformed += 1
    return caller


@functools.lru_cache(256)
def _parent(caller: Sw8) -> SpanContext:
    trace_id = caller.trace_id
    if not _OPENTELEMETRY_ID.fullmatch(trace_id):
        trace_id = hashlib.sha256(trace_id.encode()).hexdigest()[:32]
    span = f"{caller.segment_id}/{caller.span_index}".encode()
    return SpanContext(
        int(trace_id, 16),
        int(hashlib.sha256(span).hexdigest()[:16], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(caller.sampled)),
    )
