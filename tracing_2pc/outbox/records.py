"""Records as JSON objects, one text each."""

from __future__ import annotations

import datetime
import functools
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tracing_2pc.core import content
from tracing_2pc.core.errors import MalformedError, RefusalError
from tracing_2pc.participant.body import Source

_SLICE: Final = 1_000
_SLICE_BYTES: Final = 1 << 22
"""Records whose columns are written together, and what they take, at most."""


class Record(NamedTuple):
    """A record by column, and as one JSON object."""

    values: Mapping[str, Any]
    text: str


def json_records(source: Source, rows: int) -> Iterator[str]:
    """Read so many records, as JSON objects; raises as `read_records`."""
    return (record.text for record in read_records(source, rows))


def read_records(source: Source, rows: int) -> Iterator[Record]:
    """Read so many records, as JSON objects too.

    Times are ISO 8601, decimals are text, bytes are base64, maps are objects.

    Raises:
        MalformedError: a record has no form in JSON: NaN, a time that Python has no
            date for, an unknown time zone or an unknown type.
    """
    if source.content_type != content.NDJSON:
        yield from _read(source, rows)
        return
    for record in source.lines(rows):
        try:
            text = _json(record)
        except (TypeError, ValueError):
            bad = [name for name, value in record.items() if not _is_json(value)]
            raise _no_json(bad) from None
        yield Record(record, text)


def _read(source: Source, rows: int) -> Iterator[Record]:
    """Read Arrow; column by column, as there are many records to a batch."""
    schema, batches = source.batches(rows)
    if len(set(schema.names)) != len(schema.names):
        raise MalformedError("two columns have the same name")
    for field in schema:
        if cast := content.json_cast_of(field):
            raise MalformedError(
                f"column {field.name[:70]}: a record cannot be JSON: it has no form "
                f"for this type; send {cast[:90]}"
            )
    names = schema.names
    members = (f"{_json(name)}: ".replace("%", "%%") + "%s" for name in names)
    record = f"{{{', '.join(members)}}}"
    for batch in batches:
        fit = _SLICE_BYTES * batch.num_rows // max(1, batch.nbytes)
        most = min(_SLICE, max(1, fit))
        for first in range(0, batch.num_rows, most):
            some = batch.slice(first, most)
            values = _Columns(some)
            texts = [_texts(values, field, some[field.name]) for field in schema]
            written: Iterable[Any] = zip(*texts, strict=True)
            for row, parts in enumerate(written if texts else [()] * some.num_rows):
                yield Record(_Values(values, row), record % parts)


class _Columns(dict[str, list[Any]]):
    """The values of columns, by name, each made when it is asked for."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        super().__init__()
        self.batch = batch

    def __missing__(self, name: str) -> list[Any]:
        column = self.batch.column(name)
        values, kind = _values(column), column.type
        if pa.types.is_nested(kind):
            values = [content.json_value(v, kind, lambda v: v) for v in values]
        self[name] = values
        return values


class _Values(Mapping[str, Any]):
    """A record's values by column."""

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: _Columns, row: int) -> None:
        self._columns = columns
        self._row = row

    def __getitem__(self, name: str) -> Any:
        return self._columns[name][self._row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.batch.schema.names)

    def __len__(self) -> int:
        return len(self._columns.batch.schema)


def _texts(values: _Columns, field: pa.Field, column: pa.Array) -> list[str]:
    """Write a column's values in JSON."""
    name, kind = field.name, field.type
    try:
        if kind in (pa.date32(), _MOMENT):
            return _dates(column)
        if not pa.types.is_nested(kind):
            lines = _lines(values[name])[1:-1].split("\n")
            if len(lines) == len(column):  # else they are lists, in some extension
                return lines
        return list(map(_json, values[name]))
    except _UNREADABLE:
        raise _no_json([f"{name} ({kind})"]) from None


def _dates(column: pa.Array) -> list[str]:
    """Write days or moments as Python does, without an object for each."""
    end = ""
    if column.type == _MOMENT:
        column, end = column.cast(pa.timestamp("us")), "+00:00"
    pc.min_max(column).as_py()  # Python has dates for all that are between
    texts = column.cast(pa.string())
    for old, new in ((" ", "T"), (".000000", "")):
        texts = pc.replace_substring(texts, old, new)
    texts = pc.binary_join_element_wise('"', texts, f'{end}"', "")
    return list(pc.fill_null(texts, "null").to_pylist())


_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MOMENT: Final = pa.timestamp("us", "UTC")
"""As Spark sends it."""

_UNREADABLE: Final = (
    pa.ArrowException,
    ArithmeticError,
    LookupError,
    TypeError,
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


def _is_json(value: Any) -> bool:
    try:
        _json(value)
    except (TypeError, ValueError):
        return False
    return True


def _no_json(columns: Sequence[str]) -> RefusalError:
    names = ", ".join(column.partition(" (")[0] for column in columns)
    cast = (
        f"; send CAST({columns[0].partition(' (')[0][:70]} AS STRING)"
        if columns
        else ""
    )
    return MalformedError(
        f"columns {', '.join(columns)}: a record cannot be JSON: it holds NaN, a time "
        "whose year, there, is before 1 or after 9999, a time zone that nobody knows, "
        f"or a type that JSON has no form for{cast}",
        names,
    )


def plain_text_of(value: Any) -> str:
    """Return the text of a value that JSON has no form for."""
    if isinstance(value, datetime.date):  # first, as there are most of them
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    text = content.plain_text(value)
    if not isinstance(text, str):
        raise TypeError(type(value).__name__)
    return text


_encoder: Final = functools.partial(
    json.JSONEncoder, default=plain_text_of, allow_nan=False
)
_json = _encoder().encode
_lines = _encoder(separators=("\n", ": ")).encode
"""Writes a list with a line for each value: JSON has no line break in a text."""
