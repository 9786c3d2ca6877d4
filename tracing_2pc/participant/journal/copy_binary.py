"""Rows for PostgreSQL's `COPY … (FORMAT binary)`, made by Arrow column by column.

The server reads them in half the time of csv: it parses no numbers and no times. Each
column must have the Arrow type that `TYPES` has for it: the meaning of bytes depends on
the table alone, and a wrong type may go unnoticed.

The form is that of PostgreSQL's manual, COPY, "Binary Format".
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc


def _bytes(value: bytes) -> Any:
    """Return a scalar, from a buffer: of a Python object PyArrow imports pandas."""
    offsets = struct.pack("=2i", 0, len(value))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(value)]
    return pa.Array.from_buffers(pa.binary(), 1, buffers)[0]


def _integer(value: int, kind: pa.DataType) -> Any:
    number = value.to_bytes(kind.bit_width // 8, sys.byteorder, signed=True)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(number)])[0]


HEADER: Final = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER: Final = struct.pack(">h", -1)

_NAIVE, _ZONED = pa.timestamp("us"), pa.timestamp("us", "UTC")

TYPES: Final = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    25: pa.string(),
    700: pa.float32(),
    701: pa.float64(),
    1043: pa.string(),
    1082: pa.date32(),
    1114: _NAIVE,
    1184: _ZONED,
}
"""By PostgreSQL's number of a type, the same on each server (`pg_type.dat`)."""

_MOMENT: Final = pa.int64()
_WIDTHS: Final = {
    pa.bool_(): pa.uint8(),
    pa.int16(): pa.int16(),
    pa.int32(): pa.int32(),
    pa.int64(): pa.int64(),
    pa.float32(): pa.int32(),
    pa.float64(): pa.int64(),
    pa.date32(): pa.int32(),
    _NAIVE: _MOMENT,
    _ZONED: _MOMENT,
}
"""Types of a fixed width, by the integers that their bytes are."""

_CODES: Final = {1: "B", 2: "h", 4: "i", 8: "q"}
_SINCE_2000: Final = {
    pa.date32(): _integer(10_957, pa.int32()),
    _NAIVE: _integer(946_684_800_000_000, _MOMENT),
    _ZONED: _integer(946_684_800_000_000, _MOMENT),
}
"""PostgreSQL counts days and microseconds from 2000 on, Arrow from 1970."""

_NULL: Final = _bytes(struct.pack(">i", -1))
_NO_LENGTH: Final = _integer(-1, pa.int32())
_NOTHING: Final = _bytes(b"")


def encode(batch: pa.RecordBatch) -> memoryview:
    """Return a batch's rows; `OverflowError`: there is no number for a moment."""
    try:
        fields = [field for column in batch.columns for field in _fields(column)]
        count = _bytes(struct.pack(">h", batch.num_columns))
        rows = pc.binary_join_element_wise(count, *fields, _NOTHING)
    except pa.ArrowInvalid as error:
        raise OverflowError(str(error)) from None
    offsets = memoryview(rows.buffers()[1]).cast("i")
    return memoryview(rows.buffers()[2])[: offsets[len(rows)]]


def pieces(batch: pa.RecordBatch) -> Iterator[memoryview]:
    """Encode a batch in pieces, for Arrow joins 2 GiB at most. Raises as `encode`."""
    try:
        encoded = encode(batch)
    except pa.ArrowCapacityError as error:
        if batch.num_rows == 1:
            raise OverflowError(str(error)) from None
    else:
        yield encoded
        return
    half = batch.num_rows // 2
    for part in (batch.slice(0, half), batch.slice(half)):
        yield from pieces(part)


def _fields(column: pa.Array) -> tuple[Any, Any]:
    """Return the lengths and the bytes of a column's values."""
    if column.type not in _WIDTHS:
        lengths = _big_endian(pc.fill_null(pc.binary_length(column), _NO_LENGTH))
        return lengths, pc.fill_null(pc.cast(column, pa.binary()), _NOTHING)
    kind = _WIDTHS[column.type]
    length = _bytes(struct.pack(">i", kind.bit_width // 8))
    nulls = column.is_null() if column.null_count else None
    if (epoch := _SINCE_2000.get(column.type)) is not None:
        column = pc.subtract_checked(column.view(kind), epoch)
        # The lowest number is no day and no moment there: it is -infinity.
        if pc.min(column).as_py() == -(1 << kind.bit_width - 1):
            raise OverflowError("-infinity")
    elif pa.types.is_boolean(column.type):
        column = pc.cast(column, kind)
    values = _big_endian(column.view(kind))
    if nulls is None:
        return length, values
    return pc.if_else(nulls, _NULL, length), pc.if_else(nulls, _NOTHING, values)


def _big_endian(column: pa.Array) -> pa.Array:
    """Return integers as bytes, the highest first; of nulls as any bytes."""
    width = column.type.bit_width // 8
    taken = slice(column.offset * width, (column.offset + len(column)) * width)
    values = array.array(_CODES[width])
    values.frombytes(memoryview(column.buffers()[1]).cast("B")[taken])
    if sys.byteorder == "little":
        values.byteswap()
    fixed, buffers = pa.binary(width), [None, pa.py_buffer(values)]
    return pc.cast(pa.Array.from_buffers(fixed, len(column), buffers), pa.binary())
