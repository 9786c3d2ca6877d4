"""Records as JSON objects, one text each."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tracing_2pc.core import content
from tracing_2pc.core.errors import MalformedError, RefusalError
from tracing_2pc.participant.body import Source


class Record(NamedTuple):
    """A record by column, and as one JSON object."""

    values: Mapping[str, Any]
    text: str


def json_records(source: Source, rows: int) -> Iterator[str]:
    """Read so many records, as JSON objects; `read_records` says what it raises."""
    return (record.text for record in read_records(source, rows))


def read_records(source: Source, rows: int) -> Iterator[Record]:
    """Read so many records, as JSON objects too.

    Times are ISO 8601, decimals are text, bytes are base64, maps are objects.

    Raises:
        MalformedError: a record cannot be said in JSON: NaN, a time that
            Python has no date for, an unknown time zone or an unknown type.
    """
    for record in _read(source, rows):
        try:
            text = _json(record)
        except (TypeError, ValueError):
            bad = [name for name, value in record.items() if not _is_json(value)]
            raise _no_json(bad) from None
        yield Record(record, text)


def _read(source: Source, rows: int) -> Iterator[dict[str, Any]]:
    if source.content_type == content.NDJSON:
        yield from source.lines(rows)
        return
    schema, batches = source.batches(rows)
    if len(set(schema.names)) != len(schema.names):
        raise MalformedError("two columns have the same name")
    for field in schema:
        if cast := content.json_cast_of(field):
            raise MalformedError(
                f"column {field.name[:70]}: a record cannot be JSON: it has no form "
                f"for this type; send {cast[:90]}"
            )
    nested = [field for field in schema if pa.types.is_nested(field.type)]
    names = schema.names
    for batch in batches:
        try:
            columns = list(map(_values, batch.columns))
        except _UNREADABLE:
            pairs = zip(batch.schema, batch.columns, strict=True)
            bad = [
                f"{f.name} ({f.type})" for f, column in pairs if not _is_read(column)
            ]
            raise _no_json(bad) from None
        every = zip(*columns, strict=True) if columns else [()] * batch.num_rows
        for values in every:
            record = dict(zip(names, values, strict=True))
            for field in nested:
                value, kind = record[field.name], field.type
                record[field.name] = content.json_value(value, kind, lambda v: v)
            yield record


_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MOMENT: Final = pa.timestamp("us", "UTC")
"""As Spark sends it."""

_UNREADABLE: Final = (
    pa.ArrowException,
    ArithmeticError,
    LookupError,
    ValueError,
    OSError,
)
"""A time zone is looked up among files: what can go wrong there depends on it."""


def _values(column: pa.Array) -> list[Any]:
    if column.type != _MOMENT:
        return list(column.to_pylist())
    # Arrow would look up the zone of each moment.
    since, numbers = datetime.timedelta, column.cast(pa.int64()).to_pylist()
    return [n if n is None else _EPOCH + since(microseconds=n) for n in numbers]


def _is_read(column: pa.Array) -> bool:
    try:
        column.to_pylist()
    except _UNREADABLE:
        return False
    return True


def _is_json(value: Any) -> bool:
    try:
        _json(value)
    except (TypeError, ValueError):
        return False
    return True


def _no_json(columns: Sequence[str]) -> RefusalError:
    cast = (
        f"; send CAST({columns[0].partition(' (')[0][:70]} AS STRING)"
        if columns
        else ""
    )
    return MalformedError(
        f"columns {', '.join(columns)}: a record cannot be JSON: it holds NaN, a time "
        "whose year, there, is before 1 or after 9999, a time zone that nobody knows, "
        f"or a type that JSON has no form for{cast}"
    )


def plain_text_of(value: Any) -> str:
    """Say in text what JSON has no form for."""
    if isinstance(value, datetime.date):  # first, as there are most of them
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    text = content.plain_text(value)
    if not isinstance(text, str):
        raise TypeError(type(value).__name__)
    return text


_json = json.JSONEncoder(default=plain_text_of, allow_nan=False).encode
