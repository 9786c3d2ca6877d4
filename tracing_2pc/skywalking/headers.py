"""`sw8` and `sw8-correlation`, read strictly and written.

The formats are SkyWalking's cross process propagation headers, version 3, and its
correlation context, version 1. A doubtful value counts as absent: nothing here raises,
for any input, and no work is done on more than two kibibytes.
"""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import re
from typing import Final, NamedTuple

MAX_BYTES: Final = 2048
"""Longest header value that is looked at; the specification's limit for `sw8`."""

_MOST_OF_NAME: Final = 350
"""Bytes of each name where a header would be too long: four fit, with our ids."""

MAX_PAIRS: Final = 3
MAX_TEXT: Final = 128
"""Bytes of a correlation key or value."""

_INDEX: Final = re.compile(r"[0-9]{1,10}")
_LAST_INDEX: Final = 2**31 - 1


class Sw8(NamedTuple):
    """Where a request comes from, as its caller's SkyWalking tells it."""

    sampled: bool
    """False if the caller keeps no trace of this."""
    trace_id: str
    segment_id: str
    span_index: int
    """The calling span in its segment, from 0."""
    service: str
    instance: str
    """The caller's process."""
    endpoint: str
    """What the caller itself was asked."""
    peer: str
    """The address that the caller used for us."""


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
    texts = [text for index in (1, 2, 4, 5, 6, 7) if (text := _decoded(fields[index]))]
    if len(texts) != 6:
        return None
    trace_id, segment_id, *names = texts
    return Sw8(fields[0] == "1", trace_id, segment_id, int(fields[3]), *names)


def format_sw8(context: Sw8) -> str:
    """Write an `sw8` header; long names are cut where its readers would refuse it."""
    sampled, trace_id, segment_id, index, *names = context
    ids = _encoded(trace_id), _encoded(segment_id)
    header = "-".join([str(int(sampled)), *ids, str(index), *map(_name, names)])
    if len(header) <= MAX_BYTES:
        return header
    cut = (name.encode()[:_MOST_OF_NAME].decode(errors="ignore") for name in names)
    return "-".join([str(int(sampled)), *ids, str(index), *map(_name, cut)])


def parse_correlation(value: str) -> dict[str, str]:
    """Read `sw8-correlation`: three pairs, 128 bytes each, no more. Never raises."""
    pairs: dict[str, str] = {}
    for item in _bounded(value).split(","):
        key, colon, text = item.strip().partition(":")
        name, meant = _decoded(key), _decoded(text)
        if not colon or not name or meant is None or len(pairs) == MAX_PAIRS:
            continue
        if _fits(name, meant):
            pairs[name] = meant
    return pairs


def format_correlation(pairs: dict[str, str]) -> str:
    """Write an `sw8-correlation` header: the first three pairs that fit."""
    fitting = [pair for pair in pairs.items() if _fits(*pair)]
    encoded = (f"{_encoded(key)}:{_encoded(text)}" for key, text in fitting)
    return ",".join(itertools.islice(encoded, MAX_PAIRS))


def _fits(key: str, text: str) -> bool:
    return max(len(key.encode()), len(text.encode())) <= MAX_TEXT


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
