"""The relay at a real Kafka broker: who reads committed sees each record once."""

from __future__ import annotations

import collections
import contextlib
import decimal
import importlib
import json
import os
import random
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.branches import ONE, OTHER, Branch, json_lines, orders, records
from support.brokers import NEEDS_KAFKA
from support.kinds import sqlite_url
from support.participant import World, end, keep, outgoing_of, refusal
from support.relay import expire
from support.texts import texts
from support.waiting import AT_LAST, PATIENT, SOON, until

from bench.kafka_broker import SECRET, Broker, running
from brokers import kills, wire
from brokers.publishing import asleep, assert_once, outbox, publish, publishing
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.states import RequestState
from tracing_2pc.kafka import KafkaRelay
from tracing_2pc.outbox.publisher import Publisher
from tracing_2pc.participant.requests import RequestQuery

pytestmark = [
    pytest.mark.broker,
    NEEDS_KAFKA,
]
LARGE = records(id=[1], note=["x" * 100_000])
ROUNDS = 20
TEXTS = texts("kafka")
MURMUR2 = {"21": -973932308, "foobar": -790332482, "abc": 479470107}
"""Of Kafka's own tests: the hash by which Java's clients place a key."""


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.topic()


@pytest.fixture
def world(broker: Broker, topic: str, tmp_path: Path) -> Iterator[World]:
    relay = KafkaRelay(broker.address, topic=topic, key="id")
    world = outbox(sqlite_url(tmp_path), relay)
    yield world
    end(world.resource)


def listed(world: World) -> str:
    """Why what waits does, as a person is shown it."""
    query = RequestQuery(None, None, RequestState.QUARANTINED, (0.0, ""), 100)
    return "".join(one.body for one in world.resource.list_requests(query).requests)


@pytest.mark.ci
def test_a_key_is_where_javas_clients_put_it(
    broker: Broker, topic: str, world: World, tmp_path: Path
) -> None:
    """And the record is what was prepared, with its headers."""
    branch = records(id=[*MURMUR2, None], amount=[1, 2, 3, 4])
    keep(world, "orders.1.1", branch)
    publish(broker, topic, tmp_path)
    seen = {one.key and one.key.decode(): one for one in broker.read(topic)}
    for key, number in MURMUR2.items():
        assert seen[key].partition == (number & 0x7FFFFFFF) % 3
    assert json.loads(seen[None].value) == {"id": None, "amount": 4}
    assert set(seen["abc"].headers) == {
        *("tpc-key", "tpc-transaction", "traceparent", "tracestate"),
    }


@pytest.mark.ci
def test_what_cannot_be_sent_is_a_vote_to_abort(broker: Broker, tmp_path: Path) -> None:
    """It names column and cause."""
    small = broker.topic(max_message_bytes="10000")

    def vote(relay: KafkaRelay, branch: Branch, name: str) -> str:
        world = outbox(sqlite_url(tmp_path, name), relay)
        answer = world.prepare("orders.1.1", branch)
        end(world.resource)
        assert (answer.status_code, answer.json["vote"]) == (409, "abort")
        return str(answer.json["detail"])

    at = broker.address
    large = records(id=[1], note=["x" * 10_000])
    detail = vote(KafkaRelay(at, topic=small), large, "large")
    assert TEXTS["too large"].format(topic=small) in detail
    missing = KafkaRelay(at, topic="missing")
    assert TEXTS["no topic"] in vote(missing, large, "missing")
    assert "missing" not in broker.admin.list_topics(timeout=AT_LAST).topics
    compacted = KafkaRelay(at, topic=broker.topic(cleanup_policy="compact"))
    detail = vote(compacted, records(id=[1]), "compacted")
    assert TEXTS["no key"] in detail
    assert TEXTS["no key"] in "".join(what for what, _ in compacted.unfit("unfit"))
    keyless = KafkaRelay(at, topic=small, key="shop")
    assert TEXTS["no column"] in vote(keyless, large, "keyless")


