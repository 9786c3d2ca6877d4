"""Where each span stands in SkyWalking: its segment and its index, fixed at its start.

SkyWalking stores segments, each of them once, and a header names a segment and an index
in it. So both must be known when the span starts: what a header has promised cannot be
changed later. A span joins the segment of its parent while that is young and whole;
else it begins a segment that refers to its parent. A segment is handed on when all in
it has ended, a moment later, because what comes next often begins right then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, SpanKind

from tracing_2pc.skywalking.headers import Sw8

SPLIT: Final = 5.0
"""Seconds after which a segment takes no more spans: phases of what takes long are
seen as they end."""

HOLD: Final = 30.0
"""Seconds after which a segment is sent with what is still open, marked incomplete: a
call that hangs is seen while it hangs, and no header refers to nothing."""

LINGER: Final = 0.2
"""Seconds for which a segment waits, with all in it ended, for what comes next."""

REMEMBERED: Final = 65536
"""Ended spans that are known as parents of late ones, and open ones that may end."""

ENTRIES: Final = (SpanKind.SERVER, SpanKind.CONSUMER)

_Key = tuple[int, int]


class Place(NamedTuple):
    """Where a span stands.

    Attributes:
        trace: id of the SkyWalking trace.
        segment: id of the segment.
        position: in the segment, from 0.
        endpoint: name of the segment's first span.
    """

    trace: str
    segment: str
    position: int
    endpoint: str


class Reference(NamedTuple):
    """What the first span of a segment follows from; without a service, our own."""

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
    references: tuple[Reference, ...]
    incomplete: bool = False


class Piece(NamedTuple):
    """What is sent at once: a segment, or the end of a span that was incomplete."""

    trace: str
    segment: str
    spans: list[Placed]


class _Segment:
    """A segment that was not sent yet, or what is left open of one that was."""

    __slots__ = (
        "count",
        "ended",
        "endpoint",
        "full",
        "id",
        "idle",
        "open",
        "parts",
        "promised",
        "sent",
        "since",
        "trace",
    )

    def __init__(self, trace: str, identity: str, endpoint: str, now: float) -> None:
        self.trace = trace
        self.id = identity
        self.endpoint = endpoint
        self.since = self.idle = now
        self.count = self.parts = 0
        self.open: dict[int, _Open] = {}
        self.ended: list[Placed] = []
        self.promised = self.sent = self.full = False

    def takes(self, now: float) -> bool:
        return not self.full and now - self.since < SPLIT

    def is_due(self, now: float) -> bool:
        if not self.open:
            return now - self.idle >= LINGER
        return now - self.since >= HOLD and bool(self.ended or self.promised)

    def as_it_is(self) -> Piece:
        """Return all of it: what is open is shown as incomplete. Once."""
        self.sent = self.full = True
        incomplete = [o.placed(o.span, incomplete=True) for o in self.open.values()]
        spans, self.ended = [*self.ended, *incomplete], []
        return Piece(self.trace, self.id, spans)

    def rest(self, opened: _Open, span: ReadableSpan) -> Piece:
        """Return the end of a span that was sent as incomplete."""
        self.parts += 1
        before = Reference("CrossThread", self.place(opened.position))
        end = Placed(span, 0, -1, (before,))
        return Piece(self.trace, f"{self.id}.{self.parts}", [end])

    def place(self, position: int) -> Place:
        return Place(self.trace, self.id, position, self.endpoint)


class _Open:
    """A span that has not ended, or a root whose end is somebody else's to tell."""

    __slots__ = ("parent", "position", "references", "reserved", "segment", "span")

    def __init__(
        self,
        span: ReadableSpan,
        segment: _Segment,
        parent: int,
        references: tuple[Reference, ...],
        *,
        reserved: bool,
    ) -> None:
        self.span = span
        self.segment = segment
        self.position = segment.count
        self.parent = parent
        self.references = references
        self.reserved = reserved

    def placed(self, span: ReadableSpan, *, incomplete: bool = False) -> Placed:
        return Placed(span, self.position, self.parent, self.references, incomplete)


_At = tuple[_Segment, int]
_NOWHERE: Final = (None, 0)


