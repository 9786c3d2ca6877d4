"""Arrow columns and a table's columns: the types of both, and whether they fit."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import struct
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from tracing_2pc.core import content
from tracing_2pc.core.errors import MalformedError

SqlType = sa.types.TypeEngine[Any]


def sql_type(kind: pa.DataType) -> SqlType | None:
    """Return the type for an Arrow type, or None. In SQLite a decimal is text."""
    t = pa.types
    if t.is_decimal(kind):
        exact = sa.Numeric(kind.precision - min(0, kind.scale), max(0, kind.scale))
        return exact.with_variant(sa.Text(), "sqlite")
    if t.is_timestamp(kind):
        return sa.DateTime(timezone=kind.tz is not None)
    if t.is_uint64(kind):
        return sa.Numeric(20, 0).with_variant(sa.Text(), "sqlite")
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

    type: SqlType
    required: bool
    """Only a record can give it a value: no default, identity or expression."""

    generated: bool
    """Its value is computed, and cannot be given."""

    reads_numbers: bool = False
    """Text that reads as a number becomes one, under any name of the type."""

    nullable: bool = False
    """It may be NULL."""

    @classmethod
    def reflected(cls, column: Mapping[str, Any], declared: str | None) -> Column:
        """Read a column of SQLAlchemy's inspector.

        `declared` is its type as it was written, by which SQLite judges.
        """
        kind = column["type"]
        is_number = column.get("primary_key") and isinstance(kind, sa.Integer)
        filled = ("default", "identity", "computed")
        optional = is_number or any(column.get(name) is not None for name in filled)
        generated = column.get("computed") is not None
        reads_numbers = _reads_numbers(declared)
        nullable = bool(column["nullable"])
        return cls(kind, not optional, generated, reads_numbers, nullable)


def _reads_numbers(declared: str | None) -> bool:
    """Return whether SQLite gives a declared type a numeric affinity, by its rules.

    None is a type of PostgreSQL's, which has no affinities.
    """
    name = (declared or "").upper()
    if "INT" in name:
        return True
    if any(text in name for text in ("CHAR", "CLOB", "TEXT")):
        return False
    return name != "" and "BLOB" not in name


_TAKES: Final[Mapping[type, set[type]]] = {
    int: {int},
    float: {float, int, decimal.Decimal},
    decimal.Decimal: {decimal.Decimal, int, float},
    bool: {bool},
    bytes: {bytes},
    datetime.datetime: {datetime.datetime, str},
    datetime.date: {datetime.date, str},
    datetime.time: {datetime.time, str},
}
"""Kinds of values that a column takes, by the kind it holds. Any other takes text."""

TIME_KINDS: Final = {datetime.datetime, datetime.date, datetime.time}
"""Kinds whose text has several forms: we read it, and send the value."""

_READ_BY_SETTINGS: Final = (
    postgresql.MONEY,
    postgresql.OID,  # -1 is taken for the largest
    postgresql.DATERANGE,
    postgresql.DATEMULTIRANGE,
    postgresql.TSRANGE,
    postgresql.TSMULTIRANGE,
    postgresql.TSTZRANGE,
    postgresql.TSTZMULTIRANGE,
)

_WHOLE: Final = (sa.TEXT, sa.Enum, sa.Integer, sa.Boolean, sa.LargeBinary, sa.Double)
"""Types that have no length, and whose text has one meaning."""

_TIMES: Final[Mapping[str, Callable[..., SqlType]]] = {
    "timestamp": postgresql.TIMESTAMP,
    "time": postgresql.TIME,
}
_UNBOUNDED: Final[Mapping[str, SqlType]] = {
    "bigint": sa.BIGINT(),
    "boolean": sa.BOOLEAN(),
    "bytea": sa.LargeBinary(),
    "date": sa.DATE(),
    "double precision": sa.DOUBLE_PRECISION(),
    "integer": sa.INTEGER(),
    "real": sa.REAL(),
    "smallint": sa.SMALLINT(),
    "text": sa.TEXT(),
}
"""Types of the information schema that have neither length nor precision."""

_SYSTEM: Final = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
"""PostgreSQL's own columns of each table."""


