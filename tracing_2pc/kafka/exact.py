"""Whether a value that was encoded is, when it is read, the value that was sent."""

from __future__ import annotations

import datetime
import decimal
import functools
import io
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.logical_writers import LOGICAL_WRITERS
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp

from tracing_2pc.outbox.records import plain_text_of


class Difference(NamedTuple):
    """Where a value would be changed: it names types, and never the value."""

    path: str  # below the column: of members and elements
    kind: str  # of the value that was sent
    type: str  # of the schema

    def __str__(self) -> str:
        return f"{self.type} does not hold this {self.kind} exactly"


Compare: TypeAlias = Callable[[Any, Any], Difference | None]
"""Compares what was sent with what is read; None: they are the same."""

_PRIMITIVE: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)

_NUMBERS: Final = (int, float, decimal.Decimal)

_HALF: Final = 2**31
"""An `int` of Avro is from -2**31 to 2**31 - 1."""

_UTC: Final = datetime.timezone.utc


def kind_of(value: Any) -> str:
    """Name the kind of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "double"
        case decimal.Decimal():
            scale = -min(int(value.as_tuple().exponent), 0)
            digits = max(len(value.as_tuple().digits), scale)
            return f"decimal({digits},{scale})"
        case str():
            return "text"
        case bytes():
            return "binary"
        case datetime.datetime():
            zone = "without" if value.tzinfo is None else "with"
            return f"timestamp {zone} a time zone"
        case Mapping():
            return "struct or map"
        case list():
            return "array"
    return type(value).__name__.lower()


def _is_same(sent: Any, read: Any) -> bool:
    if type(sent) is type(read):
        return bool(sent == read)
    if isinstance(sent, bool) or isinstance(read, bool):
        return False
    return isinstance(sent, _NUMBERS) and isinstance(read, _NUMBERS) and sent == read


def _list_of(item: Compare, words: str) -> Compare:
    def compare(sent: Any, read: Any) -> Difference | None:
        if not isinstance(sent, list) or len(sent) != len(read):
            return Difference("", kind_of(sent), words)
        for element, other in zip(sent, read, strict=True):
            if difference := item(element, other):
                return difference._replace(path=f"[]{difference.path}")
        return None

    return compare


def _map_of(value: Compare, words: str) -> Compare:
    def compare(sent: Any, read: Any) -> Difference | None:
        kept = {_key(key): inner for key, inner in read.items()}
        if not isinstance(sent, Mapping) or sent.keys() != kept.keys():
            return Difference("", kind_of(sent), words)
        for key, member in sent.items():
            if difference := value(member, kept[key]):
                return difference._replace(path=f"[]{difference.path}")
        return None

    return compare


# --- Avro -----------------------------------------------------------------------------


class AvroColumns:
    """Compares records with their decoded form, by a parsed schema."""

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, Compare] = {}
        self.compare = self._compare(schema)
        known: dict[str, Any] = {schema["name"]: schema}
        # A schema for each column, which may name types of those before it.
        self._columns = {
            field["name"]: parse_schema(
                {"type": "record", "name": f"tpc_column{n}", "fields": [field]}, known
            )
            for n, field in enumerate(schema["fields"])
        }

    def bad(self, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield columns that cannot be encoded, each with the reason, or none."""
        for name, value in values.items():
            if name not in self._columns:
                yield name, ""
                continue
            schema, encoded = self._columns[name], io.BytesIO()
            try:
                schemaless_writer(
                    encoded, schema, {name: value}, strict_allow_default=True
                )
                encoded.seek(0)
                schemaless_reader(encoded, schema, None)
            except Exception:  # noqa: BLE001 - it raises what it likes
                (field,) = schema["fields"]
                yield name, str(Difference("", kind_of(value), _words(field["type"])))
        for name, schema in self._columns.items():
            if name not in values and "default" not in schema["fields"][0]:
                yield name, ""

    def _compare(self, schema: Any) -> Compare:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            if schema in _PRIMITIVE:
                return _scalar(schema, schema)
            # It may name the record that it is in.
            return lambda sent, read: self._named[schema](sent, read)
        kind = schema["type"]
        if not isinstance(kind, str):  # {"type": {"type": …}}
            return self._compare(kind)
        if kind in ("record", "error"):
            compare = self._record(schema)
        elif kind == "array":
            compare = _list_of(self._compare(schema["items"]), kind)
        elif kind == "map":
            compare = _map_of(self._compare(schema["values"]), kind)
        else:
            compare = _scalar(schema, kind)
        if "name" in schema:
            self._named[schema["name"]] = compare
        return compare

    def _record(self, schema: Any) -> Compare:
        fields = [(f["name"], self._compare(f["type"])) for f in schema["fields"]]
        names = {name for name, _ in fields}

        def compare(sent: Any, read: Any) -> Difference | None:
            if not isinstance(sent, Mapping) or sent.keys() - names:
                return Difference("", kind_of(sent), "record")
            for name, field in fields:
                # A field that the record lacks was written with the schema's default.
                if name in sent and (difference := field(sent[name], read[name])):
                    return difference._replace(path=f".{name}{difference.path}")
            return None

        return compare

    def _union(self, schemas: list[Any]) -> Compare:
        branches = [self._compare(schema) for schema in schemas if schema != "null"]
        words = _words(schemas)

        def compare(sent: Any, read: Any) -> Difference | None:
            difference = None
            if sent is None or read is None:
                return None if sent is read else Difference("", kind_of(sent), words)
            for branch in branches:
                if (difference := branch(sent, read)) is None:
                    return None
            return (
                difference
                if len(branches) == 1
                else Difference("", kind_of(sent), words)
            )

        return compare


