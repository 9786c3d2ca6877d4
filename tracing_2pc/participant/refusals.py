"""From whatever a view raised to what is answered, and what the log says of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa
from flask import Response, g, request
from opentelemetry import context as contexts
from werkzeug.exceptions import HTTPException

from tracing_2pc.participant.problems import Problem, unavailable
from tracing_2pc.transports import wire

_NOT_NOW: Final = (sa.exc.TimeoutError, sa.exc.OperationalError, OSError)

_log: Final = logging.getLogger(__name__)


def remember_context() -> None:
    """Keep the context of the request's span for `refuse`, which comes after it."""
    g.tpc_inside = contexts.get_current()


def refuse(error: Exception) -> Response:
    """Turn an error into a problem document that gives nothing away."""
    with _as_inside():
        problem = _problem(error)
    if "tpc_transaction" in g:
        problem.fields.setdefault("transaction_id", g.tpc_transaction)
    if votes_abort(problem.status) and request.path.endswith("/prepare"):
        problem.fields.setdefault("vote", "abort")
    return problem.response()


def votes_abort(status: int) -> bool:
    """Whether this answer to a prepare is a no: 4xx, but not "not now"."""
    return 400 <= status < 500 and status not in wire.ASK_AGAIN


@contextlib.contextmanager
def _as_inside() -> Iterator[None]:
    """Go back into the request's span, which is over: for the ids in the log."""
    token = contexts.attach(g.get("tpc_inside", contexts.get_current()))
    try:
        yield
    finally:
        contexts.detach(token)


def _problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        return Problem(error.code or 500, error.name)
    if isinstance(error, _NOT_NOW) or getattr(error, "connection_invalidated", False):
        _log.warning("not available", extra={"error": type(error).__name__})
        return unavailable()
    _log.exception("a request was not answered")
    return Problem(500, "this participant has a fault: see its log")
