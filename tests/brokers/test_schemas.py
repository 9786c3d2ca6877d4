"""A relay whose values have a schema at a registry, with a real broker."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from fastavro import schemaless_reader
from google.protobuf.type_pb2 import EnumValue
from support.branches import Branch, records
from support.brokers import NEEDS_KAFKA
from support.kinds import sqlite_url
from support.participant import World, end, keep, outgoing_of, turns_of
from support.texts import texts
from support.waiting import AT_LAST, PATIENT

from bench.kafka_broker import Broker
from participants.processes import Process, free_ports
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.kafka import KafkaRelay
from tracing_2pc.kafka.schemas import Avro, Protobuf
from tracing_2pc.outbox import Outbox
from tracing_2pc.outbox.publisher import Publisher

pytestmark = [
    pytest.mark.broker,
    pytest.mark.ci,
    NEEDS_KAFKA,
]
TEXTS = texts("schemas")
LOGIN = {"basic.auth.user.info": "env:TPC_TEST_REGISTRY"}
ORDERS = records(id=[1, 2], note=["a", "ü"])


def schema(**fields: Any) -> str:
    return json.dumps(
        {
            "type": "record",
            "name": "Order",
            "fields": [{"name": n, "type": kind} for n, kind in fields.items()],
        }
    )


ORDER = schema(id="long", note=["null", "string"])


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("TPC_TEST_REGISTRY", "ada:secret")
    registry = Registry(tmp_path)
    registry.start()
    yield registry
    registry.kill()


class Registry(Process):
    """One that asks for a login, in a process."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        told = [str(port), "ada:secret", str(folder / "schemas")]
        command = [sys.executable, "-m", "support.schema_registry", *told]
        path = {"PYTHONPATH": str(Path(__file__).parents[1])}
        super().__init__("registry", command, folder / "registry.log", path)
        self.url = f"http://127.0.0.1:{port}"

    def start(self, **environment: str | None) -> None:
        super().start(**environment)
        self.until_answers(self.url, AT_LAST)


@pytest.fixture
def world_of(broker: Broker, tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Make an outbox of a topic's own, whose turns the test takes itself."""
    worlds: list[World] = []

    def make(value: Any, topic: str = "", **options: Any) -> World:
        topic = topic or broker.topic()
        relay = KafkaRelay(broker.address, topic=topic, value=value, **options)
        resource = Outbox(sqlite_url(tmp_path, f"outbox{len(worlds)}"), relay)
        resource.start = lambda: None  # type: ignore[method-assign]
        worlds.append(World(resource, lambda: 0))
        return worlds[-1]

    yield make
    for world in worlds:
        end(world.resource)


def vote(
    world: World, branch: Branch = ORDERS, number: int = 1, **once: bool
) -> tuple[int, str]:
    answer = world.prepare(f"orders.{number}.1", branch, **once)
    return answer.status_code, str((answer.json or {}).get("detail"))


def test_what_is_sent_is_what_the_schema_says(
    broker: Broker, registry: Registry, world_of: Callable[..., World]
) -> None:
    """Avro, and Protobuf by the record's JSON form; the key stays text."""
    avro, protobuf = broker.topic(), broker.topic()
    sent = {
        avro: (Avro(ORDER, registry.url, settings=LOGIN), "id", ORDERS),
        protobuf: (
            Protobuf(EnumValue, registry.url, settings=LOGIN),
            *("name", records(name=["a", "b"], number=[1, 2])),
        ),
    }
    values = {}
    for topic, (value, key, branch) in sent.items():
        world = world_of(value, topic, key=key)
        keep(world, "orders.1.1", branch)
        publisher = Publisher(outgoing_of(world), turns_of(world)._relay, PATIENT)
        while publisher.turn() == 0.0:
            pass
        values[topic] = {seen.key: seen.value for seen in broker.read(topic)}
    for key, record in {b"1": (1, "a"), b"2": (2, "ü")}.items():
        assert values[avro][key][:5] == b"\0\0\0\0\1"
        read = schemaless_reader(io.BytesIO(values[avro][key][5:]), json.loads(ORDER))
        assert tuple(read.values()) == record
    context = SerializationContext(protobuf, MessageField.VALUE)
    read = ProtobufDeserializer(EnumValue, {"use.deprecated.format": False})
    assert read(values[protobuf][b"a"], context) == EnumValue(name="a", number=1)
    assert read(values[protobuf][b"b"], context) == EnumValue(name="b", number=2)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"id": [1], "note": ["a"], "more": [1]}, "more"),
        ({"note": ["a"]}, "id"),
        ({"id": [None], "note": ["a"]}, "id"),
        ({"id": ["secret"], "note": ["a"]}, "id"),
    ],
)
def test_a_record_that_the_schema_does_not_take_is_a_vote_to_abort(
    registry: Registry,
    world_of: Callable[..., World],
    columns: dict[str, list[Any]],
    named: str,
) -> None:
    """It names the column, and says nothing of the value."""
    world = world_of(Avro(ORDER, registry.url, settings=LOGIN))
    status, detail = vote(world, records(**columns))
    assert (status, TEXTS["not taken"].format(named) in detail) == (409, True), detail
    assert "secret" not in detail


def test_a_schema_that_is_incompatible_is_a_vote_to_abort(
    broker: Broker, registry: Registry, world_of: Callable[..., World]
) -> None:
    """With the column that the registry names, and its words."""
    topic = broker.topic()
    assert vote(world_of(Avro(ORDER, registry.url, settings=LOGIN), topic))[0] == 200
    wider = schema(id="long", note=["null", "string"], shop="long")
    world = world_of(Avro(wider, registry.url, settings=LOGIN), topic)
    status, detail = vote(world, records(id=[1], note=["a"], shop=[2]))
    assert (status, TEXTS["incompatible"] in detail) == (409, True), detail


def test_a_registry_that_is_down_is_not_now(
    registry: Registry, world_of: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one that refuses the login; what is known goes on without it."""
    world = world_of(Avro(ORDER, registry.url, settings=LOGIN))
    registry.kill()
    assert vote(world, once=True)[0] == 503
    registry.start()
    monkeypatch.setenv("TPC_TEST_REGISTRY", "ada:old")
    other = world_of(Avro(ORDER, registry.url, settings=LOGIN))
    status, detail = vote(other, once=True)
    assert (status, TEXTS["refused"] in detail) == (503, True), detail
    assert vote(world)[0] == 200
    registry.kill()
    assert vote(world, number=2)[0] == 200


@pytest.mark.parametrize(
    "make",
    [
        lambda: Avro(ORDER, "http://ada:secret@localhost"),
        lambda: Avro(ORDER, "http://a", settings={"basic.auth.user.info": "ada:b"}),
        lambda: Avro('"long"', "http://localhost"),
    ],
)
def test_settings_that_are_none(make: Callable[[], Avro]) -> None:
    """No secret is in the code."""
    with pytest.raises(ConfigurationError):
        make()