def check_names(schema: pa.Schema) -> None:
    """Refuse columns that no table of ours can have, naming them and the cure."""
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
        raise MalformedError(
            f"columns {', '.join(bad)}: a name is unique, printable, 1 to 63 bytes "
            "long, is none of PostgreSQL's own and does not start with tpc_"
        )
    others = [field for field in schema if sql_type(field.type) is None]
    if others:
        casts = [
            content.cast_of(f) or content.made_by("to_json", f.name) for f in others
        ]
        named = (f"{field.name} ({field.type!s:.60})" for field in others)
        raise MalformedError(
            f"columns {', '.join(named)}: a table cannot hold this type; send "
            f"{', '.join(casts)} instead"
        )


def check_fit(
    schema: pa.Schema,
    columns: Mapping[str, Column],
    dialect: sa.Dialect,
    *,
    required: Collection[str],
) -> None:
    """Refuse records that do not fit the table, naming columns, and types that differ.

    `required` are the columns that may not be left out.
    """
    given = set(schema.names)
    pairs = [(f, columns[f.name]) for f in schema if f.name in columns]
    differences = {
        "not in the table": sorted(given - columns.keys()),
        "missing": sorted(set(required) - given),
        "generated": [field.name for field, column in pairs if column.generated],
        "another type": [
            type_pair(field, column.type, dialect)
            for field, column in pairs
            if not _fits(field.type, column, dialect.name)
        ],
    }
    named = [
        f"{difference}: {', '.join(n)}" for difference, n in differences.items() if n
    ]
    if named:
        detail = "; ".join(named)
        raise MalformedError(f"the columns don't match the table: {detail}")


def type_pair(field: pa.Field, target: SqlType, dialect: sa.Dialect) -> str:
    """Name a column, its type in the table, and the type that was sent."""
    nameless = isinstance(target, sa.types.NullType)
    name = "another type" if nameless else target.compile(dialect=dialect)
    return f"{field.name} is {name} there, {field.type} was sent"


def repeated(value: int | str, rows: int) -> pa.Array:
    """Return a column of one value.

    It is made from bytes: for a Python object PyArrow would import pandas, and the
    first prepare of a process would wait seconds for it.
    """
    if isinstance(value, int):
        kind, buffers = pa.int64(), [value.to_bytes(8, sys.byteorder, signed=True)]
    else:
        text = value.encode()
        kind, buffers = pa.string(), [struct.pack("=2i", 0, len(text)), text]
    arrow_buffers = [None, *map(pa.py_buffer, buffers)]
    return pa.repeat(pa.Array.from_buffers(kind, 1, arrow_buffers)[0], rows)


def plain(column: pa.Array) -> pa.Array:
    """Return a column as every database writes it, or raise `ArrowException`."""
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
        # The same instant, without the name of a time zone.
        return pc.cast(column, pa.timestamp(kind.unit, "UTC"))
    return column


def as_text(column: pa.Array) -> pa.Array:
    """Return bytes and moments in PostgreSQL's text form, others unchanged.

    For bytes Arrow has no kernel. It looks up the zone of each moment, which took more
    time than the rest of a COPY here; as text in UTC there is none to look up.
    """
    if pa.types.is_timestamp(column.type) and column.type.tz:
        moments = pc.cast(column, pa.timestamp(column.type.unit, "UTC"))
        text = pc.cast(moments.view(pa.timestamp(column.type.unit)), pa.string())
        return pc.binary_join_element_wise(text, "Z", "")
    if not _is_binary(column.type):
        return column
    texts = [None if v is None else f"\\x{v.hex()}" for v in column.to_pylist()]
    return pa.array(texts, pa.string())


