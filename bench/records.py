"""Records to write."""

from __future__ import annotations

import pyarrow as pa


def numbers(rows: int) -> pa.RecordBatch:
    """Return so many records, of values that Python would make an object for each."""
    values = pa.array(range(1_000_000, 1_000_000 + rows), pa.int32())
    return pa.RecordBatch.from_arrays([values], ["value"])
