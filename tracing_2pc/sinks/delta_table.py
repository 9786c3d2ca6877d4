"""A Delta table before it is written to: can we write it, and do the rows fit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracing_2pc.core.errors import ConfigurationError, ParticipantUnavailableError
from tracing_2pc.core.model import RejectedRow
from tracing_2pc.sinks.branch_files import text_of
from tracing_2pc.sinks.object_store import line_of
from tracing_2pc.sinks.table_columns import (
    missing_columns,
    no_such_column,
    same_type,
)

if TYPE_CHECKING:
    import pyarrow as pa

_FEATURES: Final = {
    *("appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns"),
    *("invariants", "timestampNtz"),
}
"""Features of tables that an append needs to do nothing for, if none of `_PER_COLUMN`
and of the constraints is there."""

_PER_COLUMN: Final = (
    "delta.generationExpression",
    "delta.identity.",
    "delta.invariants",
)

_TEXT: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""Where Spark notes that a column is no STRING: it holds its writers to that."""

_VARCHAR: Final = re.compile(r"varchar\((\d+)\)")


def open_table(path: Path | str, options: dict[str, str] | None = None) -> Any:
    """Open a table as it is now; a handle is used for one step, since others write.

    `options` are of the storage of a URL.

    Raises:
        ConfigurationError: there is none, or deltalake is not installed.
        ParticipantUnavailableError: it cannot be read. It names what of its log is not
            whole: no writer of a Delta table flushes it before its name.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError
    except ModuleNotFoundError:
        raise ConfigurationError(
            "DeltaSink needs deltalake: pip install 'tracing-2pc[delta]'"
        ) from None
    try:
        return DeltaTable(path, storage_options=options)
    except TableNotFoundError:
        raise ConfigurationError(
            f"{path} is not a Delta table, or not mounted: create it before, for "
            "example by deltalake.DeltaTable.create(path, schema)"
        ) from None
    except Exception as error:
        line = line_of(error) + (torn_in(path) if isinstance(path, Path) else "")
        raise ParticipantUnavailableError(f"cannot read {path}: {line}") from error


def torn_in(path: Path) -> str:
    """Say, behind an error, what of a table's log is not whole, and what to do."""
    torn = ", ".join(_torn(path / "_delta_log"))
    return torn and (
        f". Not whole in _delta_log, as a loss of power leaves the newest: {torn}. "
        "Move aside what is named, and the commit is delivered again"
    )


def _torn(log: Path) -> list[str]:
    """Return the newest files of a table's log that are not whole.

    A commit above which a whole one lies is not among them: it cannot be spared.
    """
    torn, newest = list[str](), ""
    commits = (path for path in log.glob("*.json") if path.stem.isdecimal())
    for path in sorted(commits, reverse=True):
        if _is_whole(path):
            newest = path.stem
            break
        torn.append(path.name)
    checkpoints = [
        path
        for path in sorted(log.glob("*.parquet"))
        if path.name.partition(".")[0] > newest or not _is_whole(path)
    ]
    torn += [path.name for path in checkpoints]
    hint = log / "_last_checkpoint"
    if hint.exists() and (checkpoints or not _is_whole(hint) or not _names_one(hint)):
        torn.append(hint.name)
    return torn


def _names_one(hint: Path) -> bool:
    version = json.loads(hint.read_text())["version"]
    return any(hint.parent.glob(f"{version:020}.checkpoint.*parquet"))


def _is_whole(path: Path) -> bool:
    from pyarrow import parquet

    try:
        if path.suffix == ".parquet":
            parquet.read_table(path)
            return True
        lines = path.read_text().splitlines()
        return bool([json.loads(line) for line in lines])
    except (OSError, ValueError):  # also what pyarrow raises
        return False


def raise_if_unsupported(table: Any) -> None:
    """Refuse a table that asks its writers for more than a file and its row count."""
    protocol, metadata = table.protocol(), table.metadata()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    asked = sorted(map(str, features - _FEATURES))
    for key, value in metadata.configuration.items():
        if key.startswith("delta.constraints."):
            asked.append(f"the constraint {key.rpartition('.')[2]}")
        if key == "delta.columnMapping.mode" and value != "none":
            asked.append("columnMapping")
        if key == "delta.setTransactionRetentionDuration":  # it drops our proof
            asked.append("setTransactionRetentionDuration")
    schema = table.schema().to_json()
    asked += [word for word in _PER_COLUMN if f'"{word}' in schema]
    for field in table.schema().fields:
        if (kind := field.metadata.get(_TEXT)) and not _VARCHAR.fullmatch(kind):
            asked.append(f"{kind} of {field.name!r}")
    if asked:
        raise ConfigurationError(
            f"{table.table_uri} uses {', '.join(asked)}, which DeltaSink does not "
            "write: take a table without"
        )
    from pyarrow import types

    for column in metadata.partition_columns:
        if types.is_timestamp(kind := schema_of(table).field(column).type):
            raise ConfigurationError(
                f"{table.table_uri} is partitioned by {column!r}, of type {kind}, "
                "which DeltaSink does not write: partition by a date"
            )


