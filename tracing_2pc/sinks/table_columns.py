"""Rows and the columns of a table: their fit, and missing columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.sinks.values import (
    as_declared,
    cast_to,
    null_inside,
    with_nulls_inside,
)

if TYPE_CHECKING:
    import pyarrow as pa


def fit_rows(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    table: object,
    fault_of: Callable[[pa.RecordBatch], str | None] = lambda _: None,
) -> list[pa.RecordBatch]:
    """Return rows in the types of a table's columns, and in their order.

    Raises:
        ConfigurationError: they do not fit, or `fault_of` returns the reason.
    """
    import pyarrow as pa

    if fault := mismatch(batch.schema, schema, batch) or fault_of(batch):
        raise ConfigurationError(
            f"the rows do not fit {table}: {fault}. Change the DataFrame or the table; "
            "nothing was written"
        )
    fields = [field for field in schema if field.name in batch.schema.names]
    rows = pa.Table.from_batches([batch]).select([field.name for field in fields])
    # A cast would look into what is null, whose members no column may have as null.
    cast = rows.cast(pa.schema(map(with_nulls_inside, fields)))
    return [
        pa.RecordBatch.from_arrays(
            list(map(as_declared, part.columns, fields)), schema=pa.schema(fields)
        )
        for part in cast.to_batches()
    ]


def with_missing(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with all of a table's columns, null where they lack one."""
    import pyarrow as pa

    columns = [
        rows.column(field.name)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def missing_columns(
    table: str, names: Collection[str], schema: pa.Schema
) -> list[pa.Field]:
    """Return the columns of rows that a table of these columns lacks, nullable.

    One that has nothing but nulls has no type yet: it is left out.

    Raises:
        ConfigurationError: a name that only differs in case.
    """
    import pyarrow as pa

    there = {name.lower(): name for name in names}
    missing = []
    for field in schema:
        known = there.setdefault(field.name.lower(), field.name)
        if known != field.name:
            raise ConfigurationError(
                f"{table} cannot have the column {field.name!r}: it has {known!r}, "
                "which differs in upper and lower case only"
            )
        if field.name not in names and not pa.types.is_null(field.type):
            kept = with_nulls_inside(field.with_nullable(True))  # noqa: FBT003
            missing.append(kept)
    return missing


def no_such_column(table: str, field: pa.Field) -> ConfigurationError:
    """Return the refusal of a column with a type that no column of a table may have."""
    return ConfigurationError(
        f"{table} cannot have the column {field.name!r}: it is {field.type!s:.60}, "
        "which no column there may be. Cast it"
    )


def mismatch(
    have: pa.Schema, want: Iterable[pa.Field], rows: pa.RecordBatch | None = None
) -> str | None:
    """Describe a column that does not fit a table's, if there is one.

    Columns that may be null may be missing. A column that must not be null may be
    declared nullable if these rows have no null in it.
    """
    fields = {field.name: field for field in want}
    if twice := sorted({n for n in have.names if have.names.count(n) > 1}):
        return f"two columns are named {twice[0]!r}"
    for field in have:
        if field.name not in fields:
            return f"the table has no column {field.name!r}"
        wanted, kind = fields[field.name], field.type
        if rows is not None:
            # What is declared nullable inside may have no null there.
            column, free = rows.column(field.name), with_nulls_inside(wanted).type
            if same_type(kind, free):
                if path := null_inside(column, wanted):
                    return f"column {path!r} has nulls, the table allows none"
                kind = wanted.type
        if not same_type(kind, wanted.type):
            return (
                f"column {field.name!r} is {field.type}, the table's {wanted.type}"
                f"{cast_to(field.name, wanted.type)}"
            )
        no_null = rows is not None and not rows.column(field.name).null_count
        if field.nullable and not (wanted.nullable or no_null):
            return f"column {field.name!r} has nulls, the table allows none"
    for name, wanted in fields.items():
        if name not in have.names and not wanted.nullable:
            return f"column {name!r} is missing, the table allows no null in it"
    return None


def same_type(have: pa.DataType, want: pa.DataType) -> bool:
    """Tell if values are the same in both: a cast changes their form only."""
    from pyarrow import types

    if types.is_timestamp(want) and types.is_timestamp(have):
        return have.unit == want.unit and (have.tz is None) == (want.tz is None)
    if have.num_fields != want.num_fields or _kind(have) != _kind(want):
        return False
    inner = [(have.field(n), want.field(n)) for n in range(want.num_fields)]
    return all(
        (h.name == w.name or not types.is_struct(want))
        and (w.nullable or not h.nullable)
        and same_type(h.type, w.type)
        for h, w in inner
    )


def _kind(kind: pa.DataType) -> str:
    return str(kind).partition("<")[0].removeprefix("large_")
