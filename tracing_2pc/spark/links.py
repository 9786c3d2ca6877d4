"""`links=`: the trace contexts that the rows of a batch came with."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import MOST_LINKS, BranchContext, Carrier, Receipt
from tracing_2pc.sinks.base import Sink, write_traced_branch
from tracing_2pc.tracing.propagation import span_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_NAMES: Final = ("traceparent", "sw8")
_LONGEST: Final = 1024
"""Characters of one of them."""

_TYPES: Final = re.compile(
    r"array<struct<key:string,value:(binary|string)>>|map<string,(binary|string)>"
)


def check_links(column: str, schemas: Iterable[StructType]) -> None:
    """Refuse a column that no schema has, or that holds no headers."""
    types = [s[column].dataType.simpleString() for s in schemas if column in s.names]
    if not types:
        raise ConfigurationError(
            f"links={column!r}: the batch has no such column; add "
            'option("includeHeaders", True) to the source, and select it'
        )
    for other in (kind for kind in types if not _TYPES.fullmatch(kind)):
        raise ConfigurationError(
            f"links={column!r}: the column is {other}; expected Kafka's headers, "
            "array<struct<key:string,value:binary>>, or map<string,string>"
        )


class Links:
    """Finds the first different contexts in the order of rows, and takes them out.

    Args:
        column: of headers. A batch without it passes as it is.
    """

    def __init__(self, column: str) -> None:
        self._column = column
        self._known: set[tuple[str, bytes]] = set()
        self._found: dict[tuple[str, ...], Carrier] = {}

    @property
    def found(self) -> tuple[Carrier, ...]:
        """Those that were found so far."""
        return tuple(self._found.values())

    def taken_from(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches without the column."""
        for batch in batches:
            index = batch.schema.get_field_index(self._column)
            if index < 0:
                yield batch
                continue
            if len(self._found) < MOST_LINKS:
                self._read(batch.column(index))
            yield batch.select([n for n in range(batch.num_columns) if n != index])

    def _read(self, column: pa.Array) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        lists = column.cast(pa.list_(header))
        keys, values = lists.flatten().flatten()
        rows = pc.list_parent_indices(lists)
        # By columns, not by rows: most rows of a batch bring nothing new.
        for name in _NAMES:
            of_name = pc.equal(keys, name)
            ours = values.filter(of_name)
            new = [v for v in ours.unique().to_pylist() if (name, v) not in self._known]
            for value in new[:MOST_LINKS]:
                self._known.add((name, value))
                row = rows.filter(of_name)[pc.index(ours, value).as_py()].as_py()
                self._add(lists[row].as_py())

    def _add(self, headers: list[dict[str, Any]]) -> None:
        texts = {
            header["key"]: (header["value"] or b"").decode("ascii", "replace")
            for header in headers
            if header["key"] in _NAMES and len(header["value"] or b"") <= _LONGEST
        }
        context = Carrier({name: texts[name] for name in _NAMES if name in texts})
        if len(self._found) < MOST_LINKS and span_of(context).is_valid:
            self._found.setdefault(tuple(context.values()), context)


def write_linked_branch(
    sink: Sink,
    context: BranchContext,
    batches: Iterable[pa.RecordBatch],
    links: str | None,
) -> tuple[Receipt, ...]:
    """Write a branch as `write_traced_branch` does; its first receipt has the links.

    `links` is the column with its rows' headers, if there is one.
    """
    if links is None:
        return write_traced_branch(sink, context, batches)
    collector = Links(links)
    receipts = write_traced_branch(sink, context, collector.taken_from(batches))
    return dataclasses.replace(receipts[0], links=collector.found), *receipts[1:]
