"""In which order a relay asks Kafka: a real broker shows it only if it is killed."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError
from support.texts import texts
from support.waiting import AT_ONCE, PATIENT, UNDELAYED

from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.model import Carrier, TransactionId
from tracing_2pc.core.states import Refusal
from tracing_2pc.kafka import KafkaRelay, broker, relay
from tracing_2pc.outbox.choosing import Choice
from tracing_2pc.outbox.records import Record
from tracing_2pc.outbox.relay import (
    Message,
    Position,
    Publication,
    read_block,
    write_block,
)

PLACE = ("totals", 0)
ONE = Position(1, "orders.1.1", "digest")
PUBLICATION = Publication(
    ONE, TransactionId("orders", 1, 1), Carrier(), [Message("totals", None, "{}")]
)

TEXTS = texts("kafka")


class Cluster:
    """A broker, as its clients are told of it; it loses ends, if it is told to.

    Each publication is a record in one partition.
    """

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.records = 0
        self.open = 0
        self.is_fenced = False
        self.loses = False

    def __getattr__(self, name: str) -> Any:
        return lambda *_: {"least_bytes": 10_000}.get(name)

    def last_value(self, _: str) -> bytes | None:
        assert self.is_fenced, "whoever published before is not fenced yet"
        return None

    def ends(self, places: Any, _: Any) -> dict[tuple[str, int], int]:
        return dict.fromkeys(places, self.records - self.open)


class Client:
    """A producer of it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __getattr__(self, _: str) -> Any:
        return lambda *_: 0

    def init_transactions(self, _: float) -> None:
        self._cluster.is_fenced = True

    def produce(self, *_: Any, on_delivery: Any, **__: Any) -> None:
        on_delivery(None, self)
        self._cluster.records += 1
        self._cluster.open += 1

    def topic(self) -> str:
        return PLACE[0]

    def partition(self) -> int:
        return PLACE[1]

    def offset(self) -> int:
        return self._cluster.records

    def commit_transaction(self, _: float) -> None:
        if not self._cluster.loses:
            self._cluster.open = 0


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(relay, "Broker", lambda *_: cluster)
    monkeypatch.setattr(relay, "Producer", lambda *_, **__: Client(cluster))
    return cluster


def test_it_fences_before_it_reads_the_position(cluster):
    """What is read before may be moved by whoever publishes still."""
    assert KafkaRelay("broker:9092", topic="totals").take_over("journal") is None


def test_nothing_is_sent_whose_end_is_lost(cluster):
    """Although the broker says that it has committed it; and nothing behind it."""
    kafka = KafkaRelay("broker:9092", topic="totals", timeout=AT_ONCE)
    kafka.take_over("journal")
    kafka.publish(PUBLICATION)
    cluster.loses = True
    with pytest.raises(broker.UnstableError):
        kafka.publish(PUBLICATION)
    with pytest.raises(broker.UnstableError):
        kafka.take_over("journal")
    cluster.open = 0  # a marker was written for it
    kafka.take_over("journal")


def test_each_topic_that_was_made_again_is_said(cluster, caplog):
    """At once in the log, and to whoever looks at readers after more publications."""
    kafka = KafkaRelay("broker:9092", topic="totals")
    kafka.take_over("journal")
    for gone in (["totals"], []):
        cluster.gone = lambda _, gone=gone: gone
        kafka.publish(PUBLICATION)
    said = TEXTS["remade"].format(topic="totals")
    assert [said in one.message for one in caplog.records] == [True]
    assert [said in kafka.readers().held_back for _ in range(2)] == [True, False]


def settings_of(**config: str) -> dict[Any, Future[Any]]:
    """A broker's answer about a topic's settings."""
    said: Future[Any] = Future()
    config = {"max.message.bytes": "1000000"} | config
    said.set_result({n: SimpleNamespace(name=n, value=v) for n, v in config.items()})
    return {"totals": said}


UNCOMPACTED = {"cleanup.policy": "delete"}
TOMBSTONES = {"key": "id", "tombstone": "gone"}
AGE = {"message.timestamp.type": "CreateTime"}


