"""Bodies of a prepare that nobody meant: drawn by number, the same ones every time."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import io
import json
import random
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tracing_2pc.core import content

UTC = datetime.timezone.utc
LENGTHS = (0, 1, -1, 2**15, 2**31 - 1, -(2**31), 2**32 - 1)
LONG_LENGTHS = (2**31, 2**40, 2**60, 2**63 - 1, -1, -(2**63))

NASTY_LINES = (
    b"null", b"null", b"null", b"null", b"null\nnull", b"[]", b"1", b'""',
    b"{}", b"{", b'{"a":', b'{"a":null}', b'{"a":1,"a":2}',
    b'{"a":NaN}', b'{"a":1e999}', b'{"a":' + b"9" * 5000 + b"}", b"\xff\xfe", b"\x00",
    b'{"a":"\\ud800"}', b'{"\\ud800":1}', b'{"a":"\\u0000"}', b"[" * 100_000,
    b'{"a":' * 20_000, b'{"a":' + b"[" * 500 + b"]" * 500 + b"}", b"\xef\xbb\xbf{}",
    b'{"a":{"b":[1,{"c":null}]}}', b'{"a":-0}', b'{"a":18446744073709551616}',
    b'{"":1}', b'{"tpc_tag":1}', b"\xe2\x80\xa8", b'{"a":1}{"a":2}', b"true", b" ",
)  # fmt: skip
"""Lines of JSON that some reader takes amiss."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A request, and what it says of itself."""

    number: int
    content_type: str
    body: bytes
    rows: int


def draw(seed: int, number: int) -> Case:
    """Make the case of a number."""
    dice = random.Random(f"{seed}.{number}")
    if dice.random() < 0.35:
        return _lines(dice, number)
    return _stream(dice, number)


def _lines(dice: random.Random, number: int) -> Case:
    lines = [_line(dice) for _ in range(dice.choice((0, 1, 1, 2, 5, 50)))]
    if dice.random() < 0.3:
        lines = [dice.choice(NASTY_LINES)] * dice.choice((1, 3, 1000))
    body = b"\n".join(lines)
    if dice.random() < 0.3:
        body = _mangle(dice, body)
    return Case(number, content.NDJSON, body, _said(dice, len(lines)))


def _line(dice: random.Random) -> bytes:
    if dice.random() < 0.2:
        return dice.choice(NASTY_LINES)
    names = dice.sample(["a", "b", "c", "id", "day", "x" * 64], dice.randint(0, 4))
    values = (
        None, True, 0, -1, 2**53 + 1, 2**63, 2**64, 0.5, 1e300, "", "x", "2024-02-29",
        "2024-02-29T00:00:00Z", "\u20ac", [], {}, [1, None], {"k": "v"},
    )  # fmt: skip
    return json.dumps({name: dice.choice(values) for name in names}).encode()


def _stream(dice: random.Random, number: int) -> Case:
    rows = dice.choice((0, 1, 2, 7, 100))
    count = dice.choice((0, 1, 1, 2, 3, 10))
    fields, columns = [], []
    for n in range(count):
        column = _column(dice, rows)
        name = dice.choice(("a", "b", "id", "", "tpc_tag", "\x00", "A" * 70, "xmin"))
        name = name if dice.random() < 0.1 else f"c{n}"
        fields.append(pa.field(name, column.type, metadata=_metadata(dice)))
        columns.append(column)
    batch = pa.record_batch(columns, schema=pa.schema(fields, metadata=_metadata(dice)))
    compression = dice.choice((None, None, None, "lz4", "zstd"))
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        for _ in range(times := dice.choice((0, 1, 1, 1, 3))):
            writer.write_batch(batch)
    body = sink.getvalue()
    if dice.random() < 0.75:
        body = _mangle(dice, body)
    return Case(number, content.ARROW, body, _said(dice, rows * times if count else 0))


def _said(dice: random.Random, rows: int) -> int:
    return rows if dice.random() < 0.85 else dice.choice((0, 1, rows + 1, 2**53 - 1))


def _metadata(dice: random.Random) -> dict[bytes, bytes] | None:
    if dice.random() < 0.9:
        return None
    extension = dice.choice((b"arrow.uuid", b"arrow.json", b"arrow.bool8", b"x", b""))
    return {b"ARROW:extension:name": extension, b"ARROW:extension:metadata": b"{"}


