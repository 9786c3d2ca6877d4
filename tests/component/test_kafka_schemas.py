"""What a schema takes of a record: each value as it was sent, or none of it."""

from __future__ import annotations

import datetime
import decimal
import json
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from httpx2 import ConnectError
from support.waiting import AT_ONCE

from tracing_2pc.core import content
from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.states import Refusal
from tracing_2pc.kafka import schemas
from tracing_2pc.kafka.schemas import Avro, Protobuf
from tracing_2pc.outbox.records import Record, read_records

URL = "http://127.0.0.1:1"
AT = datetime.datetime.fromisoformat("2026-01-02T03:04:05.678901")
TWICE = datetime.datetime.fromisoformat("2026-10-25T01:30:00")
D = decimal.Decimal


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


MONEY = logical("bytes", "decimal", precision=5, scale=2)
FIXED_MONEY = MONEY | {"type": "fixed", "name": "money", "size": 4}
INSTANT = logical("long", "timestamp-micros")
LOCAL = logical("long", "local-timestamp-micros")
DATE, TIME = logical("int", "date"), logical("int", "time-millis")
UUID = logical("string", "uuid")
ENUM = {"type": "enum", "name": "kind", "symbols": ["a", "b"]}
MEMBER = {
    "type": "record",
    "name": "member",
    "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "member"]}],
}
WIDER = {
    "type": "record",
    "name": "wider",
    "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "float"}],
}
NARROW = WIDER | {"name": "narrow", "fields": WIDER["fields"][:1]}
LIST, MAP = {"type": "array", "items": "int"}, {"type": "map", "values": "float"}


class Registry:
    """One that may be down, or be put back to a copy: its client, with no memory."""

    def __init__(self) -> None:
        self.is_down = False
        self.put_back(0)

    def put_back(self, others: int = 1) -> None:
        """Hold what another one holds: the next schema has another number."""
        self._kept: Any = SchemaRegistryClient.new_client({"url": "mock://"})
        for number in range(others):
            self._kept.register_schema("other", Schema(f'"string{number}"', "AVRO"))

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if self.is_down:
            raise ConnectError("down")
        return getattr(self._kept, name)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = Registry()
    monkeypatch.setattr(schemas, "SchemaRegistryClient", lambda _: registry)
    return registry


def avro(kind: Any, **options: Any) -> Avro:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "value", "type": kind}],
    }
    options = {name.replace("_", "."): value for name, value in options.items()}
    return Avro(json.dumps(schema), URL, options=options)


def fields_of(made: descriptor_pb2.DescriptorProto, **kinds: str) -> None:
    """Add fields, each of a type, or of a message's name."""
    for number, (name, kind) in enumerate(kinds.items(), 1):
        kind, *more = kind.split()
        label = Field.LABEL_REPEATED if "many" in more else Field.LABEL_OPTIONAL
        field = made.field.add(name=name, number=number, label=label)
        if kind.startswith("."):
            field.type_name = kind
            field.type = (
                Field.TYPE_ENUM if kind.endswith("Kind") else Field.TYPE_MESSAGE
            )
        else:
            field.type = Field.Type.Value(f"TYPE_{kind.upper()}")
        if "optional" in more:
            field.proto3_optional = True
            field.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{name}")


def order() -> type[Any]:
    """Make a class as `protoc` would."""
    known = {
        name: f".google.protobuf.{name}"
        for name in ("Timestamp", "Value", "FloatValue")
    }
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto",
        package="t",
        syntax="proto3",
        dependency=[
            module.DESCRIPTOR.name
            for module in (struct_pb2, timestamp_pb2, wrappers_pb2)
        ],
    )
    file.enum_type.add(name="Kind").value.add(name="a", number=0)
    fields_of(file.message_type.add(name="Inner"), a="int32")
    made = file.message_type.add(name="Order")
    pair = made.nested_type.add(name="FloatsEntry")
    pair.options.map_entry = True
    fields_of(pair, key="string", value="float")
    fields_of(
        made,
        int="int32",
        long="int64",
        float="float",
        double="double",
        text="string",
        binary="bytes",
        flag="bool",
        maybe="int64 optional",
        kind=".t.Kind",
        inner=".t.Inner",
        ints="int32 many",
        floats=".t.Order.FloatsEntry many",
        at=known["Timestamp"],
        any=known["Value"],
        wrapped=known["FloatValue"],
    )
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Order"))


