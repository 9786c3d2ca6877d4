"""Arrow IPC streams from strangers: held within bounds before and while Arrow reads.

Arrow believes what a stream says about itself: how long a buffer is when it is no
longer compressed, how many elements a column without bytes has. We don't.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import IO, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from tracing_2pc.participant.problems import Problem

MAX_COLUMNS: Final = 1_500
"""No table of PostgreSQL's has more than 1,600."""

SLICE_ROWS: Final = 10_000
"""Records that are looked at and written at a time, at most; Spark sends as many."""

SLICE_BYTES: Final = 64 << 20
"""Bytes of such a slice, at most, where many records share one value."""

MAX_SHARED_BYTES: Final = 1 << 30
"""Bytes that shared values may come to in a whole body, once each has its own."""

_DICTIONARY: Final = 2
_RECORDS: Final = 3
"""Kinds of messages that have buffers."""

_CONTINUES: Final = b"\xff" * 4
_OLD_COMPRESSION: Final = b"ARROW:experimental_compression"


class Stream:
    """A file for Arrow: complete messages, not compressed, no longer than the body.

    Args:
        file: the body.
        length: bytes of it.
    """

    closed = False

    def __init__(self, file: IO[bytes], length: int) -> None:
        self._file = file
        self._left = length
        self._head = b""
        self._body = 0

    def read(self, size: int = -1) -> bytes:
        """Read the head of a message, which has been checked, or some of its buffers.

        Raises:
            Problem: 400, a message is compressed.
        """
        if not self._head and not self._body:
            self._next_message()
        if self._head:
            piece = self._head if size < 0 else self._head[:size]
            self._head = self._head[len(piece) :]
            return piece
        piece = self._take(self._body if size < 0 else min(size, self._body))
        self._body -= len(piece)
        return piece

    def _next_message(self) -> None:
        mark = self._take(4)
        size = self._take(4) if mark == _CONTINUES else mark
        about = self._take(int.from_bytes(size, "little"))
        self._head = (mark + size if mark == _CONTINUES else mark) + about
        self._body = 0
        if about:
            self._body, compressed = _read_message(about)
            if compressed:
                raise Problem(
                    400, "the Arrow stream is compressed: send it without compression"
                )

    def _take(self, size: int) -> bytes:
        """Read at most what can still come."""
        piece = self._file.read(max(0, min(size, self._left)))
        self._left -= len(piece)
        return piece


