"""A broker in memory, and a relay to it: what a real one does, at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import sqlalchemy as sa

from support.branches import ONE
from support.participant import World, database_of, keep, outgoing_of
from tracing_2pc.core.model import BranchId, RequestKey, TransactionId
from tracing_2pc.core.states import RequestState
from tracing_2pc.outbox import Outbox
from tracing_2pc.outbox.choosing import conflict
from tracing_2pc.outbox.publisher import Publisher
from tracing_2pc.outbox.records import Record
from tracing_2pc.outbox.relay import Message, Position, Publication, Readers
from tracing_2pc.participant.requests import RequestOrder, RequestQuery

MANY: Final = 1_000
"""Turns: what takes more of them does not end by itself."""


class FencedError(Exception):
    """Another producer has taken over."""


class CrashError(BaseException):
    """The process of a relay ends here: nothing of ours catches it."""


class Topic:
    """What readers see: transactions of messages; and what nobody sees yet."""

    def __init__(self) -> None:
        self.name = ""
        self.seen: list[list[Message]] = []
        self.position: Position | None = None
        self.open: list[Message] = []
        self.epoch = 0
        self.is_readable = True
        self.hidden = ""
        self.is_seen = True
        self.unfit: list[tuple[str, str]] = []
        self.through = 0

    def transactions(self) -> list[str]:
        """Name ours, as readers see them."""
        return [dict(messages[0].headers)["tpc-transaction"] for messages in self.seen]


class TopicRelay:
    """A relay to a `Topic`.

    Args:
        topic: where it publishes.
        at: is called at each step of a publication, and may raise.
    """

    def __init__(
        self, topic: Topic, at: Callable[[str, Any], None] = lambda *_: None
    ) -> None:
        self.topic = topic
        self.at = at
        self.epoch = -1

    def identify(self, *, make: bool = False) -> str:
        return self.topic.name

    def check(self, records: Iterable[Record]) -> Iterator[Message]:
        for row, record in enumerate(records):
            if record.values.get("amount") == -1:
                raise conflict(f"record {row}, column amount: it is -1", "amount")
            yield Message("totals", str(record.values.get("id")), record.text)

    def take_over(self, journal: str, *, must_exist: bool = False) -> Position | None:
        self.topic.epoch += 1
        self.epoch = self.topic.epoch
        self.topic.open = []
        self.at("fenced", journal)
        if not self.topic.is_readable:
            raise TimeoutError("no answer")
        return self.topic.position

    def publish(self, publication: Publication) -> None:
        self._check_epoch()
        self.at("begun", publication)
        for message in publication.messages:
            self._check_epoch()
            self.topic.open.append(message)
            publication.keep()
        self.at("produced", publication)
        self._check_epoch()
        if self.topic.open:
            self.topic.seen.append(self.topic.open)
        self.topic.open = []
        self.topic.position = publication.position
        self.at("committed", publication)

    def _check_epoch(self) -> None:
        if self.epoch != self.topic.epoch:
            raise FencedError

    def expect(self, topics: Iterable[str]) -> None:
        self.expected = set(topics)

    def readers(self) -> Readers:
        if not self.topic.is_readable:
            raise TimeoutError("no answer")
        if self.topic.is_seen and self.topic.position is not None:
            self.topic.through = self.topic.position.number
        return Readers(self.topic.through, self.topic.hidden)

    def open(self) -> None:
        pass

    def let_go(self) -> None:
        pass

    def unfit(self, journal: str) -> list[tuple[str, str]]:
        return self.topic.unfit

    def ends(self) -> str:
        return f"topic totals ends with {', '.join(self.topic.transactions()[-3:])}"

    def close(self) -> None:
        pass


def relay_world(url: str, topic: Topic, **options: Any) -> World:
    """An outbox with a relay, whose turns the test takes itself."""
    resource = Outbox(url, TopicRelay(topic), **options)
    resource.start = lambda: None  # type: ignore[method-assign]
    resource.open()
    return World(resource, lambda: int(resource.gauges()["tpc.outbox.backlog"]))


def publisher(world: World, relay: Any, lease: float) -> Publisher:
    """One more process that wants to publish; who held the lease is silent."""
    expire(world)
    return Publisher(outgoing_of(world), relay, lease)


def at(step: str, deed: Any) -> Any:
    """Do something once, at a step of the relay."""
    left = [step]

    def do(reached: str, about: Any) -> None:
        if reached in left and (reached == "fenced" or about.transaction is not None):
            left.remove(reached)
            deed()

    return do


def crash() -> None:
    raise CrashError


def batches(world: World, *numbers: int, application: str = "orders") -> None:
    for number in numbers:
        keep(world, f"{application}.{number}.1", ONE)


def all_turns(one: Any) -> None:
    """Take turns until there is nothing to do now."""
    turns = 0
    while one.turn() == 0.0:
        turns += 1
        assert turns < MANY, "it never comes to rest"


def expire(world: World) -> None:
    """Let the lease run out."""
    sender = outgoing_of(world).queue.sender
    with database_of(world.resource).setup() as connection:
        connection.execute(sender.update().values(until=0.0))


def saved(world: World) -> dict[str, list[Any]]:
    """Read all that the outbox has stored, as a replica has it at this moment."""
    tables = outgoing_of(world).queue.tables.metadata.sorted_tables
    with database_of(world.resource).read() as connection:
        return {
            table.name: [
                dict(row._mapping) for row in connection.execute(table.select())
            ]
            for table in tables
        }


def fail_over(world: World, copy: dict[str, list[Any]]) -> None:
    """Put the store back, under the processes that work with it."""
    tables = outgoing_of(world).queue.tables.metadata.sorted_tables
    with database_of(world.resource).setup() as connection:
        for table in tables:
            connection.execute(table.delete())
            if rows := copy[table.name]:
                connection.execute(table.insert(), rows)


def stored(world: World, table: str) -> int:
    """Count rows of the outbox."""
    with database_of(world.resource).read() as connection:
        return int(
            connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar()
        )


def order(transaction: str) -> RequestOrder:
    """What a person says about a whole transaction."""
    key = RequestKey(TransactionId.parse(transaction), BranchId(0, 0), 0)
    return RequestOrder(key, "participant", "ada", "looked")


def listed(world: World) -> list[tuple[str, str]]:
    """What a person is shown, while the relay has stopped."""
    query = RequestQuery(None, None, RequestState.QUARANTINED, (0.0, ""), 100)
    page = world.resource.list_requests(query)
    return [(str(r.key.transaction), r.body) for r in page.requests]