ORDER = order()


def record(value: Any, name: str = "value") -> Record:
    """Make a record as an outbox reads it: of Arrow, or of JSON lines."""
    if not isinstance(value, pa.Array):
        return Record({name: value}, json.dumps({name: value}))
    table = pa.table({name: value})
    source: Any = SimpleNamespace(
        content_type=content.ARROW,
        batches=lambda _: (table.schema, table.to_batches()),
    )
    (made,) = read_records(source, 1)
    return made


def of(kind: Any, value: Any) -> pa.Array:
    return pa.array([value], kind)


def encode(encoding: Any, made: Record) -> bytes:
    with encoding.open(AT_ONCE) as encode:
        value: bytes = encode(made, 0, "totals")
    return value


def refusal(encoding: Any, made: Record) -> str:
    """Why a record is no vote to commit."""
    with pytest.raises(RefusalError) as refused:
        encode(encoding, made)
    assert refused.value.refusal is Refusal.CONFLICT
    return str(refused.value)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("int", 1.5, "int does not hold this double"),
        ("int", 2**31, "int does not hold this integer"),
        ("long", 2**63, "long does not hold this integer"),
        ("int", True, "int does not hold this boolean"),
        ("boolean", 1, "boolean does not hold this integer"),
        ("float", 1e300, "float does not hold this double"),
        ("float", 0.1, "float does not hold this double"),
        ("float", 16_777_217, "float does not hold this integer"),
        ("double", 2**53 + 1, "double does not hold this integer"),
        ("double", "1.5", "double does not hold this text"),
        ("double", of(pa.decimal128(4, 2), D("0.10")), "this decimal(2,2)"),
        ("long", of(pa.decimal128(4, 2), D("1.50")), "long does not hold this"),
        (MONEY, of(pa.decimal128(9, 3), D("1.500")), "decimal(5,2) does not hold"),
        (MONEY, of(pa.decimal128(9, 0), D("1000")), "decimal(5,2) does not hold"),
        (FIXED_MONEY, of(pa.decimal128(9, 3), D("1.5")), "decimal(5,2) does not"),
        (["null", MONEY], of(pa.decimal128(9, 3), D("1.5")), "null or decimal(5,2)"),
        (INSTANT, of(pa.timestamp("us"), AT), "timestamp without a time zone"),
        (LOCAL, of(pa.timestamp("us", "UTC"), AT), "timestamp with a time zone"),
        (
            logical("long", "timestamp-millis"),
            of(pa.timestamp("us", "UTC"), AT),
            "long (timestamp-millis) does not hold",
        ),
        (logical("int", "date"), of(pa.timestamp("us", "UTC"), AT), "int (date)"),
        (
            logical("int", "time-millis"),
            of(pa.time64("us"), AT.time()),
            "int (time-millis) does not hold this time",
        ),
        (UUID, "no uuid", "string (uuid) does not hold this text"),
        (LIST, "12", "array does not hold this text"),
        (LIST, [1, 2.5], "int does not hold this double"),
        (MAP, {"a": 0.1}, "float does not hold this double"),
        (MEMBER, {"a": 1.5, "b": None}, "int does not hold this double"),
        (MEMBER, {"a": 1, "b": {"a": 2.5, "b": None}}, "record does not hold this"),
        (["null", "int"], 2**31, "null or int does not hold this integer"),
        (ENUM, "secret", "enum does not hold this text"),
        ([NARROW, WIDER], {"a": 1, "b": 0.1}, "record or record does not hold this"),
    ],
)
def test_avro_takes_no_value_that_it_would_change(registry, kind, value, reason):
    """A vote to abort names column and both types, and says nothing of the value."""
    detail = refusal(avro(kind), record(value))
    assert "record 0, column value" in detail
    assert reason in detail
    assert "secret" not in detail


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("long", 1),
        ("int", -(2**31)),
        ("int", 2.0),
        ("double", 1),
        ("double", 2**53),
        ("float", 0.5),
        ("double", of(pa.float32(), 0.1)),
        ("double", of(pa.decimal128(4, 2), D("0.50"))),
        ("long", of(pa.decimal128(4, 2), D("2.00"))),
        (MONEY, of(pa.decimal128(9, 1), D("-999.9"))),
        (FIXED_MONEY, of(pa.decimal128(9, 2), D("-1.50"))),
        (["null", MONEY], None),
        (["null", MONEY, "string"], "text"),
        (["null", MONEY, "double"], 0.1),
        (["null", MONEY, "long"], 1),
        (["null", MONEY, "boolean"], True),
        (["null", FIXED_MONEY, "string"], "text"),
        (["null", DATE, "string"], "2026-01-02"),
        (["null", TIME, "string"], "text"),
        (["null", INSTANT, "string"], "text"),
        (["null", UUID, "int"], 1),
        ([NARROW, WIDER], {"a": 1, "b": 0.5}),
        ([NARROW, WIDER], {"a": 1}),
        (["int", "double"], 2**31),
        (["float", "double"], 0.1),
        (["boolean", "int"], 1),
        ("bytes", of(pa.binary(), b"\0\xff")),
        (INSTANT, of(pa.timestamp("us", "UTC"), AT)),
        (INSTANT, of(pa.timestamp("us", "Europe/Berlin"), AT)),
        (
            INSTANT,
            of(pa.timestamp("us", "Europe/Berlin"), TWICE),
        ),
        (INSTANT, 1_767_323_045_678_901),
        (LOCAL, of(pa.timestamp("us"), AT)),
        (
            logical("long", "timestamp-millis"),
            of(pa.timestamp("ms", "UTC"), AT.replace(microsecond=5_000)),
        ),
        (logical("int", "date"), of(pa.date32(), AT.date())),
        (logical("int", "date"), "2026-01-02"),
        (logical("int", "date"), 20_000),
        (logical("long", "time-micros"), of(pa.time64("us"), AT.time())),
        (UUID, "123E4567-e89b-12d3-a456-426614174000"),
        (LIST, [1, 2]),
        (MAP, {"a": 0.5}),
        (MEMBER, {"a": 1, "b": {"a": 2, "b": None}}),
        (
            MEMBER,
            of(
                pa.struct({"a": pa.int64(), "b": pa.struct({"a": pa.int64()})}),
                {"a": 1, "b": None},
            ),
        ),
        (ENUM, "b"),
    ],
)
def test_avro_takes_what_it_holds_exactly(registry, kind, value):
    """Also where it is of another type."""
    assert encode(avro(kind), record(value))[:5] == b"\0\0\0\0\1"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("int", 1.5, "int32 does not hold this double"),
        ("int", None, "int32 does not hold this null"),
        ("text", None, "string does not hold this null"),
        ("ints", None, "repeated int32 does not hold this null"),
        ("float", 0.1, "float does not hold this double"),
        ("double", 2**53 + 1, "double does not hold this integer"),
        ("double", of(pa.decimal128(4, 2), D("0.10")), "double does not hold this"),
        ("double", "NaN", "double does not hold this text"),
        ("binary", "abcd", "bytes does not hold this text"),
        ("flag", 1, "bool does not hold this integer"),
        ("kind", True, "enum does not hold this boolean"),
        ("kind", "secret", "enum does not hold this text"),
        ("at", of(pa.timestamp("us"), AT), "timestamp without a time zone"),
        ("inner", {"a": 1.5}, ""),
        ("inner", {"a": None}, "int32 does not hold this null"),
        ("ints", [1, True], ""),
        ("floats", {"a": 0.1}, "float does not hold this double"),
        ("any", {"a": [2**53 + 1]}, "google.protobuf.Value does not hold this"),
        ("wrapped", 0.1, "float does not hold this double"),
        ("other", 1, ""),
    ],
)
def test_protobuf_takes_no_value_that_it_would_change(registry, name, value, reason):
    """As Avro; and a null only where the message says that nothing is there."""
    detail = refusal(Protobuf(ORDER, URL), record(value, name))
    assert f"column {name}" in detail
    assert reason in detail
    assert "secret" not in detail


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("int", 2.0),
        ("long", "9007199254740993"),
        ("float", 0.5),
        ("double", of(pa.decimal128(4, 2), D("0.50"))),
        ("text", of(pa.decimal128(4, 2), D("0.10"))),
        ("text", of(pa.date32(), AT.date())),
        ("binary", of(pa.binary(), b"\0\xff")),
        ("maybe", None),
        ("inner", None),
        ("inner", {"a": 1}),
        ("kind", "a"),
        ("kind", 0),
        ("ints", [1, 2]),
        ("floats", {"a": 0.5}),
        ("at", of(pa.timestamp("us", "UTC"), AT)),
        ("at", of(pa.timestamp("us", "Europe/Berlin"), AT)),
        ("at", "2026-01-02T03:04:05.678901+01:00"),
        ("any", {"a": [1, "x", None, 0.5]}),
        ("any", None),
        ("wrapped", 0.5),
        ("wrapped", None),
    ],
)
def test_protobuf_takes_what_it_holds_exactly(registry, name, value):
    """Also where it is of another type."""
    assert encode(Protobuf(ORDER, URL), record(value, name))[:5] == b"\0\0\0\0\1"


