"""Values on their way to any sink: what no reader could read is refused, once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tracing_2pc.core.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

_SQL: Final = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "date32[day]": "DATE",
    "timestamp[us]": "TIMESTAMP_NTZ",
    "timestamp[us, tz=UTC]": "TIMESTAMP",
}
"""Spark's names of types that Arrow calls by another."""

_ODD: Final = re.compile(r"month_interval|tz=(?!UTC\])")
"""What the text of a schema has that has columns to cast or to refuse."""


def check_values(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches whose text is UTF-8, with their instants in UTC.

    Spark lets any bytes be text, and any zone be the session's: most readers do not.

    Raises:
        ConfigurationError: names the column, and how to cast it.
    """
    import pyarrow as pa

    came = sent = pa.schema([])
    for batch in batches:
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise _unreadable(batch, error) from None
        if not came.equals(batch.schema, check_metadata=True):
            came = sent = batch.schema
            if _ODD.search(str(came)):  # else there is no need to look at each column
                for field in came:
                    if "month_interval" in str(field.type):
                        raise year_month(field.name)
                sent = pa.schema([in_utc(field) for field in came], came.metadata)
        yield batch if sent == came else cast_batch(batch, sent)


def _unreadable(batch: pa.RecordBatch, error: Exception) -> ConfigurationError:
    import pyarrow as pa

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as invalid:
            error = invalid
            if "UTF8" in str(invalid):
                return ConfigurationError(
                    f"column {name!r} has text that is no UTF-8, which "
                    f"readers refuse: CAST({name} AS BINARY) keeps its bytes, "
                    f"make_valid_utf8({name}) (Spark 4) replaces those that are none. "
                    "Nothing was written"
                )
    return ConfigurationError(str(error))


def year_month(column: str) -> ConfigurationError:
    """Return the refusal of a column that PyArrow has no type for."""
    return ConfigurationError(
        f"column {column!r} is INTERVAL YEAR TO MONTH, or holds one, which PyArrow "
        f"cannot read: write CAST({column} AS STRING)"
    )


def in_utc(field: pa.Field) -> pa.Field:
    """Return a column's field with the instants in it, at any depth, in UTC."""
    import pyarrow as pa

    kind = field.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return field.with_type(pa.timestamp(kind.unit, "UTC"))
    return _with_inner(field, in_utc)


def with_nulls_inside(field: pa.Field) -> pa.Field:
    """Return a column's field where all that is in it may be null.

    Spark calls the members of a struct not null that is null itself.
    """
    inner = _with_inner(field, with_nulls_inside)
    return _with_inner(inner, lambda child: child.with_nullable(True))  # noqa: FBT003


def _with_inner(field: pa.Field, change: Callable[[pa.Field], pa.Field]) -> pa.Field:
    import pyarrow as pa

    kind = field.type
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([change(inner) for inner in kind]))
    if pa.types.is_map(kind):
        key = change(kind.key_field).with_nullable(False)  # noqa: FBT003
        return field.with_type(pa.map_(key, change(kind.item_field)))
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(change(kind.value_field)))
    return field


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema, in its types: `RecordBatch.cast` is newer."""
    import pyarrow as pa

    if schema == batch.schema:
        return batch
    kept = batch.columns
    if len(kept) != len(schema):
        kept = [batch.column(name) for name in schema.names]
    columns = [c.cast(field.type) for c, field in zip(kept, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# --- columns that readers put together ------------------------------------------------


def new_layout(
    schema: pa.Schema, kind: str, by: Sequence[str], known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what these rows add to the layout of a folder's files; nothing: empty.

    A layout has the columns that the folders are named by, the others in their order,
    and the types of those of Parquet.

    Raises:
        ConfigurationError: as `raise_if_apart`.
    """
    rest = [field for field in schema if field.name not in by]
    columns: dict[str, str] = {}
    for field in rest if kind == "parquet" else ():
        columns |= _leaves(in_utc(field), field.name)
    columns = columns or {field.name: "" for field in rest}
    layout = {"partition_by": list(by), "columns": columns}
    raise_if_apart(layout, kind, known)
    there = known.get("columns", {})
    added = {name: k for name, k in columns.items() if name not in there}
    return {**layout, "columns": added} if added else {}


def raise_if_apart(
    layout: Mapping[str, Any], kind: str, known: Mapping[str, Any], of: str = "files"
) -> None:
    """Raise `ConfigurationError` if no reader could read a layout with a known one."""
    if not known:
        return
    by, columns = layout["partition_by"], layout["columns"]
    if by != known["partition_by"]:
        here, there = (", ".join(n) or "nothing" for n in (by, known["partition_by"]))
        raise _apart(f"partition_by names {here} here, and {there} in the {of}")
    spelled = {name.lower(): name for name in known["columns"]}
    for name in columns:
        there = spelled.get(name.lower(), name)
        if there != name:  # both are one to Spark
            raise _apart(f"column {name!r} is {there!r} in the {of}: rename it")
    if kind == "csv" and list(columns) != list(known["columns"]):
        here, there = (", ".join(names) for names in (columns, known["columns"]))
        raise _apart(f"columns {here} here, and {there} in the {of}")
    for name, kind_here in columns.items():
        if (there := known["columns"].get(name, kind_here)) != kind_here:
            raise _apart(
                f"column {name!r} is {kind_here} here, and {there} in the {of}"
                f"{cast_to(name, there)}"
            )


def _apart(fault: str) -> ConfigurationError:
    return ConfigurationError(
        f"{fault}; readers of the folder could not put both together. Or write to "
        "another folder. Nothing was written"
    )


def _leaves(field: pa.Field, path: str) -> dict[str, str]:
    import pyarrow as pa

    if pa.types.is_struct(field.type):
        inner = [_leaves(child, f"{path}.{child.name}") for child in field.type]
        leaves = {name: kind for found in inner for name, kind in found.items()}
        return {path: "struct", **leaves}
    return {path: str(field.type).replace(" not null", "")}


def cast_to(column: str, kind: object) -> str:
    """Return `: CAST(…)` to an Arrow type; nothing, where Spark calls it otherwise."""
    name = str(kind)
    plain = _SQL.get(name, name.replace("decimal128", "decimal").upper())
    return (
        ""
        if "<" in plain or "[" in plain or name == "struct"
        else f": CAST({column} AS {plain})"
    )
