"""Values by a schema registry: the extra `tracing-2pc[kafka-schemas]`."""

from __future__ import annotations

import abc
import contextlib
import io
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import (
    AvroDeserializer,
    AvroSerializer,
)
from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from fastavro import parse_schema, schemaless_reader
from google.protobuf.json_format import ParseDict
from httpx2 import TransportError

from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.states import Refusal
from tracing_2pc.kafka.broker import KNOWN_FOR
from tracing_2pc.kafka.client_settings import (
    check_references,
    refused_in_one_line,
    with_secrets,
)
from tracing_2pc.kafka.exact import (
    AvroColumns,
    Difference,
    compare_message,
    kind_of,
    name_of,
)
from tracing_2pc.outbox.choosing import Encode, conflict
from tracing_2pc.outbox.records import Record

_SECRETS: Final = frozenset(
    {
        "basic.auth.user.info",
        "bearer.auth.client.secret",
        "bearer.auth.token",
        "ssl.key.password",
    }
)
_REFUSED: Final = frozenset({404, 409, 422})
"""What the registry says of a schema: not there, incompatible, none."""

_SILENT: Final = (
    SchemaRegistryError,
    TransportError,
    OAuthTokenError,
    json.JSONDecodeError,
)

_MOST: Final = 500
"""Characters of what the registry says."""

_FOREIGN: Final = frozenset(
    {"use.schema.id", "use.latest.version", "use.latest.with.metadata"}
)
"""Options by which a value has another schema than the one that was given."""

_Differs: TypeAlias = Callable[
    [Record, Any, bytes, SerializationContext], Difference | None
]
"""Compares a record, and what was made of it, with the value that was encoded."""


class _Registered(abc.ABC):
    """Common parts of `Avro` and `Protobuf`: the registry, and its errors."""

    def __init__(
        self,
        registry: str,
        settings: Mapping[str, Any] | None,
        options: Mapping[str, Any] | None,
    ) -> None:
        self._settings = {"url": registry, **(settings or {})}
        self._options = {"subject.name.strategy.type": "TOPIC", **(options or {})}
        check_references(self._settings, _SECRETS)
        if "@" in registry:
            raise ConfigurationError("registry: no login in a URL: use settings=")

    @contextlib.contextmanager
    def open(self, timeout: float) -> Iterator[Encode]:
        """Give what encodes a record of a number for a topic, in this process.

        Raises:
            ConfigurationError: a setting or an option is unknown, or cannot be used.
        """
        waits = {"timeout": timeout, "max.retries": 0}  # who asked asks again
        settings = with_secrets(waits | self._settings, _SECRETS)

        with (
            refused_in_one_line(settings, _SECRETS),
            SchemaRegistryClient(settings) as client,
        ):
            self._encoder(client)

        def connect(stack: ExitStack) -> Encode:
            return self._encoder(stack.enter_context(SchemaRegistryClient(settings)))

        with contextlib.closing(_Encoders(connect)) as encoders:
            yield encoders.encode

    def _encoder(self, client: SchemaRegistryClient) -> Encode:
        serialize, differs = self._serializer(client), self._differs(client)

        def encode(record: Record, row: int, topic: str) -> bytes:
            context = SerializationContext(topic, MessageField.VALUE)
            try:
                sent = self._value(record)
                value: bytes = serialize(sent, context)
                difference = differs(record, sent, value, context)
            except _SILENT as error:
                raise _refusal(error, record, topic) from None
            except Exception:  # noqa: BLE001 - the serializers raise what they like
                # Its message may hold the record.
                bad = dict(self._bad(record))
                reason = "; ".join(filter(None, bad.values()))
                # A column that the schema or the batch lacks is no row's fault.
                is_rows = bool(bad) and all(bad.values())
                raise _refused(row, topic, bad, reason, is_rows=is_rows) from None
            if difference is not None:
                path, reason = difference.path[1:], str(difference)
                raise _refused(row, topic, [path], reason, is_rows=True)
            return value

        return encode

    @abc.abstractmethod
    def _serializer(self, client: SchemaRegistryClient) -> Any:
        """Return a serializer of the client's."""

    @abc.abstractmethod
    def _value(self, record: Record) -> Any:
        """Return a record as the serializer takes it."""

    @abc.abstractmethod
    def _differs(self, client: SchemaRegistryClient) -> _Differs:
        """Return a function that compares a record with its decoded value."""

    @abc.abstractmethod
    def _bad(self, record: Record) -> Iterable[tuple[str, str]]:
        """Yield the columns that the schema does not take, each with the reason."""