def _words(schema: Any) -> str:
    if isinstance(schema, list):
        return " or ".join(map(_words, schema))
    if isinstance(schema, str):
        return schema
    logical = schema.get("logicalType", "")
    if logical == "decimal":
        return f"decimal({schema.get('precision')},{schema.get('scale', 0)})"
    kind = _words(schema["type"])
    return f"{kind} ({logical})" if logical else kind


def _scalar(schema: Any, kind: str) -> Compare:
    is_same, words = _sameness(schema, kind), _words(schema)

    def compare_plain(sent: Any, read: Any) -> Difference | None:
        if type(sent) is type(read) and sent == read:  # most often
            return None
        return compare(sent, read)

    def compare(sent: Any, read: Any) -> Difference | None:
        return None if is_same(sent, read) else Difference("", kind_of(sent), words)

    return compare_plain if is_same is _is_same else compare


def _sameness(schema: Any, kind: str) -> Callable[[Any, Any], bool]:
    """Tell what is the same for a type; a number may stand for a moment, as it is."""
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    prepare = LOGICAL_WRITERS.get(f"{kind}-{logical}")
    if prepare is None:
        if kind != "int":
            return _is_same
        # fastavro writes any number there, and Java's readers end in it.
        return lambda sent, read: (
            type(read) is int and -_HALF <= read < _HALF and _is_same(sent, read)
        )
    if logical == "decimal":
        whole = schema["precision"] - schema.get("scale", 0)
        return lambda sent, read: (
            sent == prepare(read, schema)
            if isinstance(sent, bytes)
            else _is_same(sent, read)
            and isinstance(read, decimal.Decimal)
            and (not read or read.adjusted() < whole)
        )
    if logical == "uuid":
        return lambda sent, read: (
            sent == read if isinstance(sent, uuid.UUID) else _is_text_of(sent, read)
        )

    def is_same(sent: Any, read: Any) -> bool:
        if type(sent) is int:
            return bool(prepare(read, schema) == sent)
        if isinstance(sent, str):
            return type(read) is datetime.date and sent == read.isoformat()
        return _is_same_time(sent, read)

    return is_same


def _is_text_of(sent: Any, read: Any) -> bool:
    return isinstance(sent, str) and sent.lower() == str(read)


def _is_same_time(sent: Any, read: Any) -> bool:
    if not isinstance(sent, datetime.datetime):
        return _is_same(sent, read)
    if not isinstance(read, datetime.datetime):
        return False
    if sent.tzinfo not in (None, _UTC):
        # Python finds no time equal to another zone's in the hour that a clock shows
        # twice.
        sent = sent.astimezone(_UTC)
    return bool(sent == read)


# --- Protobuf -------------------------------------------------------------------------


_WRAPPERS: Final = "google/protobuf/wrappers.proto"

