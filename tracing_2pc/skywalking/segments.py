"""Where each span stands in SkyWalking: its segment and its index, fixed at its start.

SkyWalking stores each segment once, and a header names a segment and an index in it.
So both must be known when the span starts. A span joins the segment of its parent while
that is young and unsent; else it begins a segment that refers to its parent. A segment
is sent a moment after all in it has ended, because the next span often begins then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, SpanKind

from .headers import Sw8, parse_sw8

SPLIT: Final = 5.0
"""Seconds after which a segment takes no more spans, so that long work is seen."""

HOLD: Final = 30.0
"""Seconds after which a segment is sent with its open spans, marked incomplete: a call
that hangs is seen, and no header refers to nothing."""

LINGER: Final = 0.2
"""Seconds for which a segment waits, with all in it ended, for what comes next."""

REMEMBERED: Final = 1 << 20
"""Ended spans that are known as parents of late ones, and open ones that may end."""

ENTRIES: Final = (SpanKind.SERVER, SpanKind.CONSUMER)

_Key = tuple[int, int]


class Place(NamedTuple):
    """Where a span stands: its segment's trace, id and first span, and its index."""

    trace: str
    segment: str
    position: int
    endpoint: str


class Reference(NamedTuple):
    """The parent of a segment's first span; without a service, our own."""

    kind: str
    place: Place
    service: str = ""
    instance: str = ""
    peer: str = ""


class Placed(NamedTuple):
    """A span in its segment. One that is incomplete has not ended yet."""

    span: ReadableSpan
    position: int
    parent: int
    references: tuple[Reference, ...] = ()
    incomplete: bool = False


class Piece(NamedTuple):
    """The unit of sending: a segment, or the end of a span that was incomplete."""

    trace: str
    segment: str
    spans: list[Placed]


@dataclass(slots=True)
class Segment:
    """A segment that was not sent yet, or the open rest of one that was."""

    trace: str
    id: str
    endpoint: str
    since: float
    idle: float
    count: int = 0
    parts: int = 0
    open: dict[int, Placed] = field(default_factory=dict)
    ended: list[Placed] = field(default_factory=list)
    is_reserved: bool = False
    """Its first span is a root that another process may end."""
    in_header: bool = False  # it was named there: it must be sent
    sent: bool = False
    full: bool = False

    def takes(self, now: float) -> bool:
        """Whether a span may join it."""
        return not self.full and now - self.since < SPLIT

    def is_due(self, now: float) -> bool:
        """Whether its time to be sent has come."""
        if not self.open:
            return now - self.idle >= LINGER
        return now - self.since >= HOLD and bool(self.ended or self.in_header)

    def piece(self) -> Piece:
        """Return all of it, once. An open span is in it as incomplete."""
        self.sent = self.full = True
        incomplete = [span._replace(incomplete=True) for span in self.open.values()]
        spans, self.ended = [*self.ended, *incomplete], []
        return Piece(self.trace, self.id, spans)

    def rest(self, placed: Placed, origins: tuple[Reference, ...]) -> Piece:
        """Return the end of a span that was sent as incomplete."""
        self.parts += 1
        before = Reference("CrossThread", self.place(placed.position))
        end = Placed(placed.span, 0, -1, (before, *origins))
        return Piece(self.trace, f"{self.id}.{self.parts}", [end])

    def place(self, position: int) -> Place:
        """Return where a span of this segment stands."""
        return Place(self.trace, self.id, position, self.endpoint)


_At = tuple[Segment, int]
_NOWHERE: Final = (None, 0)


