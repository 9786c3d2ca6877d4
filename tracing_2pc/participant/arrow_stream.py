"""Arrow IPC streams from strangers: held within bounds before and while Arrow reads.

Arrow trusts a stream's own metadata: the length of a buffer after decompression, the
number of elements of a column without bytes. We don't.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from collections.abc import Iterator
from typing import IO, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from tracing_2pc.core import content
from tracing_2pc.core.errors import MalformedError

MAX_COLUMNS: Final = 1_500  # no table of PostgreSQL's has more than 1,600

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
    """A file for Arrow: complete messages, not compressed, no longer than the body."""

    closed = False

    def __init__(self, file: IO[bytes], length: int) -> None:
        self._file = file
        self._left = length
        self._head = b""
        self._body = 0

    def read(self, size: int) -> bytes:
        """Read of a message: its checked head, then its buffers, not compressed."""
        if not self._head and not self._body:
            self._next_message()
        if self._head:
            piece, self._head = self._head[:size], self._head[size:]
            return piece
        piece = self._take(min(size, self._body))
        self._body -= len(piece)
        return piece

    def _next_message(self) -> None:
        prefix = size = self._take(4)
        if prefix == _CONTINUES:
            size = self._take(4)
            prefix += size
        metadata = self._take(int.from_bytes(size, "little"))
        self._head = prefix + metadata
        if metadata:
            self._body, compressed = _read_message(metadata)
            if compressed:
                detail = "the Arrow stream is compressed: send it without compression"
                raise MalformedError(detail)

    def _take(self, size: int) -> bytes:
        """Read at most the bytes that can still come."""
        piece = self._file.read(max(0, min(size, self._left)))
        self._left -= len(piece)
        return piece


def read_stream(
    file: IO[bytes], length: int
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Open a stream: its schema, and batches of at most `SLICE_ROWS` records.

    Raises:
        MalformedError: it is no Arrow stream, beyond our bounds, or of types that we
            don't read; also while iterating.
    """
    with _arrow_errors():
        reader = pa.ipc.open_stream(Stream(file, length))
        schema = reader.schema
        _ = schema.names  # raises if one is not UTF-8
    if len(schema) > MAX_COLUMNS:
        detail = f"{len(schema)} columns: no more than {MAX_COLUMNS} are taken"
        raise MalformedError(
            f"{detail}; send fewer, or some of them as one to_json(...)"
        )
    strange = [field.name for field in schema if not _is_read(field.type)]
    if strange:
        detail = f"columns {', '.join(strange)[:200]}: Arrow types that are not read"
        raise MalformedError(f"{detail} here; send plain values, lists or structs")
    return schema, _readable(_batches(reader, length))


def _readable(batches: Iterator[Any]) -> Iterator[Any]:
    with _arrow_errors():
        yield from batches


@contextlib.contextmanager
def _arrow_errors() -> Iterator[None]:
    """Turn Arrow's errors into one that names the format, and nothing of the body."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise MalformedError(f"the body cannot be read as {content.ARROW}") from None


def _batches(reader: Any, length: int) -> Iterator[pa.RecordBatch]:
    # A value has a bit at least; only nulls, and lists of nothing, can do with less.
    most = 8 * length
    rows = shared = 0
    for batch in reader:
        batch.validate()  # its lengths; its values only when those are bounded
        rows += batch.num_rows
        if rows > most or any(_is_longer(column, most) for column in batch.columns):
            raise MalformedError(f"more values than a body of {length} bytes can hold")
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid:
                raise MalformedError(
                    f"column {name[:70]}: values that are not of its Arrow type, such "
                    "as text that is no UTF-8: send bytes as binary"
                ) from None
        for piece in _slices(batch):
            shared += sum(map(_shared_bytes, piece.columns))
            if shared > MAX_SHARED_BYTES:
                detail = "values of dictionaries and views are too many and too long"
                raise MalformedError(f"{detail}: send them as plain columns")
            yield piece


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch, so that a piece is small when each record gets its own values."""
    longest = max(
        (pc.max(_shared_lengths(column)).as_py() or 0 for column in batch.columns),
        default=0,
    )
    rows = max(1, min(SLICE_ROWS, SLICE_BYTES // max(1, longest)))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def _shared_bytes(column: pa.Array) -> int:
    lengths = _shared_lengths(column)
    if pa.types.is_dictionary(column.type) and len(lengths):
        lengths = lengths.take(column.indices)
    return pc.sum(lengths).as_py() or 0


def _shared_lengths(column: pa.Array) -> pa.Array:
    """Return the lengths of text and bytes that records may share."""
    shares = pa.types.is_dictionary(column.type)
    values = column.dictionary if shares else column
    if _is_view(values.type):
        # A view has 16 bytes, of which the first four are its length.
        views, offset = [None, values.buffers()[1]], 4 * values.offset
        words = pa.Array.from_buffers(pa.int32(), 4 * len(values), views, offset=offset)
        return words[::4]
    if shares:
        with contextlib.suppress(pa.ArrowNotImplementedError):  # numbers have none
            return pc.binary_length(values)
    return pa.nulls(0, pa.int32())  # pa.array would import pandas


def _is_longer(values: pa.Array, most: int) -> bool:
    """Return whether there are more values than `most`, at any depth."""
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
    """Return whether we read a type: plain, or plain ones in lists and structs.

    Inside of them nothing is shared by records, so that decoded data is no longer
    than the received data.
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


def _read_message(metadata: bytes) -> tuple[int, bool]:
    """Return its buffers' length, and if compressed; or raise `ArrowInvalid`."""
    try:
        message = _Table(metadata, *struct.unpack_from("<I", metadata))
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
    return body, compressed or _OLD_COMPRESSION in metadata


class _Table(NamedTuple):
    """A table of a FlatBuffer, the format of Arrow's messages."""

    buffer: bytes
    start: int

    def at(self, form: str, place: int) -> int:
        number: int = struct.unpack_from(f"<{form}", self.buffer, place)[0]
        return number

    def place(self, field: int) -> int | None:
        """Return where a field is; None if it is left out."""
        index, slot = self.start - self.at("i", self.start), 4 + 2 * field
        offset = self.at("H", index + slot) if slot < self.at("H", index) else 0
        return self.start + offset if offset else None

    def number(self, field: int, form: str) -> int:
        place = self.place(field)
        return 0 if place is None else self.at(form, place)

    def table(self, field: int) -> _Table | None:
        place = self.place(field)
        if place is None:
            return None
        return _Table(self.buffer, place + self.at("I", place))
