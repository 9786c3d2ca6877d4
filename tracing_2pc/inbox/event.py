"""An event: what a producer sends, and what is kept of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Final, NamedTuple

from tracing_2pc.core.errors import MalformedError
from tracing_2pc.core.model import Carrier

MAX_ID: Final = 200
"""Characters of an event's id."""


@dataclasses.dataclass(frozen=True, slots=True)
class NewEvent:
    """An event as it arrives.

    Args:
        id: unique among those of its producer.
        body: JSON; kept as it was written.
        digest: of its content, by `digest_of`.
        carrier: the trace context that it came with.

    Raises:
        MalformedError: an id that is empty, too long, or has characters beyond print.
    """

    id: str
    body: str
    digest: str
    carrier: Carrier = dataclasses.field(default_factory=Carrier)

    def __post_init__(self) -> None:
        if not (0 < len(self.id) <= MAX_ID and self.id.isprintable()):
            raise MalformedError(f"id: expected 1 to {MAX_ID} printable characters")


class Stored(NamedTuple):
    """Where an event is.

    Args:
        id: its own.
        position: in the inbox; positions rise, with gaps nowhere.
        is_new: it was not there before.
    """

    id: str
    position: int
    is_new: bool


class Offset(NamedTuple):
    """A place in an inbox, after an event: its position and its id.

    The id is what tells an inbox that was put back from the one that was read.
    """

    position: int = 0
    id: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """An event as it is kept.

    Args:
        position: in the inbox.
        id: its producer's.
        producer: who sent it, by its token's name.
        body: JSON, as it was written.
        at: Unix seconds at which it was taken.
        carrier: its trace context.
    """

    position: int
    id: str
    producer: str
    body: str
    at: float
    carrier: Carrier


def digest_of(content: object) -> str:
    """Return the SHA-256 of JSON's content: order of keys and space do not count."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
