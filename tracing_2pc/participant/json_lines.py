"""JSON lines: one object a line, read strictly, as records and as Arrow batches.

Python reads them. Arrow's own reader is not for data from strangers: a line `null`
ends the process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import IO, Any, Final

import pyarrow as pa

from tracing_2pc.core.errors import MalformedError
from tracing_2pc.participant.arrow_stream import MAX_COLUMNS, SLICE_ROWS

MAX_LINE: Final = 4 << 20  # bytes of one record

_PIECE: Final = 1 << 20  # bytes of text that become one batch, about

_NESTED: Final = pa.struct([])
_TYPES: Final = {
    type(None): pa.null(),
    bool: pa.bool_(),
    float: pa.float64(),
    str: pa.string(),
}
_WHOLE: Final = {pa.int64(), pa.uint64()}


def read_lines(file: IO[bytes], rows: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read records, each with its line's length; `MalformedError` at one too many.

    A line costs most by itself: one that brings nothing is refused at once. So is an
    empty line after more of them than there are records.
    """
    lines, count = iter(lambda: file.readline(MAX_LINE + 1), b""), 0
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE:
            raise MalformedError(f"line {number} is longer than {MAX_LINE} bytes")
        if not line.strip():
            if number - count > rows:
                raise MalformedError(f"line {number}: more empty lines than records")
            continue
        count += 1
        check_count(count, rows)
        if not (record := _record(line, number)):
            raise MalformedError(f"line {number} is a record without columns")
        yield len(line), record


def check_count(count: int, rows: int) -> None:
    """Raise `MalformedError` where there are more records than were announced."""
    if count > rows:
        raise MalformedError(f"Tpc-Rows: it says {rows}, the body has more records")


def read_schema(file: IO[bytes], rows: int) -> pa.Schema:
    """Read all lines, and return their columns: booleans, numbers, text.

    A whole number is an int64, or a uint64; with one that has a fraction beside it,
    a double. Text always stays text.

    Raises:
        MalformedError: a column that has values of several kinds, or too many columns.
    """
    types: dict[str, pa.DataType] = {}
    for _, record in read_lines(file, rows):
        for name, value in record.items():
            other = _type_of(name, value)
            types[name] = _join(name, types.get(name, pa.null()), other)
        if len(types) > MAX_COLUMNS:
            raise MalformedError(f"no more than {MAX_COLUMNS} columns are taken")
    try:
        return pa.schema(list(types.items()))
    except UnicodeEncodeError:
        raise MalformedError("the name of a column is not Unicode text") from None


def read_batches(
    file: IO[bytes], schema: pa.Schema, rows: int
) -> Iterator[pa.RecordBatch]:
    """Read all lines again, as Arrow batches; a value that is left out is null."""
    records: list[dict[str, Any]] = []
    size = 0
    for length, record in read_lines(file, rows):
        records.append(record)
        size += length
        if size >= _PIECE or len(records) == SLICE_ROWS:
            yield _batch(records, schema)
            records, size = [], 0
    if records:
        yield _batch(records, schema)


def strict_json(text: bytes, decoder: json.JSONDecoder | None = None) -> Any:
    """Read JSON as RFC 8259 means it; `decoder` is one of `strict_decoder`.

    Raises:
        ValueError: a key is given twice, a number is none or infinite, it is nested
            bottomlessly, or it is not JSON at all.
    """
    try:
        return (decoder or _STRICT).decode(text.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def why_no_json(error: ValueError) -> str:
    """Describe an error of `strict_json`, in words that are not about Python."""
    if type(error) is not ValueError:
        return "it is not JSON"
    return "a number is too long" if "digits" in str(error) else str(error)


def strict_decoder(read: Callable[[str], Any] | None = None) -> json.JSONDecoder:
    """Return a decoder that is as strict; `read` reads numbers with a fraction."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    def number(text: str) -> Any:
        if math.isinf(finite := float(text)):
            raise ValueError("a number beyond all doubles")
        return finite if read is None else read(text)

    return json.JSONDecoder(
        object_pairs_hook=_strict_object, parse_constant=refuse, parse_float=number
    )


def _strict_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item = dict(pairs)
    if len(item) != len(pairs):
        raise ValueError("a key is given twice")
    return item


_STRICT: Final = strict_decoder()


def _record(line: bytes, number: int) -> dict[str, Any]:
    try:
        record = strict_json(line)
    except ValueError:
        raise MalformedError(f"line {number} is not strict JSON") from None
    if not isinstance(record, dict):
        raise MalformedError(f"line {number} is not a JSON object")
    return record


def _type_of(name: str, value: Any) -> pa.DataType:
    if type(value) is not int:
        return _TYPES.get(type(value), _NESTED)
    if -(2**63) <= value < 2**63:
        return pa.int64()
    if 0 < value < 2**64:
        return pa.uint64()
    raise MalformedError(f"column {name[:70]}: a whole number beyond 64 bits")


def _join(name: str, first: pa.DataType, second: pa.DataType) -> pa.DataType:
    both = {first, second} - {pa.null()}
    if len(both) < 2:
        return next(iter(both), pa.null())
    if both == _WHOLE:
        return pa.uint64()
    if both < {*_WHOLE, pa.float64()}:
        return pa.float64()
    raise MalformedError(f"column {name[:70]}: values of several types")


def _batch(records: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [_column([r.get(f.name) for r in records], f) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (UnicodeEncodeError, OverflowError, pa.ArrowException):
        detail = f"a value is not of type {field.type}"
        if pa.types.is_floating(field.type):
            detail = "a whole number that is no double stands beside fractions"
        raise MalformedError(f"column {field.name[:70]}: {detail}") from None