@pytest.mark.parametrize(
    ("config", "options", "named"),
    [
        ({"cleanup.policy": "compact,delete"}, {}, "cleanup.policy"),
        ({"cleanup.policy": "compact"}, {"key": "shop"}, "cleanup.policy"),
        ({"cleanup.policy": "compact"}, {"key": "id"}, ""),
        (UNCOMPACTED, TOMBSTONES, "allow_uncompacted=True"),
        (UNCOMPACTED, TOMBSTONES | {"key": "shop"}, "allow_uncompacted=True"),
        ({"cleanup.policy": "compact,delete"}, TOMBSTONES, ""),
        (UNCOMPACTED, TOMBSTONES | {"allow_uncompacted": True}, ""),
        (AGE | {"message.timestamp.before.max.ms": "0"}, {}, "before"),
        ({"message.timestamp.before.max.ms": "0"}, {}, ""),
        (AGE | {"message.timestamp.after.max.ms": "3600000"}, {}, ""),
        ({"confluent.value.schema.validation": "true"}, {}, "value.schema"),
        ({"redpanda.key.schema.id.validation": "true"}, {"key": "id"}, "key.schema"),
        ({"redpanda.key.schema.id.validation": "true"}, {}, ""),
    ],
)
def test_what_a_topics_settings_refuse_is_a_vote_to_abort(
    monkeypatch, config, options, named
):
    """It names setting and cure; the broker would refuse what is decided."""
    kafka = KafkaRelay("broker:9092", topic="totals", **options)
    admin = SimpleNamespace(describe_configs=lambda *_, **__: settings_of(**config))
    monkeypatch.setattr(kafka._connected(), "_admin", admin)
    values = {"id": 1, "shop": None, "gone": False}
    record = Record(values, json.dumps(values))
    if not named:
        assert [*kafka.check([record])]
        return
    with pytest.raises(RefusalError) as refused:
        list(kafka.check([record]))
    assert refused.value.refusal is Refusal.CONFLICT
    if config is UNCOMPACTED:  # no record is to blame for it
        assert refused.value.column is None
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"id": 1}, "column gone: there is none"),
        ({"id": 1, "gone": 1}, "column gone: it is no boolean"),
        ({"id": None, "gone": True}, "a tombstone without a key"),
    ],
)
def test_a_record_that_does_not_say_whether_its_key_is_deleted(
    monkeypatch, values, named
):
    """Is a vote to abort, which names the column."""
    kafka = KafkaRelay("broker:9092", topic="totals", **TOMBSTONES)
    compacted = {"cleanup.policy": "compact"}
    admin = SimpleNamespace(describe_configs=lambda *_, **__: settings_of(**compacted))
    monkeypatch.setattr(kafka._connected(), "_admin", admin)
    with pytest.raises(RefusalError) as refused:
        list(kafka.check([Record(values, json.dumps(values))]))
    assert refused.value.refusal is Refusal.CONFLICT
    assert named in str(refused.value)
    assert refused.value.column == ("id" if values["id"] is None else None)


@pytest.mark.parametrize("gone", [False, None])
@pytest.mark.parametrize(
    "others",
    [
        {"id": 1},
        {"id": 1, "note": '"gone": false, "gone": null'},
        {'a"gone': False, "id": None, "b": None},
        {"id": 1, "of": {"gone": False, "id": 2}},
        {"of": [{"gone": None}, {"gone": False}], "id": 1},
    ],
)
def test_a_value_lacks_the_column_of_its_tombstones_and_nothing_else(others, gone):
    """Wherever the column stands, and whatever others hold that is called so."""
    choice = Choice("totals", "id", (), "topic", "gone")
    members = list(others.items())
    for place in range(len(members) + 1):
        values = dict([*members[:place], ("gone", gone), *members[place:]])
        record = Record(values, json.dumps(values))
        assert choice.message(record, 0).value == json.dumps(others)
        encoded = choice.message(record, 0, lambda sent, *_: str(sent.values).encode())
        assert encoded.value == str(others).encode()


@pytest.mark.parametrize("key", [None, "gone"])
def test_tombstones_need_a_key(key):
    with pytest.raises(ConfigurationError, match="give key="):
        KafkaRelay("broker:9092", topic="totals", key=key, tombstone="gone")


def test_a_login_is_a_function_that_each_process_can_have() -> None:
    """One of a module, or its name, which is imported where a client is made."""
    settings: dict[str, Any] = {"oauth_cb": lambda _: ("", 0.0)}
    with pytest.raises(ConfigurationError, match="cannot be pickled"):
        KafkaRelay("127.0.0.1:1", topic="t", settings=settings)
    for wrong in ("nowhere:token", "json:token", "json"):
        relay = KafkaRelay("127.0.0.1:1", topic="t", settings={"oauth_cb": wrong})
        with pytest.raises(ConfigurationError, match=f"{wrong} cannot be imported"):
            relay.open()


def test_a_block_with_a_tombstone_is_read_by_no_relay_of_before():
    """It cannot take it for a record without a value; others it reads as ever."""
    kept = Message("totals", "a", "{}", (("kind", "x"),)), Message("totals", "b", b"1")
    both = [*kept, Message("totals", "c", None)]
    lists = [
        len(json.loads(write_block(some).splitlines()[0])) for some in (kept, both)
    ]
    assert lists == [5, 6]
    assert [m[:3] for m in read_block(write_block(both))] == [m[:3] for m in both]


