"""Values on their way into a column of another type: kept as they are, or refused.

Between types that match nothing is looked at. Where a column could round, cut or
reinterpret what is sent, a batch is compared with what the column would keep.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from tracing_2pc.participant.resources.columns import is_text, python_type

_FIRST_DAY, _LAST_DAY = (
    (day - datetime.date(1970, 1, 1)).days
    for day in (datetime.date.min, datetime.date.max)
)

_WIDTHS: Final[Mapping[type, pa.DataType]] = {
    sa.SMALLINT: pa.int16(),
    sa.INTEGER: pa.int32(),
}


class ChangedError(ValueError):
    """A value that the column would not give back as it was sent."""


def keep_values(
    values: pa.Array, there: sa.types.TypeEngine[Any], dialect: str
) -> pa.Array:
    """Return values in the form that a column keeps unchanged.

    Text for a date or a time is read as ISO 8601 and nothing else, whatever the
    settings of the database are.

    Args:
        values: `columns.plain` ones, of a type that fits the column.
        there: type of the column.
        dialect: of the database.

    Raises:
        ChangedError: one of them would be changed.
        ArrowException: likewise.
        ValueError: likewise.
    """
    kind = python_type(there)
    if is_text(values.type) and kind in _READ:
        values = _READ[kind](values, there, dialect)
    if pa.types.is_temporal(values.type):
        return _keep_time(values, there, dialect)
    if dialect == "sqlite" and kind is decimal.Decimal:
        _check_sqlite_numeric(values)
    elif kind is int and dialect == "postgresql":
        pc.cast(values, _WIDTHS.get(type(there), pa.int64()))  # raises beyond it
    elif kind is float:
        # REAL has four bytes in PostgreSQL only.
        short = isinstance(there, sa.REAL) and dialect == "postgresql"
        _check_float(values, pa.float32() if short else pa.float64())
    elif kind is decimal.Decimal and pa.types.is_floating(values.type):
        _check_scale(values, there)
    elif dialect == "postgresql" and isinstance(there, sa.String) and there.length:
        # Blanks at the end would be cut; anything else is refused by itself.
        _check(pc.less_equal(pc.utf8_length(values), there.length))
    return values


def _check(same: pa.Array) -> None:
    if pc.all(same, min_count=0).as_py() is False:
        raise ChangedError


def _check_float(values: pa.Array, there: pa.DataType) -> None:
    t, kind = pa.types, values.type
    if t.is_integer(kind):
        pc.cast(values, there)  # raises beyond what is exact
    elif t.is_decimal(kind):
        text = pc.cast(pc.cast(pc.cast(values, pa.string()), there), pa.string())
        _check(pc.equal(pc.cast(text, kind), values))
    elif t.is_float64(kind) and there == pa.float32():
        back = pc.cast(pc.cast(values, there, safe=False), kind)
        _check(pc.or_(pc.equal(back, values), pc.is_nan(values)))


def _check_sqlite_numeric(values: pa.Array) -> None:
    """Check what a column with NUMERIC affinity makes a binary float of."""
    if pa.types.is_decimal(values.type):
        _check_float(values, pa.float64())
    elif pa.types.is_uint64(values.type):
        pc.cast(values, pa.int64())


def _check_scale(values: pa.Array, there: sa.types.TypeEngine[Any]) -> None:
    scale = getattr(there, "scale", None)
    if scale is None:
        return
    numbers = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    # The shortest text of a float is what is written; more digits raise.
    pc.cast(pc.cast(numbers, pa.string()), pa.decimal256(76, min(scale, 76)))


def _keep_time(
    values: pa.Array, there: sa.types.TypeEngine[Any], dialect: str
) -> pa.Array:
    t, kind = pa.types, values.type
    if dialect == "sqlite" and (t.is_timestamp(kind) or t.is_date(kind)):
        _check_calendar(values)
    if dialect != "postgresql" or t.is_date(kind):
        return values
    unit = pa.time64("us") if t.is_time(kind) else pa.timestamp("us", kind.tz)
    values = pc.cast(values, unit)
    precision = getattr(there, "precision", None)
    if precision is not None and precision < 6:
        step = 10 ** (6 - precision)
        ticks = pc.cast(values, pa.int64())
        _check(pc.equal(pc.multiply(pc.divide(ticks, step), step), ticks))
    return values


def _check_calendar(values: pa.Array) -> None:
    """Refuse days that have no text of four digits for their year."""
    if pa.types.is_timestamp(values.type):
        if values.type.unit != "ns":
            values = pc.cast(values, pa.timestamp("us"))
        values = pc.cast(values, pa.date32(), safe=False)
    days = pc.cast(values, pa.int32())
    _check(pc.and_(pc.less_equal(_FIRST_DAY, days), pc.less_equal(days, _LAST_DAY)))


def _read_date(values: pa.Array, _: Any, __: str) -> pa.Array:
    return pc.cast(values, pa.date32())


def _read_time(values: pa.Array, _: Any, __: str) -> pa.Array:
    times = [
        v if v is None else datetime.time.fromisoformat(v) for v in values.to_pylist()
    ]
    if any(time is not None and time.tzinfo is not None for time in times):
        raise ChangedError
    return pa.array(times, pa.time64("us"))


def _read_moment(
    values: pa.Array, there: sa.types.TypeEngine[Any], dialect: str
) -> pa.Array:
    zoned, naive = pa.timestamp("us", "UTC"), pa.timestamp("us")
    if dialect == "sqlite":
        try:
            return pc.cast(values, naive)
        except pa.ArrowInvalid:
            return pc.cast(values, zoned)
    return pc.cast(values, zoned if getattr(there, "timezone", False) else naive)


_READ: Final = {
    datetime.date: _read_date,
    datetime.time: _read_time,
    datetime.datetime: _read_moment,
}
"""How text becomes what a column of such a kind holds."""
