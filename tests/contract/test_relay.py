"""A relay: each transaction is at its broker whole and once, in order."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.branches import ONE, OTHER, TRACE, TWIN, Branch, orders, records
from support.databases import url
from support.kinds import sqlite_url
from support.participant import World, database_of, end, keep, outgoing_of
from support.relay import (
    CrashError,
    Topic,
    TopicRelay,
    all_turns,
    at,
    batches,
    crash,
    expire,
    listed,
    order,
    publisher,
    relay_world,
    stored,
)
from support.texts import texts
from support.waiting import PATIENT

from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.model import QuarantinedRequest
from tracing_2pc.core.states import Refusal, RequestState
from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.outbox import Outbox, publications
from tracing_2pc.outbox import outbox as blocks
from tracing_2pc.outbox.publisher import Publisher
from tracing_2pc.outbox.relay import OutlastedError, Position
from tracing_2pc.participant.requests import RequestQuery
from tracing_2pc.store.lease import LeaseState
from tracing_2pc.wire.reading import read_whoami

__all__ = ["url"]

LEASE = 3 * PATIENT
STEPS = ("fenced", "begun", "produced", "committed")
TEXTS = texts("relay")


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def world(url: str, topic: Topic) -> Any:
    world = relay_world(url, topic, lease=LEASE)
    yield world
    end(world.resource)


def test_a_transaction_is_one_publication(world: World, topic: Topic) -> None:
    """With all of its branches that were chosen, in order, and its headers."""
    chosen = Branch(orders(7, 8), 2, "1.0")
    for branch in (ONE, TWIN, chosen):
        assert world.prepare("orders.1.1", branch).status_code == 200
    assert world.commit("orders.1.1", ONE, chosen).status_code == 200
    batches(world, 2)
    assert (world.visible(), topic.seen) == (8, [])
    all_turns(publisher(world, TopicRelay(topic), LEASE))
    first, second = topic.seen
    assert [json.loads(m.value)["id"] for m in first] == [1, 2, 3, 7, 8]
    assert [dict(m.headers)["tpc-key"] for m in first] == [
        *("orders.1.1.0.1.0", "orders.1.1.0.1.1", "orders.1.1.0.1.2"),
        *("orders.1.1.1.0.0", "orders.1.1.1.0.1"),
    ]
    headers = dict(second[0].headers)
    assert headers["tpc-transaction"] == "orders.2.1"
    assert headers["traceparent"] == TRACE["traceparent"]
    assert topic.position[:2] == (2, "orders.2.1")
    assert (world.visible(), stored(world, "outbox_tpc_queue")) == (0, 0)


@pytest.mark.parametrize("step", STEPS)
def test_it_is_there_once_wherever_its_process_ends(
    world: World, topic: Topic, step: str
) -> None:
    """Its successor reads at the broker whether it is in."""
    batches(world, 1, 2, 3)
    killed = publisher(world, TopicRelay(topic, at(step, crash)), LEASE)
    with pytest.raises(CrashError):
        all_turns(killed)
    all_turns(publisher(world, TopicRelay(topic), LEASE))
    assert topic.transactions() == ["orders.1.1", "orders.2.1", "orders.3.1"]
    assert [len(messages) for messages in topic.seen] == [3, 3, 3]
    assert world.visible() == 0


@pytest.mark.parametrize("step", STEPS)
def test_it_is_there_once_if_a_relay_sleeps_beside_its_successor(
    world: World, topic: Topic, step: str
) -> None:
    """Wherever it falls asleep: it wakes up fenced, and changes nothing on record."""
    batches(world, 1, 2)
    successor = publisher(world, TopicRelay(topic), LEASE)

    def sleep() -> None:
        expire(world)
        all_turns(successor)
        batches(world, 3)

    slept = publisher(world, TopicRelay(topic, at(step, sleep)), LEASE)
    all_turns(slept)
    all_turns(successor)
    assert topic.transactions() == ["orders.1.1", "orders.2.1", "orders.3.1"]
    assert listed(world) == []


@pytest.mark.parametrize(
    ("error", "pauses", "act", "then"),
    [
        (KeyError("authorised"), PATIENT, "send_again", ["orders.1.1", "orders.2.1"]),
        (KeyError("authorised"), PATIENT, "drop_request", ["orders.2.1"]),
        # However short the others' pauses are.
        (OutlastedError("authorised", PATIENT), 0, "", ["orders.1.1", "orders.2.1"]),
    ],
    ids=["again", "drop", "takes too long, and the service starts again"],
)
def test_what_a_broker_refuses_waits_in_order_and_others_go_on(
    world: World,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    pauses: float,
    act: str,
    then: list[str],
) -> None:
    """It is on record why; a person has it tried at once, or dropped, signed."""
    monkeypatch.setattr("random.uniform", lambda _, most: most)
    monkeypatch.setattr("tracing_2pc.outbox.turns.FIRST_PAUSE", pauses)
    monkeypatch.setattr("tracing_2pc.outbox.turns.LONGEST_PAUSE", pauses)
    batches(world, 1, 2)
    batches(world, 5, application="others")

    def refuse(step: str, about: Any) -> None:
        if refuses and step == "produced" and "orders" in str(about.transaction):
            raise error

    refuses = True
    relay = publisher(world, TopicRelay(topic, refuse), LEASE)
    all_turns(relay)
    assert topic.transactions() == ["others.5.1"]
    ((transaction, why),) = listed(world)
    assert (transaction, "authorised" in why) == ("orders.1.1", True)
    assert world.resource.gauges()["tpc.relay.refused"] == 1
    refuses = False
    if act:
        for _ in range(2):  # repeated, it changes nothing
            getattr(world.resource, act)(order("orders.1.1"))
    else:
        relay = publisher(world, TopicRelay(topic), LEASE)
    all_turns(relay)
    assert topic.transactions() == ["others.5.1", *then]
    assert (listed(world), world.visible()) == ([], 0)
    assert stored(world, "outbox_tpc_by_hand") == bool(act)


def test_what_waits_is_a_number_to_all_who_ask(world: World) -> None:
    """Each gauge, on each database: the reader of an answer leaves out what is none."""
    batches(world, 1, 2)
    gauges = read_whoami(world.client.get("/whoami").json).gauges
    assert (gauges["tpc.outbox.backlog"], gauges["tpc.relay.open"]) == (6, 2)
    assert gauges.keys() == world.resource.gauges().keys()


def test_what_cannot_be_sent_is_a_vote_to_abort(world: World) -> None:
    answer = world.prepare("orders.1.1", records(id=[1], amount=[-1]))
    assert (answer.status_code, answer.json["vote"]) == (409, "abort")
    assert TEXTS["the column"] in answer.json["detail"]


def test_a_position_that_cannot_be_read_is_not_now(world: World, topic: Topic) -> None:
    """Without end, and with its age; nothing is guessed."""
    batches(world, 1)
    topic.is_readable = False
    relay = publisher(world, TopicRelay(topic), LEASE)
    assert relay.turn() > 0
    assert relay.turn() > 0
    ((transaction, why),) = listed(world)
    assert (transaction, why) == ("orders.1.1", TEXTS["unreadable"])
    assert world.resource.gauges()["tpc.relay.unreadable_age"] > 0
    topic.is_readable = True
    all_turns(relay)
    assert topic.transactions() == ["orders.1.1"]
    assert listed(world) == []


def test_what_readers_do_not_see_is_said(world: World, topic: Topic) -> None:
    """Until they do: a broker may lose the end of what it has committed.

    It counts as waiting, and its records stay; also where the service starts again.
    """
    batches(world, 1, 2)
    topic.is_seen = False
    all_turns(publisher(world, TopicRelay(topic), LEASE))
    assert (len(topic.seen), world.visible(), listed(world)) == (2, 6, [])
    topic.hidden = why = "readers of totals/0 are held back"
    all_turns(publisher(world, TopicRelay(topic), LEASE))
    topic.hidden = ""  # what begins now has not waited for as long
    own = TopicRelay(topic)
    relay = publisher(world, own, LEASE)
    all_turns(relay)
    assert listed(world) == [("orders.1.1", why), ("orders.2.1", why)]
    assert (own.expected, world.visible()) == ({"totals"}, 6)
    gauges = world.resource.gauges()
    assert (gauges["tpc.relay.position"], gauges["tpc.relay.open"]) == (2, 2)
    assert gauges["tpc.relay.hidden_age"] > 0
    with pytest.raises(RefusalError):
        world.resource.send_again(order("orders.1.1"))
    topic.is_seen = True
    all_turns(relay)
    assert (listed(world), world.visible(), stored(world, "outbox_tpc")) == ([], 0, 0)


@pytest.mark.parametrize(
    ("waits", "decide", "which", "then"),
    [
        ([], "drop_request", "orders.1.1", []),
        ([2], "drop_request", "orders.2.1", []),
        ([2], "send_again", "orders.2.1", ["orders.2.1"]),
    ],
)
def test_a_position_that_is_gone_stops_the_relay(
    world: World, topic: Topic, waits: list[int], decide: str, which: str, then: Any
) -> None:
    """As at a cluster that has the topics and not the position: an old store would
    publish again. A person says what is in, signed; then it is written anew.
    """
    batches(world, 1)
    all_turns(publisher(world, TopicRelay(topic), LEASE))
    topic.position = None
    batches(world, *waits)
    relay = publisher(world, TopicRelay(topic), LEASE)
    all_turns(relay)
    assert [t for t, _ in listed(world)] == [which]
    assert (topic.transactions(), topic.position) == (["orders.1.1"], None)
    assert world.resource.gauges()["tpc.outbox.stopped"] == 1
    getattr(world.resource, decide)(order(which))
    all_turns(relay)
    batches(world, 3)
    all_turns(relay)
    assert topic.transactions() == ["orders.1.1", *then, "orders.3.1"]
    assert listed(world) == []


def test_a_position_that_is_gone_is_not_written_anew_beside_the_first_publication(
    world: World, topic: Topic
) -> None:
    """It is begun, and nothing was confirmed: it may be in."""
    batches(world, 1)
    with pytest.raises(CrashError):
        all_turns(publisher(world, TopicRelay(topic, at("committed", crash)), LEASE))
    topic.position = None
    all_turns(publisher(world, TopicRelay(topic), LEASE))
    assert [t for t, _ in listed(world)] == ["orders.1.1"]
    assert topic.transactions() == ["orders.1.1"]


def put_back(world: World, file: Path, relay: Publisher) -> World:
    """Copy a store, let a relay go on, and put the copy back."""
    database_of(world.resource).engine.dispose()
    copy = shutil.copy(file, file.with_name("copy"))
    all_turns(relay)
    end(world.resource)
    for path in file.parent.glob(f"{file.name}*"):
        path.unlink()
    shutil.copy(copy, file)
    return relay_world(f"sqlite:///{file}", relay._relay.topic, lease=LEASE)


@pytest.mark.parametrize(
    ("decide", "which", "then"),
    [
        ("drop_request", "orders.2.1", ["orders.3.1"]),
        ("drop_request", "orders.3.1", []),
        ("send_again", "orders.3.1", ["orders.3.1"]),
        ("send_again", "orders.2.1", ["orders.2.1", "orders.3.1"]),
    ],
)
def test_a_store_that_was_put_back_stops_the_relay(
    tmp_path: Path, topic: Topic, decide: str, which: str, then: list[str]
) -> None:
    """It says so; a person says what is in, signed; then it goes on."""
    file = tmp_path / "store.db"
    world = relay_world(f"sqlite:///{file}", topic, lease=LEASE)
    batches(world, 1)
    all_turns(publisher(world, TopicRelay(topic), LEASE))
    batches(world, 2, 3)
    world = put_back(world, file, publisher(world, TopicRelay(topic), LEASE))
    before = topic.transactions()
    relay = publisher(world, TopicRelay(topic), LEASE)
    assert relay.turn() > 0
    assert relay.turn() > 0
    assert topic.transactions() == before
    assert world.resource.gauges()["tpc.outbox.stopped"] == 1
    assert world.client.get("/health/ready").json["trouble"] == "stopped"
    (second, why), (third, _) = listed(world)
    assert (second, third) == ("orders.2.1", "orders.3.1")
    assert TEXTS["put back"] in why
    assert TEXTS["the end"].format(last="orders.3.1") in why
    with pytest.raises(RefusalError) as refused:
        getattr(world.resource, decide)(order("orders.9.1"))
    assert refused.value.refusal is Refusal.UNKNOWN
    getattr(world.resource, decide)(order(which))
    getattr(world.resource, decide)(order(which))  # as asked again: changes nothing
    all_turns(relay)
    batches(world, 4)
    all_turns(relay)
    with pytest.raises(RefusalError):  # it is in, and stays in once
        world.resource.send_again(order("orders.1.1"))
    all_turns(relay)
    assert topic.transactions() == [*before, *then, "orders.4.1"]
    assert listed(world) == []
    assert stored(world, "outbox_tpc_by_hand") == 1
    end(world.resource)


def listed_in_pages(world: World) -> Iterator[QuarantinedRequest]:
    """Yield what is listed, page by page of one."""
    after = (0.0, "")
    while True:
        query = RequestQuery(None, None, RequestState.QUARANTINED, after, 1)
        page = world.resource.list_requests(query).requests
        if not page:
            return
        yield from page
        after = (page[0].since, str(page[0].key))


@pytest.mark.parametrize("decide", ["drop_request", "send_again"])
def test_what_the_broker_refused_is_behind_the_line(
    tmp_path: Path, topic: Topic, decide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others were published before it, although they were committed later."""
    # What was refused is not tried again meanwhile.
    monkeypatch.setattr("random.uniform", lambda _, most: most)
    monkeypatch.setattr("tracing_2pc.outbox.turns.FIRST_PAUSE", PATIENT)
    monkeypatch.setattr("tracing_2pc.outbox.turns.LONGEST_PAUSE", PATIENT)

    def refuse(step: str, about: Any) -> None:
        if step == "produced" and "orders" in str(about.transaction):
            raise KeyError("authorised")

    file = tmp_path / "store.db"
    world = relay_world(f"sqlite:///{file}", topic, lease=LEASE)
    batches(world, 1)
    relay = publisher(world, TopicRelay(topic, refuse), LEASE)
    all_turns(relay)
    batches(world, 5, application="others")
    world = put_back(world, file, relay)
    assert topic.transactions() == ["others.5.1"]
    relay = publisher(world, TopicRelay(topic), LEASE)
    all_turns(relay)
    assert [t for t, _ in listed(world)] == ["others.5.1", "orders.1.1"]
    pages = [page.key for page in listed_in_pages(world)]
    assert [str(key.transaction) for key in pages] == ["others.5.1", "orders.1.1"]
    line = {"drop_request": "others.5.1", "send_again": "orders.1.1"}
    getattr(world.resource, decide)(order(line[decide]))
    all_turns(relay)
    assert topic.transactions() == ["others.5.1", "orders.1.1"]
    assert listed(world) == []
    end(world.resource)


