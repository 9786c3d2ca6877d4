"""Values on their way to any sink: what no reader could read is refused, once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import TransactionId

if TYPE_CHECKING:
    import pyarrow as pa


def check_values(
    batches: Iterable[pa.RecordBatch], transaction: TransactionId
) -> Iterator[pa.RecordBatch]:
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
            raise _unreadable(batch, transaction, error) from None
        if not came.equals(batch.schema, check_metadata=True):
            came = batch.schema
            sent = pa.schema([in_utc(field) for field in came], came.metadata)
        if sent == came:
            yield batch
            continue
        columns = [c.cast(f.type) for c, f in zip(batch.columns, sent, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=sent)


def _unreadable(
    batch: pa.RecordBatch, transaction: TransactionId, error: Exception
) -> ConfigurationError:
    import pyarrow as pa

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as invalid:
            error = invalid
            if "UTF8" in str(invalid):
                return ConfigurationError(
                    f"{transaction}: column {name!r} has text that is no UTF-8, which "
                    f"readers refuse: CAST({name} AS BINARY) keeps its bytes, "
                    f"make_valid_utf8({name}) (Spark 4) replaces those that are none. "
                    "Nothing was written",
                    transaction_id=str(transaction),
                )
    return ConfigurationError(f"{transaction}: {error}")


def in_utc(field: pa.Field) -> pa.Field:
    """Return a column's field with the instants in it, at any depth, in UTC."""
    return field.with_type(_in_utc(field.type))


def _in_utc(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    types: Any = pa.types
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if types.is_struct(kind):
        return pa.struct([in_utc(field) for field in kind])
    if types.is_map(kind):
        return pa.map_(in_utc(kind.key_field), in_utc(kind.item_field))
    return pa.list_(in_utc(kind.value_field)) if types.is_list(kind) else kind