Make = Callable[[random.Random], tuple[pa.DataType, list[Any]]]
TYPES: tuple[Make, ...] = (
    lambda d: (pa.int64(), [0, 2**53 + 1, -(2**63), 2**63 - 1]),
    lambda d: (d.choice((pa.int8(), pa.int16(), pa.uint8(), pa.int32())), [0, 1, 127]),
    lambda d: (pa.uint64(), [0, 2**64 - 1]),
    lambda d: (pa.bool_(), [True, False]),
    lambda d: (d.choice((pa.float64(), pa.float32())), [0.5, float("nan"), -1e30]),
    lambda d: (d.choice((pa.string(), pa.large_string())), ["", "x", "\u20ac", "a\0b"]),
    lambda d: (d.choice((pa.string_view(), pa.string())), ["", "long " * 40]),
    lambda d: (d.choice((pa.binary(), pa.large_binary())), [b"", b"\xff\0"]),
    lambda d: (d.choice((pa.binary_view(), pa.binary(3))), [b"abc"]),
    lambda d: (pa.null(), [None]),
    lambda d: (pa.date32(), [-1, 0, 2**31 - 1, -(2**31), 10**7]),
    lambda d: (pa.date64(), [0, 86_400_000, 1, 2**62, -(2**62)]),
    lambda d: (pa.time64(d.choice(("us", "ns"))), [0, 1, 86_399_999_999, 2**62, -1]),
    lambda d: (pa.time32(d.choice(("s", "ms"))), [0, 86_399, 2**31 - 1, -1]),
    lambda d: (_timestamp(d), [0, 1, 2**62, -(2**62), 1_700_000_000_123_457]),
    lambda d: (pa.duration(d.choice(("s", "ns"))), [0, 2**62]),
    lambda d: (pa.decimal128(38, d.choice((0, 18, 38, -3))), [decimal.Decimal(0)]),
    lambda d: (pa.decimal256(76, 40), [decimal.Decimal("1.5")]),
    lambda d: (pa.dictionary(pa.int8(), pa.string()), ["x", "y" * 100]),
    lambda d: (pa.dictionary(pa.int32(), pa.int64()), [1, 2]),
    lambda d: (pa.list_(d.choice((pa.int64(), pa.null()))), [[], [None], [None] * 99]),
    lambda d: (pa.list_(pa.null(), 3), [[None] * 3]),
    lambda d: (pa.list_view(pa.int64()), [[], [1, 2]]),
    lambda d: (pa.struct([("k", pa.string())]), [{"k": "v"}, {}]),
    lambda d: (pa.struct([]), [{}]),
    lambda d: (pa.map_(pa.string(), pa.int64()), [[("k", 1)], []]),
)
"""Arrow types, with values; times as their numbers, so that they may be beyond all."""


def _timestamp(dice: random.Random) -> pa.DataType:
    zone = dice.choice(
        (None, None, "UTC", "Mars/Olympus", '"UTC"', "", "Europe", "+99:99")
    )
    return pa.timestamp(dice.choice(("s", "ms", "us", "ns")), zone)


def _column(dice: random.Random, rows: int) -> pa.Array:
    kind, values = dice.choice(TYPES)(dice)
    chosen = [None if dice.random() < 0.2 else dice.choice(values) for _ in range(rows)]
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(chosen, width).view(kind)
    if dice.random() < 0.05:
        ends = pa.array([2**31 - 1], pa.int32())
        return pa.RunEndEncodedArray.from_arrays(ends, pa.array(["x"])).slice(0, rows)
    return pa.array(chosen, kind)


def _mangle(dice: random.Random, body: bytes) -> bytes:
    mangled = bytearray(body)
    for _ in range(dice.choice((1, 1, 1, 2, 8))):
        if not mangled:
            break
        _MANGLERS[dice.randrange(len(_MANGLERS))](dice, mangled)
    return bytes(mangled)


def _flip(dice: random.Random, body: bytearray) -> None:
    body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)


def _overwrite(dice: random.Random, body: bytearray) -> None:
    body[dice.randrange(len(body))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, 0x0A))


def _cut(dice: random.Random, body: bytearray) -> None:
    del body[dice.randrange(len(body)) :]


def _drop(dice: random.Random, body: bytearray) -> None:
    first = dice.randrange(len(body))
    del body[first : first + dice.choice((1, 4, 8, 64))]


def _repeat(dice: random.Random, body: bytearray) -> None:
    first = dice.randrange(len(body))
    piece = body[first : first + dice.choice((1, 8, 64, 512))]
    body[first:first] = piece * dice.choice((1, 2, 20))


def _claim(dice: random.Random, body: bytearray) -> None:
    """Write a length that nothing has, where lengths stand."""
    if dice.random() < 0.5:
        number = struct.pack("<I", dice.choice(LENGTHS) & 0xFFFFFFFF)
    else:
        number = struct.pack("<Q", dice.choice(LONG_LENGTHS) & 0xFFFFFFFFFFFFFFFF)
    place = 4 * dice.randrange(len(body) // 4 + 1)
    body[place : place + len(number)] = number


_MANGLERS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip, _flip, _overwrite, _cut, _drop, _repeat, _claim, _claim, _claim,
)  # fmt: skip
