"""An Iceberg table before it is written to: its catalog, and can we write it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tracing_2pc.core.errors import ConfigurationError, ParticipantUnavailableError
from tracing_2pc.core.model import RejectedRow
from tracing_2pc.core.settings import (
    holds_secret,
    is_reference,
    raise_if_literal,
    read_secret,
    without_secrets,
)
from tracing_2pc.sinks.table_columns import missing_columns, no_such_column, same_type
from tracing_2pc.sinks.values import inside, with_types

if TYPE_CHECKING:
    import pyarrow as pa


_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_897
"""Days from 1970 to the first one of the year 1, and of the year 10000."""

_FAR: Final = "before the year 1 or after 9999"

_TARGET: Final = "write.target-file-size-bytes"
_LARGEST: Final = 1 << 29

SILENCE: Final = 60.0
"""Seconds without a byte after which a REST catalog counts as unavailable: pyiceberg
waits for ever."""


@dataclasses.dataclass(frozen=True)
class TableName:
    """A table of a catalog that pyiceberg is configured for, in each process.

    Raises:
        ConfigurationError: a property is a secret, and no reference to it.
    """

    catalog: str
    table: str
    properties: Mapping[str, str]

    def __post_init__(self) -> None:
        raise_if_literal(
            self.properties, "configure the catalog where pyiceberg reads it"
        )

    def __str__(self) -> str:
        return f"{self.catalog}.{self.table}"

    def open_catalog(self) -> Any:
        """Open the catalog, in the process that uses it.

        Raises:
            ConfigurationError: it is not configured here, or pyiceberg is missing.
            ParticipantUnavailableError: it does not answer.
        """
        try:
            from pyiceberg.catalog import load_catalog
        except ModuleNotFoundError:
            raise ConfigurationError(
                "IcebergSink needs pyiceberg: pip install 'tracing-2pc[iceberg]'"
            ) from None
        properties = self._read_properties()
        # All of a table's snapshots: they are the proof of older batches.
        properties["snapshot-loading-mode"] = "all"
        try:
            catalog = load_catalog(self.catalog, **properties)
        except (ValueError, ModuleNotFoundError) as error:
            raise ConfigurationError(
                f"the catalog {self.catalog!r} cannot be opened: {first_line(error)}. "
                "Configure it in .pyiceberg.yaml, or by PYICEBERG_CATALOG__…, where "
                "the driver and each executor run"
            ) from None
        except Exception as error:
            raise ParticipantUnavailableError(
                f"cannot open the catalog {self.catalog!r}: {first_line(error)}"
            ) from error
        if (session := getattr(catalog, "_session", None)) is not None:  # of REST
            session.request = partial(session.request, timeout=SILENCE)
        return catalog

    def _read_properties(self) -> dict[str, str]:
        return {
            name: read_secret(value, f"properties: {name}")
            if value.startswith("env:")
            or ((name == "uri" or holds_secret(name, "")) and is_reference(value))
            else value
            for name, value in self.properties.items()
        }

    def find(self, catalog: Any) -> Any | None:
        """Return the table as it is now; None if there is none.

        It is used for one step, since others write.

        Raises:
            ParticipantUnavailableError: it cannot be read.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return catalog.load_table(self.table)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as error:
            raise ParticipantUnavailableError(
                f"cannot read {self}: {first_line(error)}"
            ) from error


def first_line(error: BaseException) -> str:
    """Return what an error says, on one line and without secrets."""
    lines = without_secrets(str(error)).split("\n")
    return lines[0] or type(error).__name__


def raise_if_unsupported(name: TableName, table: Any) -> None:
    """Refuse a table that asks its writers for more than an append of Parquet files.

    Raises:
        ConfigurationError: it does.
    """
    asked, properties = [], table.properties
    if table.format_version > 2:  # row ids, default values
        asked.append(f"format version {table.format_version}")
    if (kind := properties.get("write.format.default", "parquet").lower()) != "parquet":
        asked.append(f"files of {kind}")
    if "encryption.key-id" in properties:
        asked.append("encryption")
    for field in table.spec().fields:
        name_of = table.schema().find_column_name(field.source_id)
        try:
            source = table.schema().find_field(field.source_id)
            field.transform.pyarrow_transform(source.field_type)
        except Exception:  # noqa: BLE001 - what pyiceberg says of a transform
            of = repr(name_of) if name_of else "a column that is gone"
            asked.append(f"the transform {field.transform} of {of}")
    if asked:
        raise ConfigurationError(
            f"{name} uses {', '.join(asked)}, which IcebergSink does not write: take a "
            "table without"
        )


def target_size(table: Any) -> int:
    """Return the bytes in memory after which a file is closed, as pyiceberg has them.

    Raises:
        ConfigurationError: the table's property is no such number.
    """
    text = table.properties.get(_TARGET, str(_LARGEST))
    if not (text.isascii() and text.isdecimal() and int(text[:20])):
        raise ConfigurationError(
            f"{'.'.join(table.name())} has the property {_TARGET} = {text!r:.80}, "
            "which is no number of bytes: set one, or remove it"
        )
    return int(text[:20])