class Segments:
    """The segments of some traces. Safe for threads; nothing in here waits."""

    def __init__(self) -> None:
        # Reentrant: a collection of garbage may end a span in the middle of it.
        self._lock = threading.RLock()
        self._open: dict[_Key, _Open] = {}
        self._ended: dict[_Key, _At] = {}
        self._unsent: dict[str, _Segment] = {}

    def start(self, span: ReadableSpan, caller: Sw8 | None, now: float) -> None:
        """Fix a span's place.

        Args:
            span: as it starts.
            caller: what came in a header or a carrier, for a span without a parent
                of this process.
            now: seconds that only rise.
        """
        parent = None if span.parent is None else _key(span.parent)
        with self._lock:
            segment, position = self._at(parent) if parent else _NOWHERE
            if segment and segment.takes(now) and span.kind not in ENTRIES:
                self._enter(span, segment, position, ())
            else:
                above = segment.place(position) if segment else None
                linked = self._linked(span, above) if span.links else ()
                self._begin(span, (*_references(span, caller, above), *linked), now)

    def _at(self, key: _Key) -> _At | tuple[None, int]:
        if opened := self._open.get(key):
            return opened.segment, opened.position
        return self._ended.get(key, _NOWHERE)

    def _linked(self, span: ReadableSpan, above: Place | None) -> Iterator[Reference]:
        """Refer to what a span links to, if it is of its trace and its place is known.

        SkyWalking shows one trace at a time: a link to another one is a tag.
        """
        trace_id = context_of(span).trace_id
        for key in dict.fromkeys(_key(link.context) for link in span.links):
            segment, position = self._at(key)
            place = segment.place(position) if segment else None
            if key[0] == trace_id and place and place != above:
                yield Reference("CrossThread", place)

    def reserve(self, root: ReadableSpan, now: float) -> None:
        """Fix the place of a root that is exported later, by its ids."""
        with self._lock:
            self._begin(root, (), now, reserved=True)

    def know(self, root: SpanContext, name: str) -> None:
        """Know where a root will stand that another process may export."""
        with self._lock:
            self._remember(_key(root), _sent(_first(_key(root), name)))

    def _begin(
        self,
        span: ReadableSpan,
        references: tuple[Reference, ...],
        now: float,
        *,
        reserved: bool = False,
    ) -> None:
        first = _first(_key(context_of(span)), span.name)
        trace = references[0].place.trace if references else first.trace
        segment = _Segment(trace, first.segment, first.endpoint, now)
        self._unsent[segment.id] = segment
        self._enter(span, segment, -1, references, reserved=reserved)

    def _enter(
        self,
        span: ReadableSpan,
        segment: _Segment,
        parent: int,
        references: tuple[Reference, ...],
        *,
        reserved: bool = False,
    ) -> None:
        opened = _Open(span, segment, parent, references, reserved=reserved)
        segment.open[opened.position] = opened
        segment.count += 1
        self._open[_key(context_of(span))] = opened
        if len(self._open) > REMEMBERED:  # one that will never end
            oldest = self._open.pop(next(iter(self._open)))
            shown = oldest.placed(oldest.span, incomplete=True)
            self._close(oldest, shown, oldest.segment.idle)

    def end(self, span: ReadableSpan, now: float) -> Piece | None:
        """Note that a span has ended; return what must be sent by itself."""
        key = _key(context_of(span))
        with self._lock:
            opened = self._open.pop(key, None)
            if opened is None:  # begun before us, or in another process
                return self._unknown(key, span)
            self._remember(key, (opened.segment, opened.position))
            if opened.segment.sent:
                del opened.segment.open[opened.position]
                return opened.segment.rest(opened, span)
            self._close(opened, opened.placed(span), now)
            opened.segment.full |= opened.reserved
            return None

    def _close(self, opened: _Open, placed: Placed, now: float) -> None:
        segment = opened.segment
        segment.open.pop(opened.position, None)
        segment.ended.append(placed)
        segment.idle = now

    def _unknown(self, key: _Key, span: ReadableSpan) -> Piece:
        place = _first(key, span.name)
        self._remember(key, _sent(place))
        return Piece(place.trace, place.segment, [Placed(span, 0, -1, ())])

    def _remember(self, key: _Key, at: _At) -> None:
        self._ended[key] = at
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def promise(self, span: SpanContext) -> tuple[Place, ReadableSpan | None] | None:
        """Return a span's place for a header, and the span while it is open.

        From then on its segment is sent in time, whatever becomes of the span.
        """
        with self._lock:
            segment, position = self._at(_key(span))
            if segment is None:
                return None
            opened = segment.open.get(position)
            segment.promised |= opened is not None
            return segment.place(position), opened.span if opened else None

    def due(self, now: float) -> Iterator[Piece]:
        """Yield the segments whose time has come."""
        return self._take(lambda segment: segment.is_due(now))

    def whole(self) -> Iterator[Piece]:
        """Yield the segments in which all has ended."""
        return self._take(lambda segment: not segment.open)

    def everything(self) -> Iterator[Piece]:
        """Yield all that was not sent, open spans as incomplete."""
        return self._take(lambda _: True)

    def _take(self, ready: Callable[[_Segment], bool]) -> Iterator[Piece]:
        for identity in list(self._unsent):
            with self._lock:
                segment = self._unsent.get(identity)
                if segment is None or not ready(segment):
                    continue
                del self._unsent[identity]
                piece = segment.as_it_is()
            yield piece


def _references(
    span: ReadableSpan, caller: Sw8 | None, above: Place | None
) -> Iterator[Reference]:
    """Refer to the caller of an entry, and to the parent of anything else."""
    called = caller and Reference(
        "CrossProcess",
        Place(caller.trace_id, caller.segment_id, caller.span_index, caller.endpoint),
        caller.service,
        caller.instance,
        caller.peer,
    )
    if above and not (called and span.kind in ENTRIES):
        kind = "CrossProcess" if span.kind in ENTRIES else "CrossThread"
        yield Reference(kind, above)
    elif called:
        yield called


def context_of(span: ReadableSpan) -> SpanContext:
    """Return the ids of a span that was started."""
    return span.context or INVALID_SPAN_CONTEXT


def _first(key: _Key, name: str) -> Place:
    """Return the place of a span that begins a segment, in a trace of its own."""
    trace = f"{key[0]:032x}"
    return Place(trace, f"{trace}.{key[1]:016x}", 0, name)


def _sent(place: Place) -> _At:
    """Return where a span stands whose segment is not ours to fill."""
    segment = _Segment(place.trace, place.segment, place.endpoint, 0.0)
    segment.sent = segment.full = True
    return segment, place.position


def _key(context: SpanContext) -> _Key:
    return context.trace_id, context.span_id