@pytest.mark.ci
def test_a_tombstone_is_a_key_without_a_value(broker: Broker, tmp_path: Path) -> None:
    """In the order of its batches; no value has the column that says it."""
    topic = broker.topic(1, cleanup_policy="compact")
    relay = KafkaRelay(broker.address, topic=topic, key="id", tombstone="gone")
    world = outbox(sqlite_url(tmp_path), relay)
    relay.settle()
    rows = records(
        id=["a", "b"], day=[decimal.Decimal("1.50"), None], gone=[False, None]
    )
    keep(world, "orders.1.1", rows)
    gone = json_lines({"id": "b", "gone": True}, {"id": "c", "n": 1, "gone": False})
    keep(world, "orders.2.1", gone)
    aborted = records(id=["a"], gone=[True])
    assert world.prepare("orders.3.1", aborted).status_code == 200
    assert world.abort("orders.3.1").status_code == 200
    publish(broker, topic, tmp_path)
    seen = [(one.key, one.value) for one in broker.read(topic)]
    assert [(key, value and json.loads(value)) for key, value in seen] == [
        (b"a", {"id": "a", "day": "1.50"}),
        (b"b", {"id": "b", "day": None}),
        (b"b", None),
        (b"c", {"id": "c", "n": 1}),
    ]

    end(world.resource)


@pytest.mark.ci
def test_tombstones_go_to_a_compacted_topic(broker: Broker, tmp_path: Path) -> None:
    """Another one is refused at a job's start, by each prepare, and by check."""
    topic, new = broker.topic(1), f"{broker.topic(1)}-new"
    relay = KafkaRelay(broker.address, topic=topic, key="id", tombstone="gone")
    world = outbox(sqlite_url(tmp_path), relay)
    world.resource.open()
    with pytest.raises(ConfigurationError, match="allow_uncompacted=True"):
        world.resource.settle()
    row = records(id=[1], gone=[True])
    assert TEXTS["not compacted"].format(topic=topic) in refusal(world, row)
    assert TEXTS["not compacted"].format(topic=topic) in "".join(
        what for what, _ in relay.unfit("unfit")
    )
    end(world.resource)
    made = KafkaRelay(broker.address, topic=new, key="id", tombstone="gone")
    world = outbox(sqlite_url(tmp_path, "made"), made)
    world.resource.open()
    world.resource.settle()
    until(lambda: world.prepare("orders.1.1", row, once=True).status_code == 200)
    end(world.resource)
    told = {"key": "id", "tombstone": "gone", "allow_uncompacted": True}
    allowed = KafkaRelay(broker.address, topic=topic, **told)
    world = outbox(sqlite_url(tmp_path, "allowed"), allowed)
    world.resource.open()
    world.resource.settle()
    keep(world, "orders.1.1", row)
    end(world.resource)


@pytest.mark.ci
def test_what_is_held_back_from_readers_is_said(
    broker: Broker, topic: str, world: World
) -> None:
    """As by a transaction whose end was lost; here it is another's, and open."""
    other = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    other.init_transactions(PATIENT)
    other.begin_transaction()
    for partition in range(3):
        other.produce(topic, b"open", partition=partition)
    other.flush()
    keep(world, "orders.1.1", ONE)
    relay = KafkaRelay(
        broker.address, topic=topic, key="id", transaction_timeout=PATIENT
    )
    own = Publisher(outgoing_of(world), relay, PATIENT)
    until(own.turn)
    assert (relay.readers().held_back, world.visible()) == ("", 3)
    relay._transaction_timeout = 0
    assert TEXTS["held back"].format(topic=topic) in relay.readers().held_back
    successor = KafkaRelay(broker.address, topic=lambda _: topic)
    own = Publisher(outgoing_of(world), successor, PATIENT)
    expire(world)
    until(own.turn)
    assert world.visible() == 3  # also to a process that has not published it
    other.abort_transaction(PATIENT)
    until(lambda: own.turn() and world.visible() == 0)
    assert len(broker.read(topic)) == 3
    successor.close()
    relay.close()


