"""Values for a column of another type: kept as they are, or refused.

If the types match nothing is compared. If a column could round, cut or reinterpret
values, a batch is compared with the values that the column would keep.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from tracing_2pc.participant.resources.columns import (
    TIME_KINDS,
    Column,
    SqlType,
    is_text,
    python_type,
)

_FIRST_DAY, _LAST_DAY = (
    (day - datetime.date(1970, 1, 1)).days
    for day in (datetime.date.min, datetime.date.max)
)

_WIDTHS: Final[Mapping[type, pa.DataType]] = {
    sa.SMALLINT: pa.int16(),
    sa.INTEGER: pa.int32(),
}


_NUMBER: Final = (
    r"^[\t-\r ]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[\t-\r ]*$"
)
"""Text that SQLite reads as a number."""


class ChangedError(ValueError):
    """A value would be changed; the text describes the change, without the value."""


def keep_values(values: pa.Array, column: Column, dialect: str) -> pa.Array:
    """Return `columns.plain` values in the form that a column keeps unchanged.

    Text for a date or a time is read as ISO 8601 only, under any settings of the
    database.

    Raises:
        ArrowException, ChangedError: one of them would be changed.
    """
    target = column.type
    kind = python_type(target)
    if is_text(values.type) and kind in TIME_KINDS:
        values = _read(values, kind, target, dialect)
    elif is_text(values.type) and column.reads_numbers:
        is_number = pc.match_substring_regex(values, _NUMBER)
        _check(pc.invert(is_number), "SQLite makes a number of it")
    if pa.types.is_temporal(values.type):
        return _keep_time(values, target, dialect)
    if dialect == "sqlite" and kind is decimal.Decimal:
        _check_sqlite_numeric(values)
    elif kind is int and dialect == "postgresql":
        pc.cast(values, _WIDTHS.get(type(target), pa.int64()))  # raises beyond it
    elif kind is float:
        # REAL has four bytes in PostgreSQL only.
        short = isinstance(target, sa.REAL) and dialect == "postgresql"
        _check_float(values, pa.float32() if short else pa.float64())
    elif kind is decimal.Decimal and pa.types.is_floating(values.type):
        _check_scale(values, target)
    elif dialect == "postgresql" and is_text(values.type):
        _check_nul(values)
    if dialect == "postgresql" and isinstance(target, sa.String) and target.length:
        # PostgreSQL would cut blanks at the end; it refuses other text itself.
        _check(pc.less_equal(pc.utf8_length(values), target.length))
    if isinstance(target, sa.CHAR) and dialect == "postgresql":
        _check(pc.invert(pc.ends_with(values, " ")), "it ends with a blank")
    return values


def one_form(values: pa.Array) -> pa.Array:
    """Return values of a key as SQLite tells them apart: it has text for such types.

    Decimals have no zeros at the end, times microseconds unless they are no whole ones,
    and short floats the digits of long ones.
    """
    t, kind = pa.types, values.type
    if t.is_decimal(kind):
        texts = [None if v is None else f"{v:f}" for v in values.to_pylist()]
        return pa.array(
            [v.rstrip("0").rstrip(".") if v and "." in v else v for v in texts],
            pa.string(),
        )
    if t.is_float32(kind):
        return pc.cast(pc.cast(values, pa.string()), pa.float64())
    if t.is_timestamp(kind) or t.is_time(kind):
        unit = pa.time64("us") if t.is_time(kind) else pa.timestamp("us", kind.tz)
        short = pc.cast(values, unit, safe=False)
        is_whole = pc.equal(pc.cast(short, kind, safe=False), values)
        return pc.if_else(
            is_whole, pc.cast(short, pa.string()), pc.cast(values, pa.string())
        )
    return values


def _check(same: pa.Array, change: str = "") -> None:
    if pc.all(same, min_count=0).as_py() is False:
        raise ChangedError(change)


def _check_nul(values: pa.Array) -> None:
    """Refuse a character that PostgreSQL has no text with."""
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return
    # A slice shares its buffers with the others of its batch: only its own is read.
    is_large = pa.types.is_large_string(values.type)
    ends = memoryview(offsets).cast("q") if is_large else memoryview(offsets).cast("i")
    own = ends[values.offset], ends[values.offset + len(values)]
    if _NUL.search(data, *own):
        has_nul = pc.match_substring(values, "\0")
        _check(pc.invert(has_nul), "PostgreSQL has no text with a NUL (U+0000)")


_NUL: Final = re.compile(b"\0")


def _check_float(values: pa.Array, target: pa.DataType) -> None:
    t, kind = pa.types, values.type
    if t.is_integer(kind):
        pc.cast(values, target)  # raises beyond what is exact
    elif t.is_decimal(kind):
        text = pc.cast(pc.cast(pc.cast(values, pa.string()), target), pa.string())
        _check(pc.equal(pc.cast(text, kind), values))
    elif t.is_float64(kind) and target == pa.float32():
        back = pc.cast(pc.cast(values, target, safe=False), kind)
        _check(pc.or_(pc.equal(back, values), pc.is_nan(values)))


def _check_sqlite_numeric(values: pa.Array) -> None:
    """Check values that a column with NUMERIC affinity turns into binary floats."""
    if pa.types.is_decimal(values.type):
        _check_float(values, pa.float64())
    elif pa.types.is_uint64(values.type):
        pc.cast(values, pa.int64())


def _check_scale(values: pa.Array, target: SqlType) -> None:
    scale = getattr(target, "scale", None)
    if scale is None:
        return
    numbers = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    # The shortest text of a float is written; more digits raise.
    pc.cast(pc.cast(numbers, pa.string()), pa.decimal256(76, min(scale, 76)))


def _keep_time(values: pa.Array, target: SqlType, dialect: str) -> pa.Array:
    t, kind = pa.types, values.type
    if t.is_timestamp(kind) or t.is_date(kind):
        _check_calendar(values)
    if dialect != "postgresql" or t.is_date(kind):
        return values
    unit = pa.time64("us") if t.is_time(kind) else pa.timestamp("us", kind.tz)
    values = pc.cast(values, unit)
    precision = getattr(target, "precision", None)
    if precision is not None and precision < 6:
        step = 10 ** (6 - precision)
        ticks = pc.cast(values, pa.int64())
        _check(pc.equal(pc.multiply(pc.divide(ticks, step), step), ticks))
    return values


def _check_calendar(values: pa.Array) -> None:
    """Refuse days whose year has not four digits."""
    if pa.types.is_timestamp(values.type):
        if values.type.unit != "ns":
            values = pc.cast(values, pa.timestamp("us"))
        values = pc.cast(values, pa.date32(), safe=False)
    days = pc.cast(values, pa.int32())
    is_year = pc.and_(pc.less_equal(_FIRST_DAY, days), pc.less_equal(days, _LAST_DAY))
    _check(is_year, "its year, in UTC, is before 1 or after 9999")


def _read(values: pa.Array, kind: type, target: SqlType, dialect: str) -> pa.Array:
    """Return text as values of a column's kind."""
    if kind is datetime.date:
        return pc.cast(values, pa.date32())
    if kind is datetime.time:
        # Python would drop a seventh digit, and read other forms.
        text = pc.cast(values, pa.string())
        text = pc.binary_join_element_wise("1970-01-01T", text, "")
        return pc.cast(pc.cast(text, pa.timestamp("us")), pa.time64("us"))
    zoned, naive = pa.timestamp("us", "UTC"), pa.timestamp("us")
    if dialect == "sqlite":
        try:
            return pc.cast(values, naive)
        except pa.ArrowInvalid:
            return pc.cast(values, zoned)
    return pc.cast(values, zoned if getattr(target, "timezone", False) else naive)
