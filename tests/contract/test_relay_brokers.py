"""An outbox belongs to one broker; who cannot publish leaves the lease to others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.branches import ONE
from support.databases import url
from support.participant import World, database_of, end, outgoing_of, refusal
from support.relay import (
    Topic,
    TopicRelay,
    all_turns,
    batches,
    publisher,
    relay_world,
)
from support.waiting import PATIENT

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.outbox.publications import UNREADABLE
from tracing_2pc.outbox.publisher import Publisher
from tracing_2pc.store.lease import LeaseState

__all__ = ["url"]

LEASE = 3 * PATIENT


def named(name: str) -> Topic:
    topic = Topic()
    topic.name = name
    return topic


@pytest.fixture
def here() -> Topic:
    return named("kafka:here")


@pytest.fixture
def there() -> Topic:
    return named("kafka:there")


@pytest.fixture
def world(url: str, here: Topic) -> Iterator[World]:
    world = relay_world(url, here, lease=LEASE)
    yield world
    end(world.resource)


@pytest.fixture
def other(url: str, there: Topic, world: World) -> Iterator[World]:
    """The same outbox, by an address that leads to another broker."""
    other = relay_world(url, there, lease=LEASE)
    yield other
    end(other.resource)


def told(world: World) -> str:
    """Why nothing is published."""
    with database_of(world).read() as connection:
        rows = outgoing_of(world).quarantine.rows(connection, UNREADABLE)
    return str(rows[0].answer) if rows else ""


def test_the_first_broker_is_the_one(
    world: World, other: World, here: Topic, there: Topic
) -> None:
    """A prepare and a start for another are refused in a line, with both names."""
    batches(world, 1)
    why = refusal(other, ONE)
    assert "belongs to kafka:here" in why
    assert "leads to kafka:there" in why
    with pytest.raises(ConfigurationError, match=r"here.*there"):
        other.resource.settle()
    world.resource.settle()
    all_turns(publisher(world, TopicRelay(here), LEASE))
    assert (here.transactions(), there.transactions()) == (["orders.1.1"], [])


def test_a_process_with_another_broker_publishes_nothing(
    world: World, here: Topic, there: Topic
) -> None:
    """Before anything was published, and after: it says why, and leaves the lease."""
    for batch in (1, 2):
        batches(world, batch)
        wrong = publisher(world, TopicRelay(there), LEASE)
        pauses = [wrong.turn() for _ in range(2)]
        assert there.transactions() == []
        assert "belongs to kafka:here" in told(world)
        assert pauses[-1] > LEASE / 3, "nobody else would see that the lease is free"
        right = TopicRelay(here)
        all_turns(Publisher(outgoing_of(world), right, LEASE))
        assert here.transactions()[-1] == f"orders.{batch}.1"
        assert told(world) == ""


def test_a_broker_that_has_moved_has_the_position(
    world: World, here: Topic, there: Topic
) -> None:
    """It is the one from now on, and prepares for it are taken."""
    batches(world, 1, 2)
    all_turns(publisher(world, TopicRelay(here), LEASE))
    there.position = here.position
    batches(world, 3)
    all_turns(publisher(world, TopicRelay(there), LEASE))
    assert there.transactions() == ["orders.3.1"]
    moved = relay_world(str(database_of(world).url), there, lease=LEASE)
    batches(moved, 4)
    assert there.transactions() == ["orders.3.1"]
    end(moved.resource)


def test_a_broker_without_a_name_is_not_compared(url: str) -> None:
    """Nor is one that gives one of several names: a list of addresses may change."""
    topic = named("")
    world = relay_world(url, topic, lease=LEASE)
    batches(world, 1)
    for name in ("a:1 b:2", "b:2 c:3", "c:3"):
        topic.name = name
        world.resource.settle()
    topic.name = "a:1"
    later = relay_world(url, topic, lease=LEASE)
    with pytest.raises(ConfigurationError, match="belongs to c:3"):
        later.resource.settle()
    for one in (world, later):
        end(one.resource)


def test_who_cannot_publish_leaves_the_lease(world: World, here: Topic) -> None:
    """After two tries: another process, which may write to the topic, takes over."""

    def refuse() -> Any:
        raise PermissionError("not authorised")

    batches(world, 1)
    held = TopicRelay(here, lambda step, _: refuse() if step == "begun" else None)
    reads_only = publisher(world, held, LEASE)
    pauses = [reads_only.turn() for _ in range(2)]
    assert pauses[-1] > LEASE / 3
    queue = outgoing_of(world).queue
    assert queue.hold("another", LEASE) is not LeaseState.REFUSED
    queue.let_go("another")
    writes = Publisher(outgoing_of(world), TopicRelay(here), LEASE)
    all_turns(writes)
    assert here.transactions() == ["orders.1.1"]