@pytest.mark.ci
def test_a_publication_that_outlasts_the_time_out_is_held_back(
    broker: Broker, topic: str, world: World
) -> None:
    """It says the cure, and goes on after it."""
    relay = KafkaRelay(broker.address, topic=topic, transaction_timeout=SOON)
    own = Publisher(outgoing_of(world), relay, PATIENT)
    places = relay._connected().places(topic)

    def is_ended() -> bool:
        """The broker has aborted what is under way, by its own clock."""
        everything, stable = (
            relay._connected().ends(places, isolation) for isolation in IsolationLevel
        )
        return any(everything.values()) and everything == stable

    own._keep_on = lambda: until(is_ended)  # type: ignore[method-assign]
    keep(world, "orders.1.1", ONE)
    until(lambda: own.turn() == 0 and own._failed)
    assert TEXTS["takes too long"].format(seconds=SOON) in listed(world)
    relay._transaction_timeout = PATIENT
    own._keep_on = lambda: None  # type: ignore[method-assign]
    own._forget()
    until(lambda: own.turn() and world.visible() == 0)
    assert_once(broker.read(topic), 1)
    relay.close()


class OfTwoNodes:
    """What asks a broker of one node, and says that its cluster has two."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin, name)

    def list_topics(self, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(brokers=dict.fromkeys((1, 2)))


@pytest.mark.ci
def test_what_does_not_fit_at_the_broker_is_said(broker: Broker) -> None:
    """Each in one line, with its cure."""
    topic = broker.topic(unclean_leader_election_enable="true")
    relay = KafkaRelay(
        broker.address, topic=topic, transaction_timeout=AT_LAST + PATIENT
    )
    expires = NewTopic("tpc-unfit", 1, config={"cleanup.policy": "delete"})
    broker.admin.create_topics([expires])["tpc-unfit"].result(AT_LAST)
    told = ["unclean", "expires", "longest"]
    replicas = TEXTS["replicas"].format(topic=topic)

    def look() -> str:
        unfit = [*relay.unfit("unfit")]
        assert all(cure and "\n" not in what + cure for what, cure in unfit)
        return "\n".join(what for what, _ in unfit)

    def is_told(whole: str) -> bool:
        return all(TEXTS[name].format(topic=topic) in whole for name in told)

    assert replicas not in until(look, is_told)  # of one node: no setting helps
    connected = relay._connected()
    connected._admin = OfTwoNodes(connected._admin)  # type: ignore[assignment]
    assert replicas in look()
    missing = KafkaRelay(broker.address, topic="missing").unfit("unfit")
    assert TEXTS["no topic"] in next(iter(missing))[0]
    relay.close()


class Losing:
    """A producer whose broker says that it has committed, and loses the end."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def commit_transaction(self, _: float) -> None:
        pass


@pytest.mark.ci
def test_an_end_that_the_broker_loses_is_not_taken_for_one(
    broker: Broker, topic: str, world: World
) -> None:
    """What it is of is kept here, nothing is begun behind it, and it is there once."""
    relay = KafkaRelay(broker.address, topic=topic, key="id", timeout=SOON)
    own = Publisher(outgoing_of(world), relay, PATIENT)
    keep(world, "orders.1.1", ONE)
    until(lambda: own.turn() and world.visible() == 0)
    relay._producer = Losing(relay._producer)
    keep(world, "orders.2.1", ONE)
    keep(world, "others.1.1", ONE)
    assert (own.turn(), world.visible()) == (0.0, 6)
    own._failed.clear()
    until(lambda: own.turn() and world.visible() == 0)
    relay.close()
    names = [one.headers["tpc-transaction"] for one in broker.read(topic)]
    assert collections.Counter(names) == {
        "orders.1.1": 3,
        "orders.2.1": 3,
        "others.1.1": 3,
    }


