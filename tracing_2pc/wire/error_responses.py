"""Statuses of answers, and the problem document (RFC 9457) with the reason.

`STATUSES` has the refusals of the contract. A request that is wrong as HTTP is answered
where it is read: `forms.py`.
"""

from __future__ import annotations

import dataclasses
import http
import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.states import ASK_AGAIN, Refusal

OK: Final = 200  # the one status of an acknowledgement

FAULT: Final = 500  # of the participant itself: neither a yes nor a no

STATUSES: Final[Mapping[Refusal, int]] = {
    Refusal.UNKNOWN: 404,
    Refusal.FORGOTTEN: 410,
    Refusal.CONFLICT: 409,
    Refusal.MALFORMED: 400,
    Refusal.NOT_NOW: 503,
    Refusal.IN_PROGRESS: 425,
    Refusal.MISDIRECTED: 421,
    Refusal.NOT_ADMITTED: 401,
    Refusal.NOT_ALLOWED: 403,
}
"""What each refusal is in HTTP: the only place that says so."""

_MEANINGS: Final = {status: refusal for refusal, status in STATUSES.items()} | {
    423: Refusal.NOT_NOW
}

_MOST_NAMED_BYTES: Final = 1 << 19
"""Of the rejected rows in an answer, of which a client reads twice that."""

PROBLEM: Final = "application/problem+json"

logger = logging.getLogger(__name__)


def refusal_of(status: int) -> Refusal | None:
    """Translate a status; None if it is no refusal of the contract's."""
    return _MEANINGS.get(status)


def result_of(status: int) -> str:
    """Return a status as metrics have it: ok, refused, or unavailable for no answer."""
    if status >= 500 or refusal_of(status) in ASK_AGAIN:
        return "unavailable"
    return "ok" if status == OK else "refused"


@dataclasses.dataclass(eq=False)
class Problem(Exception):  # noqa: N818 - RFC 9457's word
    """A refusal in HTTP, with its cure. Never SQL, a path or a stack trace."""

    status: int
    detail: str
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    headers: dict[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return self.detail

    @classmethod
    def of(cls, refusal: Refusal, detail: str, **fields: Any) -> Problem:
        """Translate a refusal; members that are None are left out."""
        headers = {"Retry-After": "1"} if refusal in ASK_AGAIN else {}
        given = {name: value for name, value in fields.items() if value is not None}
        return cls(STATUSES[refusal], detail, given, headers)

    def document(self) -> dict[str, Any]:
        """Return the members of the problem document."""
        return {
            "type": "about:blank",
            "title": http.HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.fields,
        }


def _rejected_rows(error: RefusalError) -> list[dict[str, Any]]:
    """Return the rejected rows that a refusal names, as the contract has them.

    The first of them, if an answer would be longer than a client reads.
    """
    items = []
    left = _MOST_NAMED_BYTES
    for r in error.rows:
        item = dataclasses.asdict(r)
        del item["participant"]  # the client knows whom it has asked
        if (left := left - len(json.dumps(item))) < 0:
            break
        items.append(item)
    return items


def problem_of(error: Exception) -> Problem:
    """Translate a view's exception; details that no caller may see are logged."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RefusalError):
        return Problem.of(
            error.refusal,
            str(error),
            state=error.state,
            transaction_id=error.transaction_id,
            rejected_rows=_rejected_rows(error) or None,
        )
    # Not at the top of the file: a client and the watcher need neither.
    import sqlalchemy as sa
    from werkzeug.exceptions import HTTPException

    from tracing_2pc.store.engines.database import describe_error, refuse_not_now

    if isinstance(error, HTTPException):
        return Problem(error.code or 500, error.name)
    if isinstance(error, sa.exc.DataError):
        logger.warning("not stored: %s", describe_error(error))
        detail = "text of the request has a character that the database here lacks"
        return Problem.of(Refusal.MALFORMED, detail)
    silent = isinstance(error, (sa.exc.TimeoutError, sa.exc.OperationalError, OSError))
    if silent or getattr(error, "connection_invalidated", False):
        logger.warning("not available: %s", describe_error(error))
        return Problem.of(Refusal.NOT_NOW, refuse_not_now(error))
    logger.exception("a request was not answered")
    return Problem(FAULT, "this participant has a fault: see its log")