def test_what_waits_is_listed_in_its_order_whatever_the_clock_says(
    url: str, topic: Topic
) -> None:
    """A person draws the line through that list."""
    now = [1_000_000.0]
    world = relay_world(url, topic, lease=LEASE, clock=lambda: now[0])
    batches(world, 1)
    all_turns(publisher(world, TopicRelay(topic), LEASE))
    topic.position = Position()
    for batch in (9, 10, 11):
        batches(world, batch)
        now[0] -= (batch == 9) * 100.0
    all_turns(publisher(world, TopicRelay(topic), LEASE))
    assert [t for t, _ in listed(world)] == [f"orders.{n}.1" for n in (9, 10, 11)]
    end(world.resource)


def test_of_two_clones_one_stops(tmp_path: Path, topic: Topic) -> None:
    """Whichever comes second: nothing of it is published beside the other."""
    world = relay_world(sqlite_url(tmp_path), topic, lease=LEASE)
    batches(world, 1)
    all_turns(publisher(world, TopicRelay(topic), LEASE))
    database_of(world.resource).engine.dispose()
    file = sa.make_url(sqlite_url(tmp_path)).database
    shutil.copy(file, tmp_path / "clone.db")
    clone = relay_world(f"sqlite:///{tmp_path / 'clone.db'}", topic, lease=LEASE)
    batches(world, 2)
    keep(clone, "orders.2.1", OTHER)
    first = publisher(world, TopicRelay(topic), LEASE)
    second = publisher(clone, TopicRelay(topic), LEASE)
    for one in (second, first, second, first):
        all_turns(one)
    assert topic.transactions() == ["orders.1.1", "orders.2.1"]
    assert [t for t, _ in listed(world)] == ["orders.2.1"]
    assert listed(clone) == []
    end(world.resource)
    end(clone.resource)