def end_connections(address: str) -> None:
    """End those of this process to an address, as a broker ends idle ones."""
    host, port = address.split(":")
    for path in [*Path("/proc/self/fd").iterdir()]:
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(int(path.name))) as connection,
        ):
            if connection.getpeername() == (host, int(port)):
                connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.ci
def test_a_topic_that_is_deleted_is_never_made_again(
    broker: Broker, topic: str, world: World
) -> None:
    """By a producer that knows it, or one that does not; a person makes it, as before.

    Kafka's default is to make what a producer asks for, with settings of its own. A
    producer asks for all topics that it knows when a connection ends.
    """
    relay = KafkaRelay(broker.address, topic=topic, key="id")
    own = Publisher(outgoing_of(world), relay, PATIENT)
    keep(world, "orders.1.1", ONE)
    until(lambda: own.turn() and world.visible() == 0)
    broker.delete(topic)
    assert relay._producer is not None
    unknown = broker.topic()
    end_connections(broker.address)  # the administrator's, too
    relay._producer.begin_transaction()
    relay._producer.produce(unknown, b"it is connected again")
    relay._producer.commit_transaction(AT_LAST)
    assert topic not in broker.admin.list_topics(timeout=AT_LAST).topics
    keep(world, "orders.2.1", ONE)
    for _ in range(2):
        until(lambda: own.turn() == 0 and own._failed)
        own._failed.clear()
    assert relay.ends().endswith("none of ours")
    assert TEXTS["gone"].format(topic=topic) in listed(world)
    assert topic not in broker.admin.list_topics(timeout=AT_LAST).topics
    broker.topic(name=topic)
    until(lambda: own.turn() and world.visible() == 0)
    assert_once(broker.read(topic), 2)
    relay.close()


