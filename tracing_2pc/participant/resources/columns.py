"""Arrow columns and a table's columns: which is which, and do they fit."""

from __future__ import annotations

import datetime
import decimal
import struct
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from tracing_2pc.participant.problems import Problem

_NUMERIC_TEXT: Final = sa.Text
"""SQLite would turn a decimal into a binary float: there it is kept as text."""


def sql_type(kind: pa.DataType) -> sa.types.TypeEngine[Any] | None:
    """Return the column type for an Arrow type; None if a table cannot hold it."""
    t = pa.types
    if t.is_decimal(kind):
        exact = sa.Numeric(kind.precision, kind.scale)
        return exact.with_variant(_NUMERIC_TEXT(), "sqlite")
    if t.is_timestamp(kind):
        return sa.DateTime(timezone=kind.tz is not None)
    if t.is_uint64(kind):
        return sa.Numeric(20, 0).with_variant(_NUMERIC_TEXT(), "sqlite")
    for is_kind, made in (
        (t.is_boolean, sa.Boolean(create_constraint=False)),
        (t.is_integer, sa.BigInteger()),
        (t.is_floating, sa.Double()),
        (t.is_date, sa.Date()),
        (t.is_time, sa.Time()),
        (_is_binary, sa.LargeBinary()),
        (_is_text, sa.Text()),
    ):
        if is_kind(kind):
            return made
    return None


_TAKES: Final[Mapping[type, frozenset[type]]] = {
    int: frozenset({int}),
    float: frozenset({float, int, decimal.Decimal}),
    decimal.Decimal: frozenset({decimal.Decimal, int, float}),
    bool: frozenset({bool}),
    bytes: frozenset({bytes}),
    datetime.datetime: frozenset({datetime.datetime}),
    datetime.date: frozenset({datetime.date, str}),
    datetime.time: frozenset({datetime.time, str}),
}
"""Kinds of values that a column takes, by the kind it holds. Any other takes text."""

_SYSTEM: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
"""Names that PostgreSQL has given away in every table."""

_HINTS: Final[Mapping[type, pa.DataType]] = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: pa.string(),
    datetime.datetime: pa.timestamp("us"),
    datetime.date: pa.string(),
    datetime.time: pa.string(),
}


def check_names(schema: pa.Schema) -> None:
    """Refuse columns that no table of ours can have.

    Raises:
        Problem: 400, naming the columns and the cure.
    """
    names = schema.names
    folded = [name.lower() for name in names]
    bad = [
        name[:70]
        for name in names
        if not 0 < len(name.encode("utf-8", "replace")) <= 63
        or not name.isprintable()
        or name.lower().startswith("tpc_")
        or name in _SYSTEM
        or folded.count(name.lower()) > 1
    ]
    if bad:
        raise Problem(
            400,
            f"columns {_list(bad)}: a name is unique, printable, 1 to 63 bytes long "
            "is none of PostgreSQL's own and does not start with tpc_",
        )
    nested = [field.name for field in schema if sql_type(field.type) is None]
    if nested:
        raise Problem(
            400,
            f"columns {_list(nested)}: a table cannot hold this type; send "
            "to_json(column) instead",
        )


def check_fit(
    schema: pa.Schema, columns: Mapping[str, sa.types.TypeEngine[Any]], *, partial: bool
) -> None:
    """Refuse records that are not the table's.

    Args:
        schema: of the records.
        columns: of the table, without ours.
        partial: a column may be left out: JSON lines have no nulls to send.

    Raises:
        Problem: 400, naming the columns.
    """
    given = set(schema.names)
    missing = [] if partial else sorted(columns.keys() - given)
    unknown = sorted(given - columns.keys())
    wrong = [
        field.name
        for field in schema
        if field.name in columns and not _fits(field.type, columns[field.name])
    ]
    said = (
        ("not in the table", unknown),
        ("missing", missing),
        ("another type", wrong),
    )
    if any(found for _, found in said):
        detail = "; ".join(f"{what}: {_list(found)}" for what, found in said if found)
        raise Problem(400, f"the columns don't match the table: {detail}")


def hints(columns: Mapping[str, sa.types.TypeEngine[Any]]) -> pa.Schema:
    """Return the types that JSON lines cannot say, from the table."""
    kinds = {name: _hint(column) for name, column in columns.items()}
    return pa.schema([(name, kind) for name, kind in kinds.items() if kind is not None])


def as_written(schema: pa.Schema) -> pa.Schema:
    """Return the types that JSON lines have said: what looks like a time is text."""
    fields = [
        field.with_type(pa.string()) if pa.types.is_temporal(field.type) else field
        for field in schema
    ]
    return pa.schema(fields)


def repeated(value: int | str, rows: int) -> pa.Array:
    """Return a column of one value.

    Made from its bytes: to look at a Python object PyArrow imports pandas, and the
    first prepare of a process would wait seconds for it.
    """
    if isinstance(value, int):
        kind, buffers = pa.int64(), [value.to_bytes(8, sys.byteorder, signed=True)]
    else:
        text = value.encode()
        kind, buffers = pa.string(), [struct.pack("=2i", 0, len(text)), text]
    held = [None, *map(pa.py_buffer, buffers)]
    return pa.repeat(pa.Array.from_buffers(kind, 1, held)[0], rows)


def plain(column: pa.Array, *, binary_as_text: bool) -> pa.Array:
    """Return a column in a form that every database writes."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return plain(column.dictionary_decode(), binary_as_text=binary_as_text)
    if pa.types.is_null(kind) or kind == pa.string_view():
        return pc.cast(column, pa.string())
    if pa.types.is_float16(kind):
        return pc.cast(column, pa.float32())
    if pa.types.is_date64(kind):
        return pc.cast(column, pa.date32())
    if _is_binary(kind) and binary_as_text:
        # PostgreSQL's text form of bytea; the one column type with no Arrow kernel.
        values = column.to_pylist()
        return pa.array(
            [None if v is None else f"\\x{v.hex()}" for v in values], pa.string()
        )
    return column


def _fits(kind: pa.DataType, column: sa.types.TypeEngine[Any]) -> bool:
    if pa.types.is_null(kind):
        return True
    made = sql_type(kind)
    sends = str if made is None or _is_text(kind) else _holds(made)
    takes = _TAKES.get(_holds(column), frozenset({str}))
    if sends is decimal.Decimal and isinstance(column, _NUMERIC_TEXT):
        return True
    return sends in takes and not _loses(kind, column)


def _loses(kind: pa.DataType, column: sa.types.TypeEngine[Any]) -> bool:
    """Say whether PostgreSQL would round a decimal, or drop or invent a time zone."""
    if pa.types.is_decimal(kind) and isinstance(column, sa.Numeric):
        return column.scale is not None and kind.scale > column.scale
    if pa.types.is_timestamp(kind) and isinstance(column, postgresql.TIMESTAMP):
        return column.timezone is not (kind.tz is not None)
    return False


def _hint(column: sa.types.TypeEngine[Any]) -> pa.DataType | None:
    if isinstance(column, postgresql.TIMESTAMP) and column.timezone:
        return pa.timestamp("us", "UTC")
    return _HINTS.get(_holds(column))


def _holds(column: sa.types.TypeEngine[Any]) -> type:
    if isinstance(column, sa.Float):
        return float
    try:
        return column.python_type
    except NotImplementedError:
        return object


def _is_text(kind: pa.DataType) -> bool:
    t = pa.types
    if t.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(
        t.is_string(kind)
        or t.is_large_string(kind)
        or t.is_null(kind)
        or kind == pa.string_view()
    )


def _is_binary(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(
        t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind)
    )


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