def read_stream(
    file: IO[bytes], length: int
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Open a stream: its schema, and batches of at most `SLICE_ROWS` records.

    Raises:
        Problem: 400, it is beyond our bounds, or of types that we don't read.
        ArrowException: it is no Arrow stream; also while iterating.
    """
    reader = pa.ipc.open_stream(Stream(file, length))
    schema = reader.schema
    if len(schema) > MAX_COLUMNS:
        detail = f"{len(schema)} columns: no more than {MAX_COLUMNS} are taken"
        raise Problem(400, f"{detail}; send fewer, or some of them as one to_json(...)")
    strange = [field.name for field in schema if not _is_read(field.type)]
    if strange:
        detail = f"columns {', '.join(strange)[:200]}: Arrow types that are not read"
        raise Problem(400, f"{detail} here; send plain values, lists or structs")
    return schema, _batches(reader, length)


def _batches(reader: Any, length: int) -> Iterator[pa.RecordBatch]:
    # A value has a bit at least; only nulls, and lists of nothing, can do with less.
    most = 8 * length
    rows = shared = 0
    for batch in reader:
        batch.validate()  # its lengths; its values only when those are bounded
        rows += batch.num_rows
        if rows > most or any(_is_longer(column, most) for column in batch.columns):
            raise Problem(400, f"more values than a body of {length} bytes can hold")
        batch.validate(full=True)
        for piece in _slices(batch):
            shared += sum(map(_shared_bytes, piece.columns))
            if shared > MAX_SHARED_BYTES:
                detail = "values of dictionaries and views are too many and too long"
                raise Problem(400, f"{detail}: send them as plain columns")
            yield piece


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch, so that a piece is small when each record gets its own values."""
    longest = max(map(_longest_shared, batch.columns), default=0)
    rows = max(1, min(SLICE_ROWS, SLICE_BYTES // max(1, longest)))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def _longest_shared(column: pa.Array) -> int:
    lengths = _shared_lengths(column)
    return 0 if lengths is None else pc.max(lengths).as_py() or 0


def _shared_bytes(column: pa.Array) -> int:
    lengths = _shared_lengths(column)
    if lengths is None:
        return 0
    if pa.types.is_dictionary(column.type):
        lengths = lengths.take(column.indices)
    return pc.sum(lengths).as_py() or 0


def _shared_lengths(column: pa.Array) -> pa.Array | None:
    """Return the lengths of the values that records may share; None if they can't."""
    if pa.types.is_dictionary(column.type):
        values = column.dictionary
        return _view_lengths(values) if _is_view(values.type) else _lengths(values)
    return _view_lengths(column) if _is_view(column.type) else None


def _lengths(values: pa.Array) -> pa.Array | None:
    t, kind = pa.types, values.type
    is_long = t.is_binary, t.is_string, t.is_large_binary, t.is_large_string
    if t.is_fixed_size_binary(kind) or any(is_kind(kind) for is_kind in is_long):
        return pc.binary_length(values)
    return None


def _view_lengths(values: pa.Array) -> pa.Array:
    # A view has 16 bytes, of which the first four are its length.
    views = [None, values.buffers()[1]]
    words = pa.Array.from_buffers(
        pa.int32(), 4 * len(values), views, offset=4 * values.offset
    )
    return words[::4]


def _is_longer(values: pa.Array, most: int) -> bool:
    """Say whether there are more values than `most`, at any depth."""
    t, kind = pa.types, values.type
    if len(values) > most:
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _is_longer(values.storage, most)
    if t.is_dictionary(kind):
        return _is_longer(values.dictionary, most)
    if t.is_map(kind):
        return _is_longer(values.keys, most) or _is_longer(values.items, most)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return _is_longer(values.values, most)
    if t.is_struct(kind):
        return any(_is_longer(values.field(n), most) for n in range(kind.num_fields))
    return False


def _is_read(kind: pa.DataType, *, nested: bool = False) -> bool:
    """Say whether we read a type: plain, or plain ones in lists and structs.

    Inside of them nothing is shared by records, so that what is decoded is no longer
    than what came.
    """
    t = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _is_read(kind.storage_type, nested=nested)
    if _is_view(kind):
        return not nested
    if t.is_dictionary(kind):
        value = kind.value_type
        plain = not t.is_nested(value) and not t.is_dictionary(value)
        return not nested and plain and _is_read(value)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return _is_read(kind.value_type, nested=True)
    if t.is_struct(kind) or t.is_map(kind):
        fields = (kind.field(n) for n in range(kind.num_fields))
        return all(_is_read(field.type, nested=True) for field in fields)
    return not t.is_nested(kind) and not t.is_run_end_encoded(kind)


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _read_message(about: bytes) -> tuple[int, bool]:
    """Return how long a message's buffers are, and whether they are compressed.

    Raises:
        ArrowInvalid: this is no message.
    """
    try:
        message = _Table.root(about)
        kind, body = message.number(1, "B"), message.number(3, "q")
        if not 0 <= body <= sys.maxsize:
            raise pa.ArrowInvalid("a message of no length")
        records = message.table(2)
        if kind == _DICTIONARY and records is not None:
            records = records.table(1)
        buffers = records if kind in {_DICTIONARY, _RECORDS} else None
        compressed = buffers is not None and buffers.table(3) is not None
    except struct.error:
        raise pa.ArrowInvalid("no message of Arrow's") from None
    return body, compressed or _OLD_COMPRESSION in about


class _Table(NamedTuple):
    """A table of a FlatBuffer: what Arrow's messages are written in."""

    buffer: bytes
    start: int

    @classmethod
    def root(cls, buffer: bytes) -> _Table:
        return cls(buffer, *struct.unpack_from("<I", buffer))

    def place(self, field: int) -> int | None:
        """Return where a field is; None if it is left out."""
        (back,) = struct.unpack_from("<i", self.buffer, self.start)
        index = self.start - back
        (size,) = struct.unpack_from("<H", self.buffer, index)
        slot = 4 + 2 * field
        if slot >= size:
            return None
        (offset,) = struct.unpack_from("<H", self.buffer, index + slot)
        return self.start + offset if offset else None

    def number(self, field: int, form: str) -> int:
        place = self.place(field)
        return (
            0
            if place is None
            else struct.unpack_from(f"<{form}", self.buffer, place)[0]
        )

    def table(self, field: int) -> _Table | None:
        place = self.place(field)
        if place is None:
            return None
        (offset,) = struct.unpack_from("<I", self.buffer, place)
        return _Table(self.buffer, place + offset)