@pytest.mark.ci
def test_a_topic_that_is_made_again_meanwhile_is_said(
    broker: Broker, topic: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What was sent before is gone with it, although it is committed."""
    relay = KafkaRelay(broker.address, topic=topic, key="id")
    own = Publisher(outgoing_of(world), relay, PATIENT)
    keep(world, "orders.1.1", ONE)
    commits = relay._wait_for_end

    def remade() -> None:
        commits()
        broker.delete(topic)
        broker.topic(name=topic)

    relay._wait_for_end = remade  # type: ignore[method-assign]
    until(lambda: own.turn() == 0 and relay._number)
    assert TEXTS["remade"].format(topic=topic) in caplog.text
    relay.close()


@pytest.mark.nightly
def test_a_topic_that_is_deleted_holds_back_its_application_only(
    broker: Broker, tmp_path: Path
) -> None:
    """What was committed waits, in order, until the topic is there again."""
    gone, there = broker.topic(), broker.topic()
    relay = KafkaRelay(
        broker.address, topic=lambda record: gone if record["id"] < 4 else there
    )
    world = outbox(sqlite_url(tmp_path), relay)
    keep(world, "orders.1.1", ONE)
    keep(world, "others.1.1", Branch(orders(4), 1))
    broker.delete(gone)
    process = publishing(broker, there, tmp_path)
    until(lambda: len(broker.read(there)) == 1)
    until(lambda: world.visible() == 3)
    process.kill()
    process.wait(AT_LAST)
    end(world.resource)


@pytest.mark.nightly
def test_partitions_are_added_and_a_service_forks(
    broker: Broker, topic: str, world: World, tmp_path: Path
) -> None:
    """After a prepare, and after a process has published: each record is there once."""
    keep(world, "orders.1.1", ONE)
    process = publishing(broker, topic, tmp_path, forks=True)
    assert process.stdout is not None
    for _ in range(2):  # parent and child
        assert process.stdout.readline() == b"forked\n"
    keep(world, "orders.2.1", ONE)
    broker.add_partitions(topic, 5)
    for number in (3, 4, 5):
        keep(world, f"orders.{number}.1", ONE)
    process.communicate(timeout=AT_LAST)
    assert process.returncode == 0
    assert_once(broker.read(topic), 1, 2, 3, 4, 5)


@pytest.mark.ci
def test_a_process_learns_what_a_topic_takes(broker: Broker, tmp_path: Path) -> None:
    """That another one has prepared for: it has sent more at once than that."""
    wide, narrow = broker.topic(), broker.topic(1, max_message_bytes="20000")
    relay = KafkaRelay(broker.address, topic=lambda _: narrow)
    world = outbox(sqlite_url(tmp_path), relay)
    batch = records(id=[*range(100)], note=["x" * 1_000] * 100)
    until(lambda: world.prepare("orders.1.1", batch, once=True).status_code == 200)
    keep(world, "orders.1.1", batch)
    successor = KafkaRelay(broker.address, topic=lambda _: narrow)
    successor._connected().most_bytes(wide)
    own = Publisher(outgoing_of(world), successor, PATIENT)
    until(lambda: own.turn() and world.visible() == 0)
    assert len(broker.read(narrow)) == 100
    successor.close()
    end(world.resource)


RIGHTS = ("WRITE", "DESCRIBE", "DESCRIBE_CONFIGS")

CLOUD = """
import base64, json, time
calls = []
def part(claims):
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
def token(config):
    now, life = time.time(), {life}
    calls.append(config)
    claims = {{"sub": "relay", "iat": now - 60, "exp": now + life}}
    return f'{{part(dict(alg="none"))}}.{{part(claims)}}.', now + life
"""
"""What a cloud's library does for `oauth_cb`: a function that returns a token."""


@pytest.mark.ci
def test_a_function_of_a_module_logs_in_and_its_token_is_renewed(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By reference, in the process that connects; also of a relay that is idle."""
    (tmp_path / "cloud.py").write_text(CLOUD.format(life=SOON), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    topic = broker.topic()
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": "cloud:token",
    }
    relay = KafkaRelay(broker.guarded, topic=topic, settings=settings)
    world = outbox(sqlite_url(tmp_path), relay)
    world.resource.open()
    own_topic = f"tpc-{outgoing_of(world).journal()}"
    broker.allow("TOPIC", topic, *RIGHTS)
    broker.allow("TOPIC", own_topic, *RIGHTS, "READ", "CREATE")
    broker.allow("TRANSACTIONAL_ID", own_topic, "WRITE", "DESCRIBE")
    own = Publisher(outgoing_of(world), relay, PATIENT)
    calls = importlib.import_module("cloud").calls
    for number in (1, 2):
        until(lambda n=number: world.prepare(f"orders.{n}.1", ONE).status_code == 200)
        keep(world, f"orders.{number}.1", ONE)
        until(lambda: own.turn() and world.visible() == 0)
        before = len(calls)
        until(lambda before=before: relay.identify() and len(calls) > before)
    assert_once(broker.read(topic), 1, 2)
    relay.close()


@pytest.mark.nightly
@pytest.mark.parametrize("cause", ["right", "limit"])
def test_what_is_refused_after_the_commit_waits_and_others_go_on(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """With the rights of the manual and no other, until a person mends the cause."""
    monkeypatch.setenv("RELAY_PASSWORD", SECRET)
    refusing, there = broker.topic(), broker.topic()
    relay = KafkaRelay(
        broker.guarded,
        topic=lambda record: there if record["id"] == 4 else refusing,
        settings={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "relay",
            "sasl.password": "env:RELAY_PASSWORD",
        },
    )
    world = outbox(sqlite_url(tmp_path), relay)
    world.resource.open()
    own_topic = f"tpc-{outgoing_of(world).journal()}"
    for topic in (refusing, there):
        broker.allow("TOPIC", topic, *RIGHTS)
    broker.allow("TOPIC", own_topic, *RIGHTS, "READ", "CREATE")
    broker.allow("TRANSACTIONAL_ID", own_topic, "WRITE", "DESCRIBE")
    until(lambda: world.prepare("orders.1.1", LARGE, once=True).status_code == 200)
    keep(world, "orders.1.1", LARGE)
    keep(world, "others.1.1", OTHER)
    if cause == "right":
        broker.allow("TOPIC", refusing, "DESCRIBE", "DESCRIBE_CONFIGS")
    else:
        broker.configure(refusing, max_message_bytes="10000")
    own = Publisher(outgoing_of(world), relay, PATIENT)

    def published(topic: str) -> list[str]:
        own.turn()
        return [one.headers["tpc-transaction"] for one in broker.read(topic)]

    assert until(lambda: published(there)) == ["others.1.1"]
    assert published(refusing) == []
    until(lambda: own.turn() and world.visible() == 1)
    assert TEXTS[cause] in listed(world)
    own._failed.clear()
    broker.allow("TOPIC", refusing, *RIGHTS)
    broker.configure(refusing, max_message_bytes="1000000")
    assert until(lambda: published(refusing)) == ["orders.1.1"]
    until(lambda: own.turn() and world.visible() == 0)
    end(world.resource)


def is_expired(broker: Broker, transactional_id: str) -> bool:
    """Whether the broker knows nothing of an id any more."""
    with contextlib.suppress(AssertionError):  # its coordinator loads still
        return wire.ended(broker.address, transactional_id).state == ""
    return False


@pytest.mark.nightly
@pytest.mark.skipif(not shutil.which("faketime"), reason="needs faketime")
@pytest.mark.parametrize("point", ["relay.after_fence", "relay.before_commit"])
def test_the_broker_is_a_week_older(tmp_path: Path, point: str) -> None:
    """Ids and epochs expire there; a position does not, nor does a fence."""
    folder = tmp_path / "kafka"
    folder.mkdir()
    with running(folder) as broker:  # its own: no clock goes back
        topic = broker.topic(retention_ms="-1")
        relay = KafkaRelay(broker.address, topic=topic, key="id")
        world = outbox(sqlite_url(tmp_path), relay)
        keep(world, "orders.1.1", ONE)
        publish(broker, topic, tmp_path)
        keep(world, "orders.2.1", ONE)
        slept = asleep(broker, topic, tmp_path, point)
        broker.kill()
        broker.start("faketime", "-f", "+8d")
        if point == "relay.after_fence":  # no transaction is open
            own = f"tpc-{outgoing_of(world).journal()}"
            until(lambda: is_expired(broker, own))
        publish(broker, topic, tmp_path)
        keep(world, "orders.3.1", ONE)
        os.killpg(slept.pid, signal.SIGCONT)
        assert slept.wait(AT_LAST) == 0
        assert_once(broker.read(topic), 1, 2, 3)
        end(world.resource)


@pytest.mark.nightly
def test_a_large_batch(
    broker: Broker, topic: str, world: World, tmp_path: Path
) -> None:
    """Is one publication, read page by page: the memory for it has a limit."""
    memory = []
    for number, rows in enumerate((100_000, 1_000_000), 1):
        keep(world, f"orders.{number}.1", Branch(orders(*range(rows)), rows))
        process = publishing(broker, topic, tmp_path)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        memory.append(usage.ru_maxrss)
    counts = collections.Counter(int(one.key()) for one in broker.each(topic))
    assert counts == {id_: 1 + (id_ < 100_000) for id_ in range(1_000_000)}
    assert memory[1] < 1.5 * memory[0], memory


@pytest.mark.nightly
def test_whatever_is_killed_each_record_is_there_once(
    broker: Broker, tmp_path: Path
) -> None:
    """Of a service and the broker, at random; `python -m brokers.kills` kills more."""
    lines: list[str] = []
    seed = random.randrange(1 << 32)
    faults = kills.run(ROUNDS, seed, tmp_path, broker, lines.append)
    assert not faults, "\n".join([*lines, *faults[:50]])