def test_batches_are_as_large_as_its_topic_takes(cluster, monkeypatch):
    """Although nothing was prepared in this process yet."""

    def most_bytes(self: broker.Broker, topic: str) -> int:
        self._limits[topic] = 20_000, 0.0
        return 20_000

    def make(settings: dict[str, Any], **_: Any) -> Client:
        made.append(settings)
        return Client(cluster)

    made: list[dict[str, Any]] = []
    monkeypatch.setattr(broker.Broker, "most_bytes", most_bytes)
    cluster.least_bytes = broker.Broker("broker:9092", {}, AT_ONCE).least_bytes
    monkeypatch.setattr(relay, "Producer", make)
    KafkaRelay("broker:9092", topic="totals").take_over("journal")
    assert made[0]["batch.size"] == 20_000


def test_a_position_is_not_read_where_readers_are_held_back(monkeypatch):
    """What is behind it may be the last one, and is not known to be in."""
    ends = {"READ_UNCOMMITTED": 2, "READ_COMMITTED": 1}
    asked = broker.Broker("broker:9092", {}, AT_ONCE)
    monkeypatch.setattr(asked, "end", lambda _, __, isolation: ends[isolation.name])
    monkeypatch.setattr(asked, "_read", lambda *_: [])
    with pytest.raises(broker.UnstableError):
        asked.last_value("tpc-journal")


@pytest.mark.parametrize("ask", ["end", "ends", "last_value"])
def test_an_offset_that_was_not_said_is_none(monkeypatch, ask):
    """The client says -1001 where its connection breaks, and raises nothing."""
    asked = broker.Broker("broker:9092", {}, AT_ONCE)
    said: Future[Any] = Future()
    said.set_result(SimpleNamespace(offset=OFFSET_INVALID))
    admin = SimpleNamespace(list_offsets=lambda where, **_: dict.fromkeys(where, said))
    monkeypatch.setattr(asked, "_admin", admin)
    level = IsolationLevel.READ_COMMITTED
    about = {"end": (*PLACE, level), "ends": ([PLACE], level), "last_value": PLACE[:1]}
    with pytest.raises(broker.UnstableError):
        getattr(asked, ask)(*about[ask])


def test_the_ends_of_a_topic_are_in_order(monkeypatch):
    """Of time, over all partitions: a person draws a line through them."""

    def message(number: int) -> Any:
        headers = [("tpc-transaction", f"orders.{number}.1".encode())]
        return SimpleNamespace(timestamp=lambda: (1, number), headers=lambda: headers)

    there = {0: [3, 5], 1: [1, 4, 5], 2: [2]}
    metadata = SimpleNamespace(topics={"totals": SimpleNamespace(partitions=there)})
    asked = broker.Broker("broker:9092", {}, AT_ONCE)
    admin = SimpleNamespace(list_topics=lambda *_, **__: metadata)
    monkeypatch.setattr(asked, "_admin", admin)
    monkeypatch.setattr(asked, "end", lambda *_: 0)
    monkeypatch.setattr(asked, "_read", lambda _, at, *__: map(message, there[at]))
    ends = asked.last_headers("totals", "tpc-transaction")
    assert ends == [f"orders.{number}.1" for number in (1, 2, 3, 4, 5)]


def test_a_prepare_waits_for_the_broker_for_less_than_its_client(monkeypatch):
    """However long `timeout=` is: the answer is *not now*, and says why."""
    monkeypatch.setattr(broker, "_LONGEST_AT_PREPARE", AT_ONCE)
    asked = broker.Broker("127.0.0.1:9", {}, PATIENT)
    started = time.monotonic()
    with pytest.raises(RefusalError) as refused:
        asked.most_bytes("totals")
    assert refused.value.refusal is Refusal.NOT_NOW
    assert time.monotonic() - started < UNDELAYED


@pytest.mark.parametrize(
    ("code", "refuses"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, True),
        (KafkaError._MSG_TIMED_OUT, False),
        (KafkaError._PURGE_QUEUE, False),
    ],
)
def test_only_what_the_broker_says_is_a_refusal(monkeypatch, cluster, code, refuses):
    """A time-out of our own is said to be none."""

    def produce(self: Client, *_: Any, on_delivery: Any, **__: Any) -> None:
        on_delivery(KafkaError(code), self)

    monkeypatch.setattr(Client, "produce", produce)
    kafka = KafkaRelay("broker:9092", topic="totals", timeout=AT_ONCE)
    kafka.take_over("journal")
    with pytest.raises(relay.PublishError) as raised:
        kafka.publish(PUBLICATION)
    assert (TEXTS["refuses"] in str(raised.value)) is refuses
    assert PLACE[0] in str(raised.value)