class _Encoders:
    """Encodes by the registry's recent answer about a topic.

    It is asked again after a minute. A registry restored from a backup may give a
    schema another number, and readers look that number up. While the registry is down,
    the last number is used.
    """

    def __init__(self, connect: Callable[[ExitStack], Encode]) -> None:
        self._connect = connect
        self._asking = threading.Lock()
        self._known: dict[str, tuple[Encode, float]] = {}
        # Of a topic: what is in use, and before it what another thread may use still.
        self._opened: dict[str, list[ExitStack]] = {}

    def encode(self, record: Record, row: int, topic: str) -> bytes:
        """Encode a record for a topic."""
        if (known := self._lately(topic)) is not None:
            return known(record, row, topic)
        with self._asking:
            if (known := self._lately(topic)) is not None:
                return known(record, row, topic)
            return self._ask(record, row, topic)

    def _lately(self, topic: str) -> Encode | None:
        known, since = self._known.get(topic, (None, 0.0))
        return known if time.monotonic() - since < KNOWN_FOR else None

    def _ask(self, record: Record, row: int, topic: str) -> bytes:
        with ExitStack() as stack:
            encode = self._connect(stack)
            try:
                value = encode(record, row, topic)
            except RefusalError as error:
                if error.refusal is not Refusal.NOT_NOW or topic not in self._known:
                    raise
                encode, _ = self._known[topic]
                self._known[topic] = encode, time.monotonic()
                return encode(record, row, topic)
            self._known[topic] = encode, time.monotonic()
            opened = self._opened.setdefault(topic, [])
            opened.append(stack.pop_all())
            if len(opened) > 2:
                opened.pop(0).close()
        return value

    def close(self) -> None:
        """Close all connections."""
        for stack in itertools.chain(*self._opened.values()):
            stack.close()