@pytest.mark.parametrize(
    ("encoding", "values", "to_blame"),
    [
        (avro("int"), {"value": 2**40}, "value"),
        (avro("int"), {"value": 1, "other": 1}, None),
        (avro("int"), {"other": 1}, None),
        (avro("int"), {}, None),
        (Protobuf(ORDER, URL), {"int": 2**40}, "int"),
        (Protobuf(ORDER, URL), {"int": 1, "other": 1}, None),
    ],
)
def test_a_column_that_the_schema_lacks_is_no_records_fault(
    registry, encoding, values, to_blame
):
    """Nor is one that is missing: each record would be rejected while all is green."""
    with pytest.raises(RefusalError) as refused:
        encode(encoding, Record(values, json.dumps(values)))
    assert refused.value.column == to_blame


def test_a_value_is_compared_by_the_schema_that_the_registry_has_chosen(registry):
    """Which another program has registered, and whose types are others."""
    fields = [{"name": "value", "type": "float"}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    registry.register_schema("totals-value", Schema(json.dumps(schema), "AVRO"))
    latest = avro("double", auto_register_schemas=False, use_latest_version=True)
    assert encode(latest, record(0.5))[:5] == b"\0\0\0\0\1"
    assert "float does not hold this double" in refusal(latest, record(0.1))


@pytest.mark.parametrize(
    "encoding", [avro("long"), Protobuf(ORDER, URL)], ids=["Avro", "Protobuf"]
)
def test_a_registry_that_was_put_back_is_asked_again(registry, monkeypatch, encoding):
    """Its number is in what is sent from then on; one that is down holds nothing up."""
    made = record(1, "value" if isinstance(encoding, Avro) else "int")
    with encoding.open(AT_ONCE) as encode:
        assert encode(made, 0, "totals")[4] == 1
        registry.put_back()
        assert encode(made, 0, "totals")[4] == 1  # known for a minute
        monkeypatch.setattr(schemas, "KNOWN_FOR", 0.0)
        registry.is_down = True
        assert encode(made, 0, "totals")[4] == 1
        registry.is_down = False
        assert encode(made, 0, "totals")[4] == 2
