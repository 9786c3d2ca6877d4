"""The files that one branch writes: one for each combination of partition values."""

from __future__ import annotations

import contextlib
import decimal
import json
import math
import os
import re
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from tracing_2pc.core import content
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.sinks.values import (
    cast_batch,
    new_layout,
    raise_if_twice,
    with_nulls_inside,
)

if TYPE_CHECKING:
    import pyarrow as pa

TEMPORARY: Final = ".tmp"
"""What a file's name ends with until its branch is committed: no reader's pattern
fits, whichever folders the reader looks into."""

MAX_FILES: Final = 256
"""Files that one branch may have open."""

IN_MEMORY: Final = 32 << 20
"""Bytes of rows that a branch keeps until it writes them: larger row groups."""

_LONGEST: Final = 255
"""Bytes of a name in a folder, of every file system in use."""

_HAS_TEXT: Final = re.compile(r"(large_)?string$|u?int|bool|date|decimal")
"""Arrow's types whose values may be in the name of a folder."""

_BYTES: Final = ("binary", "large_binary")

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = {*map(chr, range(32)), *"\"#%'*/:=?\\\x7f{[]^"}


class Encoder(Protocol):
    """What writes rows into an open file, which it does not close."""

    def write_table(self, table: pa.Table) -> None:
        """Write these rows."""

    def close(self) -> None:
        """Write what is left."""


class Output(Protocol):
    """A file of a branch, where it is until it is committed."""

    file: IO[bytes]

    def close(self) -> int:
        """Make it durable; return its length."""

    def drop(self) -> None:
        """Remove it, whatever it holds."""


class Aside(Protocol):
    """Where the files of a branch are until it is committed."""

    def create(self, path: str) -> Output:
        """Create a file, by its path once it is committed."""

    def flush(self, paths: Collection[str]) -> None:
        """Make the names of files durable that are closed."""


class BranchFiles:
    """The files of one branch, while its task writes them.

    Memory is bounded: rows are written once there are 32 MiB of them. Nothing is
    durable before `close` returns.

    Args:
        aside: where a file is until it is committed.
        name: of the files, with the name of their format at the end.
        partition_by: the columns whose values become folders of the paths.
        known: layout of the files that readers read these with; None if they do not
            read by folder: then no folder has the name of a value.
    """

    def __init__(
        self,
        aside: Aside,
        name: str,
        partition_by: Sequence[str],
        known: Mapping[str, Any] | None = None,
    ) -> None:
        self.layout: dict[str, Any] = {}  # what is new in it
        self.values: dict[str, dict[str, str | None]] = {}  # as text, by path
        self._known = known
        self._aside = aside
        self._stem, _, self._format = name.rpartition(".")
        self._by = tuple(partition_by)
        self._files: dict[tuple[str | None, ...], _File] = {}  # by values
        self._held = 0
        self._came: pa.Schema | None = None
        self._kept: pa.Schema | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the rows of an Arrow batch.

        Raises:
            ConfigurationError: the columns do not fit `partition_by`, or readers could
                not put them together with those that are known; or there are too many
                files.
        """
        if self._format == "parquet":
            if self._came != batch.schema:
                self._came, self._kept = batch.schema, self._readable(batch.schema)
            batch = cast_batch(batch, self._kept)
        if not self._files:
            _check_columns(batch.schema, self._format, self._by)
            if self._known is not None:
                self.layout = new_layout(
                    batch.schema, self._format, self._by, self._known
                )
        for values, rows in _split(batch, self._by):
            if values not in self._files:
                self._files[values] = self._open(values, rows.schema)
            self._files[values].held.append(rows)
        self._held += batch.nbytes
        if self._held >= IN_MEMORY:
            self._write_held()

    def close(self) -> list[dict[str, Any]]:
        """Make all files durable; return the path, rows and bytes of each.

        Raises:
            FileNotFoundError: somebody has removed one: the transaction is over.
        """
        self._write_held()
        failpoint("files.after_write")
        files: list[dict[str, Any]] = [
            {"path": file.path, "rows": file.rows, "bytes": file.close()}
            for file in self._files.values()
        ]
        self._aside.flush([file["path"] for file in files])
        return files

    def drop(self) -> None:
        """Remove the files; what cannot be removed is left to the transaction's end."""
        for file in self._files.values():
            file.drop()

    def _readable(self, schema: pa.Schema) -> pa.Schema:
        import pyarrow as pa

        kept = _without_void(schema)
        if self._known is None:  # these are a table's types
            return kept
        return pa.schema(map(with_nulls_inside, kept))

    def _path(self, values: Sequence[str | None]) -> str:
        name = f"{self._stem}.{len(self._files)}.{self._format}"
        by = () if self._known is None else self._by
        return os.path.join(*map(folder_of, by, values), name)

    def _open(self, values: tuple[str | None, ...], schema: pa.Schema) -> _File:
        if len(self._files) == MAX_FILES:
            raise ConfigurationError(
                f"one task has rows for more than {MAX_FILES} folders of "
                f"{', '.join(self._by)}, and each is an open file: repartition the "
                "DataFrame by these columns, or partition by fewer values"
            )
        path = self._path(values)
        output = self._aside.create(path)
        try:
            encoder = ENCODERS[self._format](output.file, schema)
        except BaseException:
            output.drop()
            raise
        self.values[path] = dict(zip(self._by, values, strict=True))
        return _File(path, output, encoder)

    def _write_held(self) -> None:
        for file in self._files.values():
            file.write_held()
        self._held = 0


