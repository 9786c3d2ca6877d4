"""W3C Trace Context, level 2, and W3C Baggage: the well-formed part of headers.

OpenTelemetry reads `tracestate` by the grammar of level 1, drops a whole list for one
key that stands in it twice, and logs what it was sent, before a token was looked at.
This reads what level 2 allows, and logs nothing. Nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

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
_WHITESPACE: Final = " \t"
_MAX_MEMBERS: Final = 32
_LONGEST_PARENT: Final = 512
_LONGEST_LIST: Final = 8192
_KEPT_STATE: Final = 512
_LONG_MEMBER: Final = 128
_KNOWN_FLAGS: Final = 0x03
"""Sampled and random. A flag that we don't know is not sent on."""

_SPACE: Final = r"[ \t]*"
_KEY: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_VALUE: Final = r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*"
_PAIR: Final = f"{_KEY}{_SPACE}={_SPACE}{_VALUE}"
_BAGGAGE: Final = re.compile(
    f"{_PAIR}(?:{_SPACE};{_SPACE}(?:{_PAIR}|{_KEY}))*", re.ASCII
)
_SEPARATOR: Final = re.compile(f"{_SPACE}([=;]){_SPACE}")
_LONGEST_BAGGAGE_MEMBER: Final = 4096
_MAX_BAGGAGE_MEMBERS: Final = 180


class LevelTwoState(TraceState):
    """A `tracestate` of level 2; the constructor of level 1 leaves out some of it."""

    def __init__(self, members: dict[str, str]) -> None:
        super().__init__()
        self._dict = members


def read(headers: Mapping[str, object]) -> tuple[SpanContext | None, str | None]:
    """Read both headers, by their names in lower case.

    Returns the caller's span, and the header that cannot be read, if there is one.
    Without a `traceparent` that can be read `tracestate` is ignored; a `tracestate`
    that cannot be read costs itself only.
    """
    sent = headers.get(TRACEPARENT)
    if sent is None:
        return None, None
    if (parts := _parts(sent)) is None:
        return None, TRACEPARENT
    state = _state(headers.get(TRACESTATE, ""))
    trace, span, flags = parts
    parent = SpanContext(
        trace, span, is_remote=True, trace_flags=flags, trace_state=state
    )
    return parent, TRACESTATE if state is None else None


def shorten_state(state: str) -> str:
    """Return whole members of a list, 512 characters at most.

    As W3C requires, those of more than 128 characters go first, then those at the end.
    """
    members = state.split(",")
    if len(state) > _KEPT_STATE:
        members = [member for member in members if len(member) <= _LONG_MEMBER]
    while len(",".join(members)) > _KEPT_STATE:
        members.pop()
    return ",".join(members)


def read_baggage(sent: object) -> str:
    """Return the members of a `baggage` header that are well-formed; empty for none.

    A header that is longer than the specification asks for is as if absent.
    """
    if not isinstance(sent, str) or len(sent) > _LONGEST_LIST:
        return ""
    listed = (item.strip(_WHITESPACE) for item in sent.split(","))
    members = [_SEPARATOR.sub(r"\1", m) for m in listed if _BAGGAGE.fullmatch(m)]
    short = [m for m in members if len(m) <= _LONGEST_BAGGAGE_MEMBER]
    return ",".join(short[:_MAX_BAGGAGE_MEMBERS])


def _parts(sent: object) -> tuple[int, int, TraceFlags] | None:
    if not isinstance(sent, str) or len(sent) > _LONGEST_PARENT:
        return None
    if not (match := _PARENT.fullmatch(sent.strip(_WHITESPACE))):
        return None
    version, trace, span, flags, more = match.groups()
    if version == "ff" or (version == "00" and more):
        return None
    if not (int(trace, 16) and int(span, 16)):
        return None
    return int(trace, 16), int(span, 16), TraceFlags(int(flags, 16) & _KNOWN_FLAGS)


def _state(sent: object) -> LevelTwoState | None:
    """Read a list. Of a key that is there twice the first is kept, the newest."""
    if not isinstance(sent, str) or len(sent) > _LONGEST_LIST:
        return None
    members: dict[str, str] = {}
    listed = [text for item in sent.split(",") if (text := item.strip(_WHITESPACE))]
    if len(listed) > _MAX_MEMBERS:
        return None
    for text in listed:
        if not (match := _MEMBER.fullmatch(text)):
            return None
        members.setdefault(match[1], match[2])
    return LevelTwoState(members)