@pytest.mark.parametrize("other", ["digest", "transaction", "below", "above", "gone"])
def test_another_position_stops_the_relay(
    world: World, topic: Topic, other: str
) -> None:
    """Only the very publication that is begun is in, or the one that is confirmed."""
    batches(world, 1, 2)
    relay = publisher(world, TopicRelay(topic), LEASE)
    relay.turn()
    batches(world, 3)
    with pytest.raises(CrashError):
        all_turns(publisher(world, TopicRelay(topic, at("committed", crash)), LEASE))
    last, before = topic.position, topic.transactions()
    assert last is not None
    assert last.number == 2
    topic.position = {
        "digest": last._replace(digest="another"),
        "transaction": last._replace(transaction="orders.9.1"),
        "below": Position(),
        "above": last._replace(number=3),
        "gone": None,
    }[other]
    all_turns(publisher(world, TopicRelay(topic), LEASE))
    assert [t for t, _ in listed(world)] == ["orders.2.1", "orders.3.1"]
    assert topic.transactions() == before


def test_a_relay_that_lost_the_lease_publishes_no_further(
    world: World, topic: Topic
) -> None:
    """It sees so while it publishes; a broker that does not answer cannot fence it."""
    keep(world, "orders.1.1", Branch(orders(*range(10)), 10))
    other = Publisher(outgoing_of(world), TopicRelay(topic), LEASE)
    reached: list[str] = []

    def lose(step: str, about: Any) -> None:
        reached.append(step)
        if step == "begun" and about.transaction is not None:
            expire(world)
            assert other._hold() is LeaseState.TAKEN
            relay._held = -float("inf")  # long ago

    relay = publisher(world, TopicRelay(topic, lose), LEASE)
    all_turns(relay)
    assert (reached.count("produced"), topic.seen) == (1, [])  # the first position
    all_turns(other)
    assert topic.transactions() == ["orders.1.1"]


