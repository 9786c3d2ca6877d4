"""Arrow columns and a table's columns: which is which, and do they fit."""

from __future__ import annotations

import collections
import dataclasses
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
        exact = sa.Numeric(kind.precision - min(0, kind.scale), max(0, kind.scale))
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
        (is_text, sa.Text()),
    ):
        if is_kind(kind):
            return made
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, as its database describes it."""

    type: sa.types.TypeEngine[Any]
    required: bool = True
    """Nothing but a record can give it a value: no default, identity or expression."""

    generated: bool = False
    """Its value is computed, and cannot be given."""

    @classmethod
    def reflected(cls, about: Mapping[str, Any]) -> Column:
        """Read what SQLAlchemy's inspector says."""
        kind = about["type"]
        number = about.get("primary_key") and isinstance(kind, sa.Integer)
        filled = ("default", "identity", "computed")
        optional = number or any(about.get(name) is not None for name in filled)
        return cls(kind, not optional, about.get("computed") is not None)


_TAKES: Final[Mapping[type, frozenset[type]]] = {
    int: frozenset({int}),
    float: frozenset({float, int, decimal.Decimal}),
    decimal.Decimal: frozenset({decimal.Decimal, int, float}),
    bool: frozenset({bool}),
    bytes: frozenset({bytes}),
    datetime.datetime: frozenset({datetime.datetime, str}),
    datetime.date: frozenset({datetime.date, str}),
    datetime.time: frozenset({datetime.time, str}),
}
"""Kinds of values that a column takes, by the kind it holds. Any other takes text."""

_SYSTEM: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
"""Names that PostgreSQL has given away in every table."""


def check_names(schema: pa.Schema) -> None:
    """Refuse columns that no table of ours can have.

    Raises:
        Problem: 400, naming the columns and the cure.
    """
    names = schema.names
    times = collections.Counter(name.lower() for name in names)
    bad = [
        name[:70]
        for name in names
        if not 0 < len(name.encode("utf-8", "replace")) <= 63
        or not name.isprintable()
        or name.lower().startswith("tpc_")
        or name in _SYSTEM
        or times[name.lower()] > 1
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
    schema: pa.Schema,
    columns: Mapping[str, Column],
    dialect: sa.Dialect,
    *,
    partial: bool,
) -> None:
    """Refuse records that are not the table's.

    Args:
        schema: of the records.
        columns: of the table, without ours.
        dialect: of the database.
        partial: a column may be left out: JSON lines have no nulls to send.

    Raises:
        Problem: 400, naming the columns, and both types where they are different.
    """
    given = set(schema.names)
    required = {name for name, column in columns.items() if column.required}
    differences = (
        ("not in the table", sorted(given - columns.keys())),
        ("missing", [] if partial else sorted(required - given)),
        (
            "generated",
            [n for n in schema.names if n in columns and columns[n].generated],
        ),
        (
            "another type",
            [
                type_pair(field, columns[field.name].type, dialect)
                for field in schema
                if field.name in columns
                and not _fits(field.type, columns[field.name].type, dialect.name)
            ],
        ),
    )
    if any(named for _, named in differences):
        detail = "; ".join(
            f"{what}: {_list(named)}" for what, named in differences if named
        )
        raise Problem(400, f"the columns don't match the table: {detail}")


def type_pair(
    field: pa.Field, there: sa.types.TypeEngine[Any], dialect: sa.Dialect
) -> str:
    """Name a column, the type that it has there, and the type that was sent."""
    nameless = isinstance(there, sa.types.NullType)
    name = "another type" if nameless else there.compile(dialect=dialect)
    return f"{field.name} is {name} there, {field.type} was sent"


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


def plain(column: pa.Array) -> pa.Array:
    """Return a column in a form that every database writes.

    Raises:
        ArrowException: a value of it has no such form.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return plain(column.dictionary_decode())
    if pa.types.is_null(kind) or kind == pa.string_view():
        return pc.cast(column, pa.string())
    if pa.types.is_float16(kind):
        return pc.cast(column, pa.float32())
    if pa.types.is_date64(kind):
        return pc.cast(column, pa.date32())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # The same instant, for which nobody has to know the time zone.
        return pc.cast(column, pa.timestamp(kind.unit, "UTC"))
    return column


def binary_as_text(column: pa.Array) -> pa.Array:
    """Return bytes in PostgreSQL's text form; the one type without an Arrow kernel."""
    if not _is_binary(column.type):
        return column
    values = column.to_pylist()
    return pa.array(
        [None if v is None else f"\\x{v.hex()}" for v in values], pa.string()
    )


def _fits(kind: pa.DataType, column: sa.types.TypeEngine[Any], dialect: str) -> bool:
    if pa.types.is_null(kind):
        return True
    made = sql_type(kind)
    sends = str if made is None or is_text(kind) else python_type(made)
    takes = _TAKES.get(python_type(column), frozenset({str}))
    if sends is decimal.Decimal and isinstance(column, _NUMERIC_TEXT):
        return True
    return sends in takes and not (dialect == "postgresql" and _changes(kind, column))


def _changes(kind: pa.DataType, column: sa.types.TypeEngine[Any]) -> bool:
    """Say whether PostgreSQL would round, or depend on its settings, for any value."""
    if isinstance(column, sa.Numeric) and (column.scale or 0) < 0:
        return True
    if pa.types.is_decimal(kind) and isinstance(column, sa.Numeric):
        return column.scale is not None and kind.scale > column.scale
    if pa.types.is_timestamp(kind) and isinstance(column, postgresql.TIMESTAMP):
        return column.timezone is not (kind.tz is not None)
    if isinstance(column, postgresql.INTERVAL):
        return column.precision is not None or column.fields is not None
    return isinstance(column, postgresql.MONEY) or (
        isinstance(column, postgresql.TIME) and column.timezone
    )


def python_type(column: sa.types.TypeEngine[Any]) -> type:
    """Return the kind of value that a column holds; `object` for what Python lacks."""
    if isinstance(column, sa.Float):
        return float
    try:
        return column.python_type
    except NotImplementedError:
        return object


def is_text(kind: pa.DataType) -> bool:
    """Say whether values of a type are text, or nothing."""
    t = pa.types
    if t.is_dictionary(kind):
        return is_text(kind.value_type)
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
