"""The port of an outbox's relay: it takes a whole transaction, or nothing.

`tracing_2pc.kafka.KafkaRelay` is one, `tracing_2pc.activemq.ActiveMQRelay` another.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.model import Carrier, TransactionId
from tracing_2pc.outbox.records import Record


class Message(NamedTuple):
    """A record as it is stored at prepare, and sent; texts are sent as UTF-8."""

    topic: str
    key: str | None
    value: str | bytes | None  # None: a tombstone, which says that its key is deleted
    headers: tuple[tuple[str, str], ...] = ()


def write_block(messages: Sequence[Message]) -> str:
    """Write messages as they are stored together: their values as they are."""
    topics, keys, values, headers = zip(*messages, strict=True)
    texts = [
        base64.b64encode(v).decode() if isinstance(v, bytes) else v or ""
        for v in values
    ]
    sizes, kinds = list(map(len, texts)), [isinstance(v, bytes) for v in values]
    tombstones = [value is None for value in values]
    # A relay of before there were tombstones cannot read what has one more list.
    more = [tombstones] if any(tombstones) else []
    head = json.dumps([topics, keys, sizes, kinds, headers, *more])
    return "".join([head, "\n", *texts])


def read_block(text: str) -> Iterator[tuple[Any, ...]]:
    """Read a block of `write_block`: the parts of each message, in order."""
    head = text.partition("\n")[0]
    topics, keys, sizes, kinds, headers, *more = json.loads(head)
    ends = itertools.accumulate(sizes, initial=len(head) + 1)
    values: list[Any] = [text[start:end] for start, end in itertools.pairwise(ends)]
    if any(kinds):
        pairs = zip(values, kinds, strict=True)
        values = [base64.b64decode(v) if is_bytes else v for v, is_bytes in pairs]
    if more:
        (tombstones,) = more
        values = [None if t else v for v, t in zip(values, tombstones, strict=True)]
    return zip(topics, keys, values, headers, strict=True)


class Position(NamedTuple):
    """The last publication of a broker: its number, and its identity.

    Numbers rise by one. The first position is of no publication.
    """

    number: int = 0
    transaction: str = ""
    digest: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Publication:
    """One of our transactions on its way to a broker."""

    position: Position  # is in the broker's transaction, beside the messages
    # Of ours; None where only the position is written.
    transaction: TransactionId | None
    carrier: Carrier  # its trace context
    # With all of their headers; read from the store page by page.
    messages: Iterable[Message] = ()
    # Is called now and then, and raises if another process has taken over.
    keep: Callable[[], None] = lambda: None


class Readers(NamedTuple):
    """How far those get who read what is committed."""

    through: int  # the number of a publication: they pass it, and all before it
    held_back: str = ""  # where they do not, for too long; empty if nowhere


class OutlastedError(TwoPhaseError):
    """A publication takes longer than the `seconds` of a transaction of the broker."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


@runtime_checkable
class Relay(Protocol):
    """Takes publications, each as one transaction of a broker with its position.

    `check` is called from many threads, the others from one, and after a fork. After an
    exception nothing is known: `take_over` follows. Its `address`, a text if there is
    one, is part of messages about its broker. If it has `settle`, that is called at a
    job's start, after `identify`, without arguments; it may raise `ConfigurationError`.
    """

    def open(self) -> None:
        """Check settings, files and secrets, when a process starts; keep nothing open.

        Raises:
            ConfigurationError: one cannot be used.
        """

    def identify(self, *, make: bool = False) -> str:
        """Return words by which a broker is known; the same one keeps one of them.

        Empty if it has none. With `make`, for nothing was published yet, its topic is
        made if it is not there. Called from many threads; cheap when it is repeated.
        """

    def check(self, records: Iterable[Record]) -> Iterator[Message]:
        """Encode records, at prepare: messages are stored and sent as yielded here.

        Raises:
            RefusalError: conflict: one cannot be sent; not now: it is unknown.
        """

    def take_over(self, journal: str, *, must_exist: bool = False) -> Position | None:
        """Fence the previous publisher, then read the last position.

        None is no position at all; where there must be one, a broker may have to be
        asked for a while. All names at the broker come from the journal's id.
        """

    def publish(self, publication: Publication) -> None:
        """Make all messages and the position visible together, or nothing.

        Raises:
            OutlastedError: it would take too long: it is tried again ever more rarely.
        """

    def expect(self, topics: Iterable[str]) -> None:
        """Watch for messages that an earlier process has published to these topics."""

    def readers(self) -> Readers:
        """Look how far readers get."""

    def let_go(self) -> None:
        """Hold nothing at the broker: the lease may be another process's."""

    def unfit(self, journal: str) -> Iterable[tuple[str, str]]:
        """Ask for misfits at its destination; each with its cure."""

    def ends(self) -> str:
        """Describe the last transactions at its destination, for a person."""

    def close(self) -> None:
        """Release connections. Nothing is lost if it is never called."""