def test_what_is_stored_in_part_is_not_published(
    world: World, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits, in order: a person sees how much of it is there."""
    monkeypatch.setattr(blocks, "_BLOCK", 1)
    batches(world, 1, 2)
    with database_of(world.resource).setup() as connection:
        connection.execute(sa.text("DELETE FROM outbox_tpc WHERE tpc_row = 1"))
    relay = publisher(world, TopicRelay(topic), LEASE)
    all_turns(relay)
    assert (topic.seen, world.visible()) == ([], 6)


def test_an_idle_relay_waits_for_nobody_who_writes(world: World, topic: Topic) -> None:
    """It would be asleep when the commit comes that it waits for."""
    own = publisher(world, TopicRelay(topic), LEASE)
    all_turns(own)
    with outgoing_of(world).queue.deciding():
        assert own.turn() > 0


def test_a_large_publication_is_read_and_deleted_in_portions(
    world: World, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publications, "_PAGE", 2)
    monkeypatch.setattr(publications, "_SLICE", 3)
    monkeypatch.setattr(blocks, "_BLOCK", 1)
    keep(world, "orders.1.1", Branch(orders(*range(10)), 10))
    relay = publisher(world, TopicRelay(topic), LEASE)
    relay.turn()
    assert (len(topic.seen[0]), stored(world, "outbox_tpc")) == (10, 7)
    all_turns(relay)
    assert (len(topic.seen), stored(world, "outbox_tpc")) == (1, 0)


def test_a_journal_belongs_to_partners_or_to_a_relay(
    world: World, url: str, topic: Topic
) -> None:
    """A queue of one kind is never sent by the other."""
    other = Outbox(url, HttpPartner("http://127.0.0.1:9/orders"))
    with pytest.raises(ConfigurationError):
        other.open()