def as_exact(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as this type, with the values that PostgreSQL reads of its text.

    For a binary float it takes the nearest to the digits: Arrow would round a decimal
    twice, and give a short float the digits of a long one.
    """
    if pa.types.is_floating(kind) and column.type != kind:
        column = pc.cast(column, pa.string())
    return pc.cast(column, kind)


def _fits(kind: pa.DataType, column: Column, dialect: str) -> bool:
    if pa.types.is_null(kind):
        return True
    made, target = sql_type(kind), column.type
    sends = str if made is None or is_text(kind) else python_type(made)
    takes = _TAKES.get(python_type(target), {str})
    if sends is decimal.Decimal and isinstance(target, sa.Text):
        return not column.reads_numbers
    return sends in takes and not (dialect == "postgresql" and _changes(kind, target))


def _changes(kind: pa.DataType, column: SqlType) -> bool:
    """Tell whether PostgreSQL would round some value, or read it by its settings."""
    if isinstance(column, sa.Numeric) and (column.scale or 0) < 0:
        return True
    if isinstance(column, (sa.ARRAY, postgresql.DOMAIN)):
        return _changes_text(column)
    if type(column) is sa.String:  # `name`, or `"char"` of one byte
        return True
    if pa.types.is_decimal(kind) and isinstance(column, sa.Numeric):
        return column.scale is not None and kind.scale > column.scale
    if pa.types.is_timestamp(kind) and isinstance(column, postgresql.TIMESTAMP):
        return column.timezone is not (kind.tz is not None)
    if isinstance(column, postgresql.INTERVAL):
        return column.precision is not None or column.fields is not None
    return isinstance(column, _READ_BY_SETTINGS) or (
        isinstance(column, postgresql.TIME) and column.timezone
    )


def _changes_text(column: SqlType) -> bool:
    """Return whether PostgreSQL might do so with text that was not checked."""
    if isinstance(column, sa.ARRAY):
        return _changes_text(column.item_type)
    if isinstance(column, postgresql.DOMAIN):
        base = column.data_type
        if isinstance(base, (sa.ARRAY, postgresql.DOMAIN)):
            return _changes_text(base)
        if isinstance(base, _WHOLE):
            return False
        # SQLAlchemy does not read how long or exact others may be.
        hidden = isinstance(base, (sa.String, postgresql.INTERVAL))
        return hidden or python_type(base) in _TAKES or _changes(pa.string(), base)
    if isinstance(column, sa.String) and column.length is not None:
        return not isinstance(column, sa.Enum)
    kind = python_type(column)
    if kind is decimal.Decimal:
        return getattr(column, "scale", None) is not None
    short = kind is float and not isinstance(column, sa.Double)
    return kind in TIME_KINDS or short or _changes(pa.string(), column)


def of_domain(about: Any) -> SqlType | None:
    """Return the type of a domain, by its row of the information schema; or None."""
    kind = about.data_type
    if kind == "character varying":
        return sa.VARCHAR(about.character_maximum_length)
    if kind == "character":
        return sa.CHAR(about.character_maximum_length)
    if kind == "numeric":
        scale = about.numeric_scale  # of eleven bits: 2046 is -2
        if scale is not None and scale >= 1024:
            scale -= 2048
        return sa.NUMERIC(about.numeric_precision, scale)
    if kind == "interval":
        sixth = about.datetime_precision == 6
        precision = None if sixth else about.datetime_precision
        return postgresql.INTERVAL(precision, about.interval_type)
    for name, made in _TIMES.items():
        if kind.startswith(f"{name} "):
            zoned = kind.endswith(" with time zone")
            return made(timezone=zoned, precision=about.datetime_precision)
    return _UNBOUNDED.get(kind)


def python_type(column: SqlType) -> type:
    """Return the kind of value that a column holds; `object` if Python has none."""
    if isinstance(column, sa.Float):
        return float
    try:
        return column.python_type
    except NotImplementedError:
        return object


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values of a type are text, or null."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return kind in (pa.string(), pa.large_string(), pa.null(), pa.string_view())


def _is_binary(kind: pa.DataType) -> bool:
    fixed = pa.types.is_fixed_size_binary(kind)
    return fixed or kind in (pa.binary(), pa.large_binary())
