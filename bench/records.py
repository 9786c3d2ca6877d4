"""Records to write."""

from __future__ import annotations

import datetime

import pyarrow as pa


def numbers(rows: int) -> pa.RecordBatch:
    """Return so many records, of values that Python would make an object for each."""
    values = pa.array(range(1_000_000, 1_000_000 + rows), pa.int32())
    return pa.RecordBatch.from_arrays([values], ["value"])


def orders(rows: int, first: int = 0) -> pa.RecordBatch:
    """Return so many records of eight columns, about 100 bytes each."""
    ids = range(first, first + rows)
    day, second = datetime.date(2026, 1, 1), datetime.timedelta(seconds=1)
    since = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    columns = {
        "id": pa.array(ids, pa.int64()),
        "day": pa.array([day] * rows, pa.date32()),
        "origin": pa.array([f"A{n % 300:03}" for n in ids]),
        "carrier": pa.array([f"C{n % 17}" for n in ids]),
        "amount": pa.array([n * 1.25 for n in ids]),
        "units": pa.array([n % 1000 for n in ids], pa.int32()),
        "seen": pa.array([since + second * n for n in ids], pa.timestamp("us", "UTC")),
        "remark": pa.array([f"remark number {n} of this batch" for n in ids]),
    }
    return pa.RecordBatch.from_pydict(columns)
