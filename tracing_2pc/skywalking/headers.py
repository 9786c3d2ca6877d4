"""`sw8` and `sw8-correlation`, read strictly and written.

The formats are SkyWalking's cross process propagation headers, version 3, and its
correlation context, version 1. What is in doubt counts as absent: nothing here raises,
whatever was sent, and no work is done on more than two kibibytes.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
from typing import Final, NamedTuple

MAX_BYTES: Final = 2048
"""Longest header value that is looked at; the specification's limit for `sw8`."""

MAX_PAIRS: Final = 3
MAX_TEXT: Final = 128
"""Bytes of a correlation key or value."""

_INDEX: Final = re.compile(r"[0-9]{1,10}")
_LAST_INDEX: Final = 2**31 - 1


class Sw8(NamedTuple):
    """Where a request comes from, as its caller's SkyWalking tells it.

    Attributes:
        sampled: False if the caller keeps no trace of this.
        trace_id: of the whole SkyWalking trace.
        segment_id: the caller's segment.
        span_index: the calling span in that segment, from 0.
        service: the caller's service.
        instance: the caller's process.
        endpoint: what the caller itself was asked.
        peer: the address that the caller used for us.
    """

    sampled: bool
    trace_id: str
    segment_id: str
    span_index: int
    service: str
    instance: str
    endpoint: str
    peer: str


def parse_sw8(value: str) -> Sw8 | None:
    """Read an `sw8` header; None if it is not exactly one. Never raises.

    Control characters in a decoded field are in doubt too: they have no place in an id
    or a name, and would go on into logs and pages.
    """
    return _parsed(_bounded(value))


@functools.lru_cache(256)
def _parsed(value: str) -> Sw8 | None:
    # Remembered, because each step of a transaction reads the same carrier.
    fields = value.split("-")
    if len(fields) != 8 or fields[0] not in ("0", "1"):
        return None
    if not _INDEX.fullmatch(fields[3]) or int(fields[3]) > _LAST_INDEX:
        return None
    texts = [_decoded(fields[at]) for at in (1, 2, 4, 5, 6, 7)]
    trace_id, segment_id, service, instance, endpoint, peer = texts
    if not (trace_id and segment_id and service and instance and endpoint and peer):
        return None
    return Sw8(
        fields[0] == "1",
        trace_id,
        segment_id,
        int(fields[3]),
        service,
        instance,
        endpoint,
        peer,
    )


def format_sw8(context: Sw8) -> str:
    """Write an `sw8` header."""
    sampled, trace_id, segment_id, index, *names = context
    ids = _encoded(trace_id), _encoded(segment_id)
    return "-".join([str(int(sampled)), *ids, str(index), *map(_name, names)])


def parse_correlation(value: str) -> dict[str, str]:
    """Read an `sw8-correlation` header. Never raises.

    At most three pairs of at most 128 bytes each; what is not a pair is left out.
    """
    pairs: dict[str, str] = {}
    for item in _bounded(value).split(","):
        key, colon, text = item.strip().partition(":")
        name, meant = _decoded(key), _decoded(text)
        if not colon or not name or meant is None or len(pairs) == MAX_PAIRS:
            continue
        if max(len(name.encode()), len(meant.encode())) <= MAX_TEXT:
            pairs[name] = meant
    return pairs


def format_correlation(pairs: dict[str, str]) -> str:
    """Write an `sw8-correlation` header: the first three pairs that fit."""
    fitting = [
        f"{_encoded(key)}:{_encoded(text)}"
        for key, text in pairs.items()
        if max(len(key.encode()), len(text.encode())) <= MAX_TEXT
    ]
    return ",".join(fitting[:MAX_PAIRS])


def _bounded(value: str) -> str:
    return value if len(value) <= MAX_BYTES and value.isascii() else ""


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode("ascii")


_name: Final = functools.lru_cache(1024)(_encoded)  # few, and in every header


def _decoded(field: str) -> str | None:
    """Return printable text from its one spelling in base64, or None."""
    try:
        text = base64.b64decode(field, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    return text if text.isprintable() and _encoded(text) == field else None