def raise_if_unwritable(name: TableName, table: Any) -> None:
    """Refuse what a task would fail with at its first file; see `raise_if_unsupported`.

    Raises:
        ConfigurationError: a property of the table is none that pyiceberg can write by.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter
    from pyiceberg.io.pyarrow import (
        _get_parquet_writer_kwargs,
        compute_statistics_plan,
    )

    target_size(table)
    try:
        schema, about = table.schema(), _get_parquet_writer_kwargs(table.properties)
        ParquetWriter(pa.BufferOutputStream(), columns_of(table), **about).close()
        compute_statistics_plan(schema, table.properties)
    except Exception as error:  # noqa: BLE001 - what pyiceberg says of a property
        raise ConfigurationError(
            f"{name} has properties that no file can be written by: {first_line(error)}"
        ) from None


def data_path(table: Any) -> str:
    """Return where a table has its data files."""
    path = table.properties.get("write.data.path") or f"{table.location()}/data"
    return str(path).rstrip("/")


def columns_of(table: Any) -> pa.Schema:
    """Return the table's columns in Arrow's types."""
    return arrow_schema(table.schema(), include_field_ids=False)


def arrow_schema(schema: Any, *, include_field_ids: bool) -> pa.Schema:
    """Return Iceberg's columns in Arrow's types, with what may be null at any depth."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    def smaller(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_large_list(kind):
            return pa.list_(kind.value_field)
        return {
            pa.large_string(): pa.string(),
            pa.large_binary(): pa.binary(),
        }.get(kind, kind)

    large = schema_to_pyarrow(schema, include_field_ids=include_field_ids)
    return with_types(large, smaller)


def as_iceberg(schema: pa.Schema) -> pa.Schema:
    """Return columns with the integers that Iceberg lacks, at any depth, in 32 bits."""
    import pyarrow as pa

    wider = {pa.int8(): pa.int32(), pa.int16(): pa.int32()}
    return with_types(schema, lambda kind: wider.get(kind, kind))


def new_columns(name: TableName, table: Any, schema: pa.Schema) -> list[Any]:
    """Return the columns of rows that a table lacks, in its types, nullable.

    Raises:
        ConfigurationError: a type that no column of it has; a name that only differs
            in case.
    """
    names = [field.name for field in table.schema().fields]
    return [
        column_of(name, field, table.format_version)
        for field in missing_columns(str(name), names, schema)
    ]


def column_of(name: TableName, field: pa.Field, version: int = 2) -> Any:
    """Return a column of rows as a table of this format has it.

    Raises:
        ConfigurationError: its type is none of Iceberg's.
    """
    import pyarrow as pa
    from pyiceberg.io.pyarrow import (
        _pyarrow_to_schema_without_ids,
        schema_to_pyarrow,
    )

    kept = as_iceberg(pa.schema([field]))
    try:
        made = _pyarrow_to_schema_without_ids(kept, format_version=version)
        (same,) = schema_to_pyarrow(made, include_field_ids=False)
    except Exception:  # noqa: BLE001 - what pyiceberg says of a type
        same = None
    if same is None or not same_type(kept[0].type, same.type):
        raise no_such_column(str(name), field)
    return made.fields[0]


def value_fault(rows: pa.RecordBatch) -> str | None:
    """Say which column has a value that pyiceberg cannot write, if one has."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        for path, _, found in inside(column, field, field.name):
            if _is_far(found):
                return (
                    f"column {path!r} has a date or time that is, in UTC, {_FAR}: put "
                    "a null in its place, or text into another column"
                )
    return None


def rejected_rows(
    rows: pa.RecordBatch, wanted: pa.Schema, first: int
) -> list[RejectedRow]:
    """Name each row with a value that the table, or pyiceberg, does not take.

    Of each the first such column, without the value; `first` is the number of the first
    row.
    """
    rejected: dict[int, RejectedRow] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        field = wanted.field(name)
        if _fault(column, field):
            for row in range(rows.num_rows):
                if fault := _fault(column.slice(row, 1), field):
                    rejected.setdefault(row, RejectedRow(first + row, *fault))
    return [rejected[row] for row in sorted(rejected)]


def _fault(column: pa.Array, field: pa.Field) -> tuple[str, str] | None:
    for path, of, found in inside(column, field, field.name):
        if found.null_count and not of.nullable:
            return path, "NOT NULL"
        if _is_far(found):
            return path, _FAR
    return None


def _is_far(values: pa.Array) -> bool:
    """Tell if a date or time is none that pyiceberg finds the bounds of."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if pa.types.is_date32(kind):
        unit, numbers = 1, values.view(pa.int32())
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        unit, numbers = 86_400_000_000, values.view(pa.int64())
    else:
        return False
    found = pc.min_max(numbers).as_py()
    if found["min"] is None:
        return False
    return bool(found["min"] < _FIRST_DAY * unit or found["max"] >= _LAST_DAY * unit)


def schema_fault(table: Any, schema_id: int) -> str | None:
    """Say why files of an earlier schema of a table do not fit it now, if they do not.

    Columns have ids: those that came since are null, those that went are not read, and
    a type is only ever changed to a wider one, which readers see to.
    """
    now, then = table.schema(), table.schemas().get(schema_id)
    if now.schema_id == schema_id:
        return None
    if then is None:
        return "the schema that they were written with is gone"
    came = set(now.field_ids) - set(then.field_ids)
    inside = {
        n for n in came if now._lazy_id_to_parent.get(n) in came
    }  # of what is null
    for field_id in set(now.field_ids) - inside:
        was_null = field_id in came or not then.find_field(field_id).required
        if now.find_field(field_id).required and was_null:
            return f"column {now.find_column_name(field_id)!r} allows no null now"
    return None