class Segments:
    """The segments of a process. Safe for threads; nothing in here waits."""

    def __init__(self) -> None:
        # Reentrant: a collection of garbage may end a span in the middle of it.
        self._lock = threading.RLock()
        self._open: dict[_Key, _At] = {}
        self._ended: dict[_Key, _At] = {}
        self._unsent: dict[str, Segment] = {}

    def start(self, span: ReadableSpan, caller: Sw8 | None, now: float) -> None:
        """Fix a span's place; `caller` came in a header, `now` is seconds that rise."""
        with self._lock:
            segment, position = self._at(span.parent or INVALID_SPAN_CONTEXT)
            if segment and segment.takes(now) and span.kind not in ENTRIES:
                self._enter(span, segment, position, ())
            else:
                above = segment.place(position) if segment else None
                linked = self._linked(span, above) if span.links else ()
                self._begin(span, (*_references(span, caller, above), *linked), now)

    def _at(self, context: SpanContext) -> _At | tuple[None, int]:
        key = _key(context)
        return self._open.get(key) or self._ended.get(key) or _NOWHERE

    def _linked(self, span: ReadableSpan, above: Place | None) -> Iterator[Reference]:
        """Refer to a linked span, if it is of the same trace and its place is known.

        SkyWalking shows one trace at a time: a link to another one is a tag.
        """
        trace_id = context_of(span).trace_id
        linked = {_key(link.context): link.context for link in span.links}
        for context in linked.values():
            segment, position = self._at(context)
            place = segment.place(position) if segment else None
            if context.trace_id == trace_id and place and place != above:
                yield Reference("CrossThread", place)

    def reserve(self, root: ReadableSpan, now: float) -> None:
        """Fix the place of a root that is exported later, by its ids."""
        with self._lock:
            self._begin(root, (), now).is_reserved = True

    def reserve_elsewhere(self, root: SpanContext, name: str) -> Segment:
        """Remember a remote span's segment and index."""
        segment = _new_segment(_key(root), name, 0.0)
        segment.sent = segment.full = True
        with self._lock:
            self._remember(_key(root), (segment, 0))
        return segment

    def _begin(
        self, span: ReadableSpan, references: tuple[Reference, ...], now: float
    ) -> Segment:
        segment = _new_segment(_key(context_of(span)), span.name, now)
        if references:
            segment.trace = references[0].place.trace
        self._unsent[segment.id] = segment
        self._enter(span, segment, -1, references)
        return segment

    def _enter(
        self,
        span: ReadableSpan,
        segment: Segment,
        parent: int,
        references: tuple[Reference, ...],
    ) -> None:
        position = segment.count
        segment.open[position] = Placed(span, position, parent, references)
        segment.count += 1
        self._open[_key(context_of(span))] = segment, position
        if len(self._open) > REMEMBERED:  # one that will never end
            segment, position = self._open.pop(next(iter(self._open)))
            endless = segment.open.pop(position)
            segment.ended.append(endless._replace(incomplete=True))

    def end(self, span: ReadableSpan, now: float) -> Piece | None:
        """Note that a span has ended; return what must be sent by itself."""
        context, origins = context_of(span), tuple(_origins(span))
        with self._lock:
            place = self._open.pop(_key(context), None)
            if place is None:  # begun before us, or in another process
                segment = self.reserve_elsewhere(context, span.name)
                return Piece(segment.trace, segment.id, [Placed(span, 0, -1, origins)])
            self._remember(_key(context), place)
            segment, position = place
            placed = segment.open.pop(position)._replace(span=span)
            if segment.sent:
                return segment.rest(placed, origins)
            placed = placed._replace(references=(*placed.references, *origins))
            segment.ended.append(placed)
            segment.idle = now
            segment.full |= segment.is_reserved and position == 0
            return None

    def _remember(self, key: _Key, place: _At) -> None:
        self._ended[key] = place
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def place_for_header(
        self, span: SpanContext
    ) -> tuple[Place, ReadableSpan | None] | None:
        """Return a span's place, and it while open; its segment is sent in time now."""
        with self._lock:
            segment, position = self._at(span)
            if segment is None:
                return None
            placed = segment.open.get(position)
            segment.in_header |= placed is not None
            return segment.place(position), placed.span if placed else None

    def take(self, is_ready: Callable[[Segment], bool]) -> Iterator[Piece]:
        """Yield the segments that are ready and were not sent yet."""
        for identity in list(self._unsent):
            with self._lock:
                segment = self._unsent.get(identity)
                if segment is None or not is_ready(segment):
                    continue
                del self._unsent[identity]
                piece = segment.piece()
            yield piece


def _references(
    span: ReadableSpan, caller: Sw8 | None, above: Place | None
) -> Iterator[Reference]:
    """Refer to the caller of an entry, and to the parent of anything else."""
    called = caller and _reference(caller)
    if above and not (called and span.kind in ENTRIES):
        kind = "CrossProcess" if span.kind in ENTRIES else "CrossThread"
        yield Reference(kind, above)
    elif called:
        yield called


def _origins(span: ReadableSpan) -> Iterator[Reference]:
    """Refer to the spans that a span links to by `sw8`."""
    for link in span.links:
        if (text := (link.attributes or {}).get("sw8")) and (
            header := parse_sw8(str(text))
        ):
            yield _reference(header)


def _reference(header: Sw8) -> Reference:
    place = Place(
        header.trace_id, header.segment_id, header.span_index, header.endpoint
    )
    return Reference(
        "CrossProcess", place, header.service, header.instance, header.peer
    )


def context_of(span: ReadableSpan) -> SpanContext:
    """Return the ids of a span that was started."""
    return span.context or INVALID_SPAN_CONTEXT


def _new_segment(key: _Key, name: str, now: float) -> Segment:
    """Make the segment that a span begins, in a trace of its own."""
    trace = f"{key[0]:032x}"
    return Segment(trace, f"{trace}.{key[1]:016x}", name, now, now)


def _key(context: SpanContext) -> _Key:
    return context.trace_id, context.span_id
