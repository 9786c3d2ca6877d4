"""W3C Trace Context, level 2: what `traceparent` and `tracestate` may hold.

OpenTelemetry reads `tracestate` by the grammar of level 1, drops a whole list for one
key that stands in it twice, and logs what it was sent. This reads what level 2 allows,
and logs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from opentelemetry.trace import SpanContext, TraceFlags, TraceState

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

_PARENT: Final = re.compile(
    r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
)
_MEMBER: Final = re.compile(
    r"([a-z0-9][a-z0-9_*/@-]{0,255})"
    r"=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e])"
)
_BLANKS: Final = " \t"
_MEMBERS: Final = 32
_LONGEST_PARENT: Final = 512
_LONGEST_STATE: Final = 8192
_KEPT_STATE: Final = 512
_LONG_MEMBER: Final = 128
_KNOWN_FLAGS: Final = 0x03
"""Sampled and random. A flag that we don't know is not sent on."""


class Found(NamedTuple):
    """What the two headers say.

    Args:
        parent: the caller's span; None for none.
        malformed: the header that is as if absent, because it cannot be read.
    """

    parent: SpanContext | None
    malformed: str | None = None


class Members(TraceState):
    """A list of level 2; the constructor of level 1 would leave out some of it."""

    def __init__(self, members: dict[str, str]) -> None:
        super().__init__()
        self._dict = members


def read(headers: Mapping[str, object]) -> Found:
    """Read both headers, by their names in lower case. Never raises.

    Without a `traceparent` that can be read nobody looks at `tracestate`; a
    `tracestate` that cannot be read costs itself only.
    """
    sent = headers.get(TRACEPARENT)
    if sent is None:
        return Found(None)
    parts = _parts(sent)
    if parts is None:
        return Found(None, TRACEPARENT)
    state = _state(headers.get(TRACESTATE, ""))
    trace, span, flags = parts
    parent = SpanContext(
        trace, span, is_remote=True, trace_flags=flags, trace_state=state
    )
    return Found(parent, TRACESTATE if state is None else None)


def shortened(state: str) -> str:
    """Return whole members of a list, as many as is well to keep.

    First those of more than 128 characters go, then those at the end, as W3C says;
    at least 512 characters are to be kept, and no more are.
    """
    members = state.split(",")
    if len(state) > _KEPT_STATE:
        members = [member for member in members if len(member) <= _LONG_MEMBER]
    while len(",".join(members)) > _KEPT_STATE:
        members.pop()
    return ",".join(members)


def _parts(sent: object) -> tuple[int, int, TraceFlags] | None:
    if not isinstance(sent, str) or len(sent) > _LONGEST_PARENT:
        return None
    if not (match := _PARENT.fullmatch(sent.strip(_BLANKS))):
        return None
    version, trace, span, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not int(trace, 16):
        return None
    if not int(span, 16):
        return None
    return int(trace, 16), int(span, 16), TraceFlags(int(flags, 16) & _KNOWN_FLAGS)


def _state(sent: object) -> Members | None:
    """Read a list. Of a key that is there twice the first is kept, the newest."""
    if not isinstance(sent, str) or len(sent) > _LONGEST_STATE:
        return None
    members: dict[str, str] = {}
    listed = [text for item in sent.split(",") if (text := item.strip(_BLANKS))]
    if len(listed) > _MEMBERS:
        return None
    for text in listed:
        if not (match := _MEMBER.fullmatch(text)):
            return None
        members.setdefault(match[1], match[2])
    return Members(members)
