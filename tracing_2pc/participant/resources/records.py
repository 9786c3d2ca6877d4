"""Records as JSON objects, one text each."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tracing_2pc.core import content
from tracing_2pc.core.errors import MalformedError, RefusalError
from tracing_2pc.participant.body import Source


def json_records(source: Source, rows: int) -> Iterator[str]:
    """Read so many records, as JSON objects.

    Times are ISO 8601, decimals are text, bytes are base64.

    Raises:
        MalformedError: a record cannot be said in JSON: NaN, a time that
            Python has no date for, an unknown time zone or an unknown type.
    """
    for record in _read(source, rows):
        try:
            text = json.dumps(record, default=_plain, allow_nan=False)
        except (TypeError, ValueError):
            raise _no_json() from None
        yield text


def _read(source: Source, rows: int) -> Iterator[dict[str, Any]]:
    if source.content_type == content.NDJSON:
        yield from source.lines(rows)
        return
    schema, batches = source.batches(rows)
    if len(set(schema.names)) != len(schema.names):
        raise MalformedError("two columns have the same name")
    for batch in batches:
        try:
            records = batch.to_pylist()
        # A time zone is looked up among files: what can go wrong there depends on it.
        except (pa.ArrowException, ArithmeticError, LookupError, ValueError, OSError):
            raise _no_json() from None
        yield from records


def _no_json() -> RefusalError:
    detail = (
        "a record cannot be JSON: it holds NaN, a time beyond the year 9999, a time "
        "zone that nobody knows, or a type that JSON has no form for"
    )
    return MalformedError(detail)


def _plain(value: Any) -> str:
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value).__name__)