class Avro(_Registered):
    """Values in Avro, for `KafkaRelay(value=…)`.

    A record is encoded at prepare, and stored as it is sent. It is read back and
    compared: a value that the schema would change is a vote to abort. The schema's
    subject is `<topic>-value`. A process asks the registry once a minute for each
    topic; the last answer is used for longer if the registry is down.

    Args:
        schema: a record in Avro's JSON, whose fields are the columns; a column may be
            left out if its field has a default.
        registry: URLs of the registry, separated by commas.
        settings: of the registry's client, by its names, as for security. A secret,
            such as `basic.auth.user.info`, is a reference, `env:NAME` or `file:PATH`.
        options: of the serializer, by its names. With `{"auto.register.schemas":
            False}` a schema is looked up, and never registered.

    Raises:
        ConfigurationError: no schema of a record, or a secret that is no reference.
    """

    def __init__(
        self,
        schema: str,
        registry: str,
        *,
        settings: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        strict = {"validate.strict.allow.default": True}  # no column is left out
        super().__init__(registry, settings, strict | dict(options or {}))
        self._schema = schema
        try:
            self._parsed: Any = parse_schema(json.loads(schema))
            self._columns = AvroColumns(self._parsed)
        except Exception as error:  # noqa: BLE001 - it raises what it likes
            raise ConfigurationError(f"schema: no record of Avro: {error}") from None

    def _serializer(self, client: SchemaRegistryClient) -> Any:
        return AvroSerializer(client, self._schema, conf=self._options)

    def _value(self, record: Record) -> Any:
        return dict(record.values)

    def _differs(self, client: SchemaRegistryClient) -> _Differs:
        if _FOREIGN & self._options.keys():
            return self._differs_by_registry(client)
        compare, parsed = self._columns.compare, self._parsed

        def differs(_: Record, sent: Any, value: bytes, __: Any) -> Difference | None:
            return compare(sent, schemaless_reader(io.BytesIO(value[5:]), parsed, None))

        return differs

    def _differs_by_registry(self, client: SchemaRegistryClient) -> _Differs:
        """Compare by the schema that the registry has chosen, and by its rules."""
        # Here alone: the client may move what it does not publish.
        from confluent_kafka.schema_registry.avro import (
            _resolve_named_schema,
            parse_schema_with_repo,
        )

        conf = {"subject.name.strategy.type": "TOPIC"}
        read, columns = AvroDeserializer(client, conf=conf), dict[int, AvroColumns]()

        def differs(
            _: Record, sent: Any, value: bytes, context: Any
        ) -> Difference | None:
            number = int.from_bytes(value[1:5], "big")
            if number not in columns:
                schema = client.get_schema(number)
                names = _resolve_named_schema(schema, client)
                parsed = parse_schema_with_repo(schema.schema_str, names)
                columns[number] = AvroColumns(parsed)
            return columns[number].compare(sent, read(value, context))

        return differs

    def _bad(self, record: Record) -> Iterable[tuple[str, str]]:
        return self._columns.bad(record.values)


class Protobuf(_Registered):
    """Values in Protobuf, for `KafkaRelay(value=…)`.

    As `Avro`, but for the schema. A message is made from the record's JSON form, so
    that a `Timestamp` takes a time, and a `string` a decimal. A null is taken by fields
    with presence only, and `bytes` take no text.

    Args:
        message: a class that `protoc` has made; its fields are the columns.
        registry: as `Avro`; so are `settings` and `options`.
        settings: of the registry's client.
        options: of the serializer.

    Raises:
        ConfigurationError: a secret that is no reference.
    """

    def __init__(
        self,
        message: type[Any],
        registry: str,
        *,
        settings: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(registry, settings, options)
        self._message = message

    def _serializer(self, client: SchemaRegistryClient) -> Any:
        return ProtobufSerializer(self._message, client, self._options)

    def _value(self, record: Record) -> Any:
        return ParseDict(json.loads(record.text), self._message())

    def _differs(self, client: SchemaRegistryClient) -> _Differs:
        return lambda record, message, _, __: compare_message(record.values, message)

    def _bad(self, record: Record) -> Iterable[tuple[str, str]]:
        fields = self._message.DESCRIPTOR.fields
        types = {name: name_of(f) for f in fields for name in (f.json_name, f.name)}
        for name, value in json.loads(record.text).items():
            try:
                ParseDict({name: value}, self._message())
            except Exception:  # noqa: BLE001 - it raises what it likes
                difference = Difference(
                    "", kind_of(record.values[name]), types.get(name, "")
                )
                yield name, str(difference) if name in types else ""


def _refused(
    row: int, topic: str, columns: Collection[str], reason: str, *, is_rows: bool
) -> RefusalError:
    where = ", column ".join([f"record {row}", *columns])
    detail = f"{where}: the schema of topic {topic} does not take it"
    detail = f"{detail}: {reason}" if reason else detail
    return conflict(detail, ", ".join(columns) if is_rows else None)


def _refusal(error: Exception, record: Record, topic: str) -> RefusalError:
    if isinstance(error, SchemaRegistryError) and error.http_status_code in _REFUSED:
        message = str(error.error_message)
        named = [n for n in record.values if re.search(rf"\b{re.escape(n)}\b", message)]
        columns = "".join(f"column {name}: " for name in named)
        return conflict(
            f"{columns}the registry does not take the schema of topic {topic} "
            f"({error.http_status_code}): {message[:_MOST]}"
        )
    status = getattr(error, "http_status_code", "")
    cause = f"it answers {status}" if status else type(error).__name__
    detail = f"the schema registry does not know topic {topic} now ({cause}): ask again"
    return RefusalError(Refusal.NOT_NOW, detail)