class _File:
    """An open file, and the rows that wait to be written into it."""

    def __init__(self, path: str, output: Output, encoder: Encoder) -> None:
        self.path = path  # where it will be
        self.held: list[pa.RecordBatch] = []
        self.rows = 0
        self._output = output
        self._encoder = encoder

    def write_held(self) -> None:
        import pyarrow as pa

        if self.held:
            table = pa.Table.from_batches(self.held)
            self._encoder.write_table(table.combine_chunks())
            self.rows += table.num_rows
            self.held = []

    def close(self) -> int:
        """Make it durable; return its length."""
        self._encoder.close()
        return self._output.close()

    def drop(self) -> None:
        """Close it, whatever it holds, and remove it."""
        with contextlib.suppress(Exception):
            self._encoder.close()  # else it does so when it is collected
        self._output.drop()


class LocalOutput:
    """A new file of a file system, in a folder that is there."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.file: IO[bytes] = target.open("xb")

    def close(self) -> int:
        """Make it durable, but for its name; return its length."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        return self._target.stat().st_size

    def drop(self) -> None:
        """Close it, whatever it holds, and remove it."""
        with contextlib.suppress(OSError):
            self.file.close()
        self._target.unlink(missing_ok=True)


def make_folders(root: Path, folders: Collection[Path]) -> None:
    """Make folders below an existing one; durable when it returns."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    flush_folders(root, folders)


def flush_folders(root: Path, folders: Collection[Path]) -> None:
    """Make durable what is in these folders, and in all between them and the root.

    Also in those that were there before: another process may have made them, and not
    have flushed them yet.
    """
    between = {p for f in folders for p in (f, *f.parents) if p.is_relative_to(root)}
    for folder in sorted(between):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def exists(path: Path) -> bool:
    """Whether it is there; an error of the file system is no answer, and raised."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def touch(path: Path) -> None:
    """Give a prepared file the time of its commit; another user's keeps its own."""
    with contextlib.suppress(PermissionError):
        os.utime(path)


# --- folders of partition values, as Spark and Hive name them ----------------------


def _check_columns(schema: pa.Schema, kind: str, partition_by: Sequence[str]) -> None:
    """Refuse a schema that a format lacks, or that cannot be partitioned by these."""
    raise_if_twice(schema)
    cast_of = {"json": content.json_cast_of, "parquet": _parquet_cast_of}.get(
        kind, content.cast_of
    )
    for field in schema:
        if cast := cast_of(field):
            raise _no_form(kind, field, cast)
    if not partition_by:
        return
    names = ", ".join(schema.names)
    for column in partition_by:
        if column not in schema.names:
            raise ConfigurationError(
                f"partition_by names {column!r}, which the rows do not have: {names}"
            )
        if not _HAS_TEXT.match(str(of := schema.field(column).type)):
            raise ConfigurationError(
                f"partition_by names {column!r}, of type {of}: take a date, text, a "
                "whole number, a decimal or a boolean"
            )
    if set(partition_by) == set(schema.names):
        raise ConfigurationError(
            f"partition_by names all columns ({names}): one at least must be left"
        )


def _parquet_cast_of(field: pa.Field) -> str | None:
    """Return how Spark casts what no Spark reads from Parquet; None: it does."""
    import pyarrow as pa

    if not any(kind.startswith("timestamp[ns") for kind in _kinds(field.type)):
        return content.cast_of(field)
    if pa.types.is_nested(field.type):
        return content.made_by("to_json", field.name)
    kind = "TIMESTAMP" if field.type.tz else "TIMESTAMP_NTZ"
    return f"CAST({content.sql_name(field.name)} AS {kind})"


def _no_form(kind: str, field: pa.Field, cast: str) -> ConfigurationError:
    return ConfigurationError(
        f"column {field.name!r} is {field.type!s:.60}, which readers of {kind} do not "
        f"know: write {cast}"
    )


def _without_void(schema: pa.Schema) -> pa.Schema:
    """Leave out columns of no type: readers could not read a later batch's as text."""
    import pyarrow as pa

    kept = [field for field in schema if not pa.types.is_null(field.type)]
    deep = [field for field in kept if "null" in _kinds(field.type)]
    if deep or not kept:
        name = (deep or schema)[0].name
        raise ConfigurationError(
            f"column {name!r} is of no type, or holds values of none, which would not "
            f"stay readable in Parquet: give it one, as "
            f"CAST({content.sql_name(name)} AS STRING)"
        )
    return schema if len(kept) == len(schema) else pa.schema(kept)


def _kinds(kind: pa.DataType) -> set[str]:
    """Return the names of a type and of all that are in it."""
    inner = [_kinds(kind.field(n).type) for n in range(kind.num_fields)]
    return {str(kind)}.union(*inner)


