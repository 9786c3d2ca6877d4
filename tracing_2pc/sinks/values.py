"""Values on their way to any sink: unreadable ones are refused, once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tracing_2pc.core.content import sql_name
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
    "string": "STRING",
    "binary": "BINARY",
    "float": "FLOAT",
    "double": "DOUBLE",
}
"""Spark's names of Arrow's types, besides decimals."""

_ODD: Final = re.compile(r"month_interval|tz=(?!UTC\])")
"""In the text of a schema with columns to cast or to refuse."""


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
                fault = f"column {name!r} has text that is no UTF-8"
                if pa.types.is_nested(column.type):
                    fault, text = f"{fault} inside of it", "that text"
                else:
                    text = sql_name(name)
                return ConfigurationError(
                    f"{fault}, which readers refuse: CAST({text} AS BINARY) keeps its "
                    f"bytes, make_valid_utf8({text}) (Spark 4) replaces those that are "
                    "none. Nothing was written"
                )
    return ConfigurationError(str(error))


def year_month(column: str) -> ConfigurationError:
    """Return the refusal of a column that PyArrow has no type for."""
    return ConfigurationError(
        f"column {column!r} is INTERVAL YEAR TO MONTH, or holds one, which PyArrow "
        f"cannot read: write CAST({sql_name(column)} AS STRING)"
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


def with_types(
    schema: pa.Schema, change: Callable[[pa.DataType], pa.DataType]
) -> pa.Schema:
    """Return columns with types by `change`, which is called at any depth."""
    import pyarrow as pa

    def changed(field: pa.Field) -> pa.Field:
        return _with_inner(field.with_type(change(field.type)), changed)

    return pa.schema([changed(field) for field in schema], schema.metadata)


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


def inside(
    values: pa.Array, field: pa.Field, path: str
) -> Iterator[tuple[str, pa.Field, pa.Array]]:
    """Yield a column as a field has it, and all that is inside, with the path to each.

    A struct, list or map that is null itself has nothing inside.
    """
    import pyarrow as pa

    yield path, field, values
    if not pa.types.is_nested(kind := field.type):
        return
    there = values.drop_null()
    if pa.types.is_struct(kind):
        for n, member in enumerate(kind):
            yield from inside(there.field(n), member, f"{path}.{member.name}")
        return
    name = path if pa.types.is_map(kind) else f"{path}.element"
    yield from inside(_as_list(there).flatten(), kind.field(0), name)


def null_inside(values: pa.Array, field: pa.Field) -> str | None:
    """Return the path to a null in a column that a field does not allow, if any."""
    for path, of, found in inside(values, field, field.name):
        if found.null_count and not of.nullable:
            return path
    return None


def as_declared(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return values as a field of the same types declares them, at any depth.

    Names, metadata and what may be null are the field's. What must not be null is not,
    where what it is in is null: then it is any value.
    """
    import pyarrow as pa

    kind, validity = field.type, values.buffers()[0] if field.nullable else None
    if pa.types.is_struct(kind):
        members = [as_declared(values.field(n), of) for n, of in enumerate(kind)]
        nulls = values.is_null() if validity else None
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=nulls)
    is_nested = pa.types.is_nested(kind)
    if not is_nested and (field.nullable or not values.null_count):
        return values
    inner = None
    if is_nested:
        inner = [as_declared(_as_list(values).values, kind.field(0))]
    own = [validity, *values.buffers()[1 : kind.num_buffers]]
    about = {"offset": values.offset, "children": inner}
    return pa.Array.from_buffers(kind, len(values), own, **about)


def _as_list(values: pa.Array) -> pa.Array:
    """Return maps as lists of their entries."""
    import pyarrow as pa

    if not pa.types.is_map(values.type):
        return values
    kind, own = pa.list_(values.type.field(0)), values.buffers()[:2]
    about = {"offset": values.offset, "children": [values.values]}
    return pa.Array.from_buffers(kind, len(values), own, **about)


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


def raise_if_twice(fields: Iterable[pa.Field], column: str | None = None) -> None:
    """Refuse columns, or members at any depth, that differ in case only: one to Spark.

    Raises:
        ConfigurationError: names both.
    """
    import pyarrow as pa

    known: dict[str, str] = {}
    for field in fields:
        name, kind = field.name, field.type
        if (first := known.get(name.lower())) is not None:
            pair = (
                f"two members inside of column {column!r}" if column else "two columns"
            )
            raise ConfigurationError(
                f"{pair} are named {first!r} and {name!r}: rename one"
            )
        known[name.lower()] = name
        if pa.types.is_nested(kind):
            inner = [kind.field(n) for n in range(kind.num_fields)]
            raise_if_twice(inner, column or name)


# --- columns that readers put together ------------------------------------------------


def new_layout(
    schema: pa.Schema, kind: str, by: Sequence[str], known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return these rows' additions to the layout of a folder's files; may be empty.

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
    folders, columns = layout["partition_by"], layout["columns"]
    if folders != known["partition_by"]:
        here, there = (
            ", ".join(n) or "nothing" for n in (folders, known["partition_by"])
        )
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
                f"{cast_to(name, there, columns)}"
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
        leaves = {name: kind for part in inner for name, kind in part.items()}
        return {path: "struct", **leaves}
    return {path: str(field.type).replace(" not null", "")}


def cast_to(
    column: str, kind: object, columns: Mapping[str, object] = MappingProxyType({})
) -> str:
    """Return `: ` and Spark's cast to an Arrow type; empty if it has none.

    A member of a struct is named by its path; `columns` has the kinds of all paths.
    """
    name = str(kind)
    decimal = name.replace("decimal128", "DECIMAL") if name[:7] == "decimal" else None
    if (plain := _SQL.get(name, decimal)) is None:
        return ""
    outer = (
        n for n in columns if column.startswith(f"{n}.") and columns[n] == "struct"
    )
    if (root := min(outer, key=len, default=None)) is None:
        return f": CAST({sql_name(column)} AS {plain})"
    if any(sql_name(part) != part for part in column.split(".")):
        return ""
    inner = column[len(root) + 1 :]
    member = f'col("{root}").withField("{inner}", col("{column}").cast("{plain}"))'
    return f': .withColumn("{root}", {member})'
