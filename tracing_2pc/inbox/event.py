"""An event: as a producer sends it, and as it is kept."""

from __future__ import annotations

import dataclasses
import decimal
import hashlib
import json
import math
from typing import Any, Final, NamedTuple

from tracing_2pc.core.errors import MalformedError
from tracing_2pc.core.model import Carrier

MAX_ID: Final = 200
"""Characters of an event's id."""

_MOST_ZEROS: Final = 400
"""No double has as many."""


@dataclasses.dataclass(frozen=True, slots=True)
class NewEvent:
    """An event as it arrives.

    Args:
        id: unique among those of its producer.
        body: JSON; kept as it was written.
        carrier: the trace context that it came with.
        digest: SHA-256 of the content, to which order of keys and space do not count;
            `digest_of` makes it. By default the body is read for it.

    Raises:
        MalformedError: an id that is empty, too long, or has characters beyond print;
            a body that is no JSON.
    """

    id: str
    body: str
    carrier: Carrier = dataclasses.field(default_factory=Carrier)
    digest: str = ""

    def __post_init__(self) -> None:
        if not (0 < len(self.id) <= MAX_ID and self.id.isprintable()):
            raise MalformedError(f"id: expected 1 to {MAX_ID} printable characters")
        if self.digest:
            return
        try:
            self.body.encode()
            digest = digest_of(_EXACT.decode(self.body))
        except (ValueError, RecursionError):
            raise MalformedError(f"event {self.id!r}: the body is no JSON") from None
        object.__setattr__(self, "digest", digest)


class Stored(NamedTuple):
    """Where an event is."""

    id: str  # its own
    position: int  # in the inbox; positions rise, with gaps nowhere
    is_new: bool  # it was not there before


class Offset(NamedTuple):
    """A place in an inbox, after an event: its position and its id.

    The digest tells an inbox that was put back from the one that was read: it is of
    the event's producer, id, content, and time. `inbox`, which each has for itself,
    tells another one.
    """

    position: int = 0
    id: str = ""
    inbox: str = ""
    digest: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """An event as it is kept."""

    position: int  # in the inbox
    id: str  # its producer's
    producer: str  # who sent it, by its token's name
    body: str  # JSON, as it was written
    at: float  # Unix seconds at which it was taken
    carrier: Carrier  # its trace context


def digest_of(content: Any) -> str:
    """Return the digest of JSON that was read with `exact` for its numbers."""
    return hashlib.sha256(_CANONICAL.encode(content).encode()).hexdigest()


def exact(text: str) -> int | list[float | str]:
    """Read a number with all of its digits, of which a double would lose some.

    With a fraction it is a list that begins with NaN: no JSON has one.
    """
    whole, _, fraction = text.partition(".")
    if fraction.isdigit():
        sign, exponent = int(whole.startswith("-")), -len(fraction)
        every = (whole.lstrip("-") + fraction).lstrip("0") or "0"
    else:
        try:
            sign, digits, power_of_ten = decimal.Decimal(text).as_tuple()
        except decimal.InvalidOperation:
            raise ValueError("a number whose exponent is too long") from None
        every, exponent = "".join(map(str, digits)), int(power_of_ten)
    number = every.rstrip("0") or "0"
    power = exponent + len(every) - len(number)
    if number == "0":
        return 0
    if 0 <= power < _MOST_ZEROS:
        return int(f"{'-' * sign}{number}{'0' * power}")
    return [math.nan, f"{sign} {number} {power}"]


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


_EXACT: Final = json.JSONDecoder(parse_float=exact, parse_constant=_refuse)
_CANONICAL: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), check_circular=False
)
