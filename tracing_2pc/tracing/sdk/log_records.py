"""The transaction and the trace that a record of the standard `logging` belongs to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry import trace

from tracing_2pc.tracing.spans import TRANSACTION

FIELDS: Final = ("tpc_transaction_id", "trace_id", "span_id")
_once: Final = threading.Lock()


def mark_log_records() -> None:
    """Give each log record from now on the ids of the work that it is logged in.

    `tpc_transaction_id`, `trace_id` and `span_id` are on every record, empty where
    nothing is going on, so that a format string may name them; a program that has one
    calls this before it logs. Else it is called where tracing starts. Once per
    process; the record factory that is there is kept, and what it or `extra` sets
    under one of these names stays.
    """
    if _once.acquire(blocking=False):
        logging.setLogRecordFactory(_marking(logging.getLogRecordFactory()))


def _marking(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        record = theirs(*args, **kwargs)
        try:
            marked = _Fields(vars(record))
            for name, id_ in zip(FIELDS, _ids(), strict=True):
                marked[name] = getattr(record, name, id_)
            record.__dict__ = marked
        except Exception:  # noqa: BLE001, S110 - a record without ids is a record
            pass
        return record

    return make


def _ids() -> tuple[str, str, str]:
    context = contexts.get_current()
    span = trace.get_current_span(context).get_span_context()
    transaction = str(context.get(TRANSACTION, ""))
    if not span.is_valid:
        return transaction, "", ""
    trace_id, span_id = span.trace_id, span.span_id
    return transaction, trace.format_trace_id(trace_id), trace.format_span_id(span_id)


class _Fields(dict[str, Any]):
    """A record's attributes, of which ours give way to `extra`.

    `logging` raises where `extra` names an attribute that is there. A program that
    logs a `trace_id` of its own goes on doing so.
    """

    def __contains__(self, name: object) -> bool:
        return name not in FIELDS and super().__contains__(name)

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, (dict(self),)
