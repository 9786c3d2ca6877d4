"""The transaction and the trace that a record of the standard `logging` belongs to."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry import trace

from tracing_2pc.tracing.spans import TRANSACTION

FIELDS: Final = ("tpc_transaction_id", "trace_id", "span_id")
_LINE: Final = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"
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


def write_to_stderr() -> None:
    """Write each log record as a line on standard error, with the ids, if there are.

    For a program: it changes nothing where the root logger has a handler. Levels stay
    as they are. Call it before a fork, and before anything is logged.
    """
    mark_log_records()
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(_LINE, "%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(handlers=[handler])


class _Lines(logging.Formatter):
    """The time in UTC, the level, the logger, the text, and the ids that there are."""

    converter = staticmethod(time.gmtime)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's
        """Return the line that a traceback stands below."""
        ids = ((name, getattr(record, name, "")) for name in FIELDS)
        shown = [f"{name}={id_}" for name, id_ in ids if id_]
        return " ".join([super().formatMessage(record), *shown])


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