_KNOWN: Final = {
    _WRAPPERS,
    *(
        f"google/protobuf/{name}.proto"
        for name in ("any", "duration", "field_mask", "struct", "timestamp")
    ),
}
"""Where the types are that JSON has forms of their own for."""


def compare_message(values: Mapping[str, Any], message: Any) -> Difference | None:
    """Compare a record, or a member of it, with the message that was made of it."""
    fields = _fields_of(message.DESCRIPTOR)
    for name, value in values.items():
        if difference := fields[name](value, message):
            return difference._replace(path=f".{name}{difference.path}")
    return None


@functools.cache
def _fields_of(descriptor: Any) -> dict[str, Compare]:
    """Return what compares a field, by both names that JSON may have it by."""
    fields = [(field, _field(field)) for field in descriptor.fields]
    by_name = {field.json_name: compare for field, compare in fields}
    return by_name | {field.name: compare for field, compare in fields}


def _field(field: Any) -> Compare:
    """Return what compares a value with a message's field."""
    name, words, has_presence = field.name, name_of(field), field.has_presence
    entry = field.message_type
    if not _is_repeated(field):
        compare = _one(field)
    elif entry is not None and entry.GetOptions().map_entry:
        compare = _map_of(_one(entry.fields_by_name["value"]), words)
    else:
        compare = _list_of(_one(field), words)

    def compare_field(sent: Any, message: Any) -> Difference | None:
        if sent is None:  # it is not there, or a value that is null
            return None if has_presence else Difference("", "null", words)
        return compare(sent, getattr(message, name))

    return compare_field


def _one(field: Any) -> Compare:
    """Return a function that compares a value, or an element, with its decoded form."""
    kind, words = field.message_type, name_of(field)
    if kind is None:
        names = field.enum_type and field.enum_type.values_by_name

        def is_same(sent: Any, read: Any) -> bool:
            if names and isinstance(sent, str):
                return sent in names and names[sent].number == read
            return _is_same_text(sent, read)

    elif kind.file.name == _WRAPPERS:
        wrapped = _one(kind.fields[0])
        return lambda sent, read: wrapped(sent, read.value)
    elif kind.file.name in _KNOWN:
        is_same = _is_same_known
    else:

        def compare_member(sent: Any, read: Any) -> Difference | None:
            if isinstance(sent, Mapping):
                return compare_message(sent, read)
            return Difference("", kind_of(sent), words)

        return compare_member

    def compare(sent: Any, read: Any) -> Difference | None:
        return None if is_same(sent, read) else Difference("", kind_of(sent), words)

    return compare


def _is_same_known(sent: Any, read: Any) -> bool:
    """Compare with a type that JSON has a form of its own for."""
    if isinstance(read, Timestamp) and isinstance(sent, datetime.datetime):
        return _is_same_time(sent, read.ToDatetime(_UTC))
    if isinstance(sent, str):  # a time, a duration or a mask: nothing is cut there
        return True
    return _is_same_json(sent, MessageToDict(read))


def _is_same_json(sent: Any, read: Any) -> bool:
    if isinstance(sent, Mapping) and isinstance(read, dict):
        return sent.keys() == read.keys() and all(
            _is_same_json(value, read[key]) for key, value in sent.items()
        )
    if isinstance(sent, list) and isinstance(read, list):
        return len(sent) == len(read) and all(map(_is_same_json, sent, read))
    return _is_same_text(sent, read)


def _is_same_text(sent: Any, read: Any) -> bool:
    """Compare with the text in the record's JSON, too: numbers, times, bytes."""
    if type(sent) is type(read):  # most often
        return bool(sent == read)
    if isinstance(read, str):
        return plain_text_of(sent) == read
    if isinstance(sent, str) and not isinstance(read, bool | bytes):
        return _is_same(_number(sent), read)
    return _is_same(sent, read)


def _number(text: str) -> decimal.Decimal | None:
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        return None


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _is_repeated(field: Any) -> bool:
    return bool(field.default_value == [])


def name_of(field: Any) -> str:
    """Name the type of a field."""
    kind = field.message_type and field.message_type.full_name
    kind = (
        kind or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    )
    return f"{'repeated ' * _is_repeated(field)}{kind}"