def schema_of(table: Any) -> pa.Schema:
    """Return the table's columns in Arrow's types."""
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def new_fields(table: Any, schema: pa.Schema) -> list[Any]:
    """Return the columns of rows that a table lacks, in its types, nullable.

    One that has nothing but nulls has no type yet: it is left out.

    Raises:
        ConfigurationError: a type that no column of it has, or would ask more of its
            readers than the table does now; a name that only differs in case.
    """
    import pyarrow as pa
    from deltalake import Schema

    names = [field.name for field in table.schema().fields]
    fields = []
    for kept in missing_columns(table.table_uri, names, schema):
        try:
            (made,) = Schema.from_arrow(pa.schema([kept])).fields
            same = same_type(kept.type, pa.schema(Schema([made]).to_arrow())[0].type)
        except Exception:  # noqa: BLE001 - what delta-rs says of a type
            same = False
        if not same or _raises_protocol(table, made):
            raise no_such_column(table.table_uri, kept)
        fields.append(made)
    return fields


def add_fields(table: Any, fields: Sequence[Any]) -> str:
    """Try to add columns; return why it failed. The table tells if it did."""
    from deltalake.exceptions import DeltaError

    try:
        table.alter.add_columns(list(fields))
    except DeltaError as error:
        return line_of(error)
    return "they are not there after their commit"


def _raises_protocol(table: Any, field: Any) -> bool:
    """Tell if a table that gets this column can be read by fewer readers."""
    kind = field.to_json()
    has_feature = "timestampNtz" in map(str, table.protocol().writer_features or ())
    return "timestamp_nanos" in kind or ("timestamp_ntz" in kind and not has_feature)


def partition_types(table: Any) -> dict[str, str]:
    """Return the columns that a table is partitioned by, with Delta's types."""
    columns = {field.name: field for field in table.schema().fields}
    by = table.metadata().partition_columns
    return {name: str(columns[name].type.type) for name in by}


def lengths_of(table: Any) -> dict[str, int]:
    """Return the longest text, in characters, of each column that has a limit."""
    noted = {f.name: f.metadata.get(_TEXT, "") for f in table.schema().fields}
    limits = {name: _VARCHAR.fullmatch(kind) for name, kind in noted.items()}
    return {name: int(limit[1]) for name, limit in limits.items() if limit}


def too_long(rows: pa.RecordBatch, lengths: Mapping[str, int]) -> str | None:
    """Say which column has text that is longer than the table's, if one has."""
    import pyarrow.compute as pc

    for name, limit in lengths.items():
        if name in rows.schema.names:
            longest = pc.max(pc.utf8_length(rows.column(name))).as_py() or 0
            if longest > limit:
                return (
                    f"column {name!r} has text of {longest} characters, the table's is "
                    f"varchar({limit})"
                )
    return None


def rejected_rows(
    rows: pa.RecordBatch, wanted: pa.Schema, lengths: Mapping[str, int], first: int
) -> list[RejectedRow]:
    """Name each row with a null or a text that the table's column does not allow.

    Of each the first such column, without the value; `first` is the number of the first
    row.
    """
    import pyarrow.compute as pc

    rejected: dict[int, RejectedRow] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        number = wanted.get_field_index(name)
        if number >= 0 and not wanted.field(number).nullable and column.null_count:
            bad, reason = pc.is_null(column), "NOT NULL"
        elif name in lengths:
            reason = f"longer than varchar({lengths[name]})"
            bad = pc.greater(pc.utf8_length(column), lengths[name])
        else:
            continue
        for row in pc.indices_nonzero(bad).to_pylist():
            rejected.setdefault(row, RejectedRow(first + row, name, reason))
    return [rejected[row] for row in sorted(rejected)]


def value_fault(
    values: Mapping[str, Any], wanted: pa.Schema, lengths: Mapping[str, int]
) -> str | None:
    """Return which value of a partition no task makes of the table's column, if any."""
    import pyarrow as pa

    for name, text in values.items():
        field = wanted.field(name)
        try:
            value = pa.array([text], pa.string()).cast(field.type)
        except (pa.ArrowException, UnicodeError):
            value = None
        if value is None or text_of(value[0].as_py()) != text:
            return f"column {name!r} has {text!r:.80}, which is no {field.type}"
        if text is None and not field.nullable:
            return f"column {name!r} has nulls, the table allows none"
        if fault := too_long(pa.record_batch([value], [name]), lengths):
            return fault
    return None