def _split(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Yield the rows of each combination of values, with these as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not partition_by:
        yield (), batch
        return
    codes: Any = pa.scalar(0, pa.int64())
    texts: list[list[str | None]] = []
    for column in partition_by:
        encoded = batch.column(column).dictionary_encode(null_encoding="encode")
        values = _python_values(column, encoded.dictionary)
        texts.append([text_of(value) for value in values])
        codes = pc.add(pc.multiply(codes, len(values)), encoded.indices.cast("int64"))
    rest = batch.select([n for n in batch.schema.names if n not in partition_by])
    for code in codes.unique():
        number, parts = code.as_py(), []
        for known in reversed(texts):
            number, index = divmod(number, len(known))
            parts.append(known[index])
        yield tuple(reversed(parts)), rest.filter(pc.equal(codes, code))


def folder_of(column: str, text: str | None) -> str:
    """Return the name of the folder of a value, escaped as Spark does.

    Raises:
        ConfigurationError: no folder can have it, or readers would take it for null.
    """
    if text == _NULL:
        raise ConfigurationError(
            f"partition_by: {column!r} has the text {text}, which readers take for null"
        )
    name = f"{_escape(column)}={_NULL if text is None else _escape(text)}"
    if len(name.encode()) > _LONGEST:
        size = len((text or "").encode())
        raise ConfigurationError(
            f"partition_by: {column!r} has a value of {size} bytes, {text!r:.30}…: the "
            f"name of its folder would be longer than {_LONGEST} bytes. Partition by "
            "another column, or a shorter form of this one"
        )
    return name


def is_folder_of_value(name: str) -> bool:
    """Tell if `folder_of` makes this name, of a column that readers see."""
    column, _, value = map(urllib.parse.unquote, name.partition("="))
    text = None if value in ("", _NULL) else value
    with contextlib.suppress(ConfigurationError, UnicodeError):
        return column[:1] not in ("", ".", "_") and folder_of(column, text) == name
    return False


def _escape(text: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)


def text_of(value: Any) -> str | None:
    """Return a value as text; as Spark and Delta have it, an empty one is null."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    return None if value is None else str(value) or None


# --- formats ----------------------------------------------------------------------


def _parquet(file: IO[bytes], schema: pa.Schema) -> Encoder:
    from pyarrow.parquet import ParquetWriter

    writer: Encoder = ParquetWriter(file, schema, compression="snappy")
    return writer


class _Csv:
    """CSV with a line of names; text is quoted, bytes are base64, a null is nothing."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        import pyarrow as pa
        from pyarrow import csv, types

        for field in schema:
            if types.is_nested(field.type):
                cast = content.made_by("to_json", field.name)
                raise _no_form("csv", field, cast)
        kinds = [pa.string() if f.type in _BYTES else f.type for f in schema]
        self._schema = pa.schema(list(zip(schema.names, kinds, strict=True)))
        self._writer = csv.CSVWriter(file, self._schema)

    def write_table(self, table: pa.Table) -> None:
        if table.num_columns == 1 and table.column(0).null_count:
            raise ConfigurationError(
                f"CSV shows a null of its only column, {table.column_names[0]!r}, as "
                "an empty line, which readers skip: write Parquet or JSON"
            )
        for n, field in enumerate(table.schema):
            if field.type in _BYTES:
                texts = [content.plain_text(v) for v in table.column(n).to_pylist()]
                table = table.set_column(n, self._schema.field(n), [texts])
        self._writer.write_table(table)

    def close(self) -> None:
        self._writer.close()


class _JsonLines:
    """An object a line; a column that is null is left out, as Spark does."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self._types = {field.name: field.type for field in schema}

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches(max_chunksize=1024):
            columns = map(_python_values, batch.schema.names, batch.columns)
            for values in zip(*columns, strict=True):
                row = dict(zip(batch.schema.names, values, strict=True))
                given = ((k, v) for k, v in row.items() if v is not None)
                record = {
                    k: content.json_value(v, self._types[k], _json) for k, v in given
                }
                text = json.dumps(record, ensure_ascii=False, allow_nan=False)
                self._file.write(text.encode() + b"\n")

    def close(self) -> None:
        pass


def _python_values(name: str, column: pa.Array) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):  # of nanoseconds, where there is no pandas
        import pyarrow as pa

        cast = f"CAST({content.sql_name(name)} AS STRING)"
        if pa.types.is_nested(column.type):
            cast = content.made_by("to_json", name)
        raise ConfigurationError(
            f"column {name!r} has a date or time that is, in UTC, before the year 1 or "
            f"after 9999, or is finer than microseconds: write {cast}"
        ) from None


def _json(value: Any) -> Any:
    """Return a value as JSON has it; what it has no form for as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    return content.plain_text(value)


ENCODERS: Final[dict[str, Callable[[IO[bytes], pa.Schema], Encoder]]] = {
    "parquet": _parquet,
    "json": _JsonLines,
    "csv": _Csv,
}
"""By the name of the format, which is also how a file's name ends."""
