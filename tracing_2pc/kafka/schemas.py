"""Values by a schema registry: the extra `tracing-2pc[kafka-schemas]`."""

from __future__ import annotations

import abc
import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from fastavro import parse_schema
from fastavro.validation import ValidationError, validate
from google.protobuf.json_format import ParseDict, ParseError
from httpx2 import TransportError

from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.states import Refusal
from tracing_2pc.kafka.broker import check_references, with_secrets
from tracing_2pc.outbox.choosing import conflict
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


class _Registered(abc.ABC):
    """What `Avro` and `Protobuf` share: the registry, and what is said of it."""

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
    def open(self, timeout: float) -> Iterator[Callable[[Record, int, str], bytes]]:
        """Give what encodes a record of a number for a topic, in this process."""
        waits = {"timeout": timeout, "max.retries": 0}  # who asked asks again
        settings = with_secrets(waits | self._settings, _SECRETS)
        with SchemaRegistryClient(settings) as client:
            yield self._encoder(self._serializer(client))

    def _encoder(
        self, serialize: Callable[..., Any]
    ) -> Callable[[Record, int, str], bytes]:

        def encode(record: Record, row: int, topic: str) -> bytes:
            context = SerializationContext(topic, MessageField.VALUE)
            try:
                value: bytes = serialize(self._value(record), context)
            except _SILENT as error:
                raise _said(error, record, topic) from None
            except Exception:  # noqa: BLE001 - the serializers raise what they like
                # Its message may hold the record.
                where = ", column ".join([f"record {row}", *self._bad(record)])
                detail = f"{where}: the schema of topic {topic} does not take it"
                raise conflict(detail) from None
            return value

        return encode

    @abc.abstractmethod
    def _serializer(self, client: SchemaRegistryClient) -> Any:
        """Return a serializer of the client's."""

    @abc.abstractmethod
    def _value(self, record: Record) -> Any:
        """Return a record as the serializer takes it."""

    @abc.abstractmethod
    def _bad(self, record: Record) -> Iterable[str]:
        """Name the columns that the schema does not take."""


class Avro(_Registered):
    """Values in Avro, for `KafkaRelay(value=…)`.

    A record is encoded at prepare, and stored as it is sent. The schema's subject is
    `<topic>-value`. A process asks the registry once for each topic; then prepares go
    on without it.

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
            self._defaults = {f["name"]: "default" in f for f in self._parsed["fields"]}
        except Exception as error:  # noqa: BLE001 - it raises what it likes
            raise ConfigurationError(f"schema: no record of Avro: {error}") from None

    def _serializer(self, client: SchemaRegistryClient) -> Any:
        return AvroSerializer(client, self._schema, conf=self._options)

    def _value(self, record: Record) -> Any:
        return record.values

    def _bad(self, record: Record) -> Iterable[str]:
        missing = [n for n, has in self._defaults.items() if not has]
        missing = [n for n in missing if n not in record.values]
        bad = [n for n in record.values if n not in self._defaults] + missing
        try:
            validate(record.values, self._parsed)
        except ValidationError as error:
            fields = [str(data.field) for data in error.errors]
            prefix = f"{self._parsed['name']}."
            bad += [f.removeprefix(prefix).partition(".")[0] for f in fields]
        return dict.fromkeys(bad)


class Protobuf(_Registered):
    """Values in Protobuf, for `KafkaRelay(value=…)`.

    As `Avro`, but for the schema. A message is made from the record's JSON form, so
    that a `Timestamp` takes a time, and a `string` a decimal.

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

    def _bad(self, record: Record) -> Iterable[str]:
        for name, value in json.loads(record.text).items():
            try:
                ParseDict({name: value}, self._message())
            except ParseError:
                yield name


def _said(error: Exception, record: Record, topic: str) -> RefusalError:
    if isinstance(error, SchemaRegistryError) and error.http_status_code in _REFUSED:
        said = str(error.error_message)
        named = [n for n in record.values if re.search(rf"\b{re.escape(n)}\b", said)]
        columns = "".join(f"column {name}: " for name in named)
        return conflict(
            f"{columns}the registry does not take the schema of topic {topic} "
            f"({error.http_status_code}): {said[:_MOST]}"
        )
    status = getattr(error, "http_status_code", "")
    why = f"it answers {status}" if status else type(error).__name__
    detail = f"the schema registry does not know topic {topic} now ({why}): ask again"
    return RefusalError(Refusal.NOT_NOW, detail)
