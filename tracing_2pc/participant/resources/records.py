"""Records as JSON objects, one text each."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import uuid
from collections.abc import Iterator
from typing import Any

from tracing_2pc.participant.body import Source
from tracing_2pc.participant.problems import Problem
from tracing_2pc.transports import wire


def json_records(source: Source) -> Iterator[str]:
    """Read records as JSON objects.

    Times are ISO 8601, decimals are text, bytes are base64.

    Raises:
        Problem: 400, a record cannot be said in JSON: NaN, a time that
            Python has no date for, or an unknown type.
    """
    try:
        for record in _read(source):
            yield json.dumps(record, default=_plain, allow_nan=False)
    except (TypeError, ValueError, OverflowError):
        detail = (
            "a record cannot be JSON: it holds NaN, a time beyond the year 9999, or a "
            "type that JSON has no form for"
        )
        raise Problem(400, detail) from None


def _read(source: Source) -> Iterator[dict[str, Any]]:
    if source.content_type == wire.NDJSON:
        yield from source.lines()
        return
    schema, batches = source.batches()
    if len(set(schema.names)) != len(schema.names):
        raise Problem(400, "two columns have the same name")
    for batch in batches:
        yield from batch.to_pylist()


def _plain(value: Any) -> str:
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value).__name__)
