"""The words of the participant contract, version 1: headers, digests, answers.

Both sides read them here. `openapi.yaml` in the participant package is the reference.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final, TypedDict

from tracing_2pc.errors import ParticipantRefusedError, ParticipantUnavailableError

VERSION: Final = "1"
VERSION_HEADER: Final = "Tpc-Version"
TRANSACTION_HEADER: Final = "Tpc-Transaction-Id"
BRANCH_HEADER: Final = "Tpc-Branch"
ROWS_HEADER: Final = "Tpc-Rows"
DIGEST_HEADER: Final = "Content-Digest"

ARROW: Final = "application/vnd.apache.arrow.stream"
NDJSON: Final = "application/x-ndjson"
JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"

MAX_CONTROL_BYTES: Final = 4 << 20
"""Bodies of commit, abort and resolve above this are 413."""

MAX_ANSWER_BYTES: Final = 1 << 20
"""A participant's answer above this is not read further, and is no answer."""

MAX_SHOWN_BYTES: Final = 1 << 23
"""Of one transaction with all its branches: `model.MAX_BRANCHES`, and lost tries."""

ASK_AGAIN: Final = frozenset({423, 425, 503})
"""Statuses that mean "not now": neither a yes nor a no."""

DEFINITE: Final = frozenset({404, 409, 410})
"""Statuses that are an answer about the transaction, if the body says so too."""

NOT_ADMITTED: Final = frozenset({401, 403})
"""Statuses that are about who asks, and say nothing of a transaction."""

_DIGEST: Final = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):")


def write_digest(sha256: bytes) -> str:
    """Write a SHA-256 as a `Content-Digest` value (RFC 9530)."""
    return f"sha-256=:{base64.b64encode(sha256).decode()}:"


def digest_of(body: bytes) -> str:
    """Return the `Content-Digest` of a body at hand."""
    return write_digest(hashlib.sha256(body).digest())


def check_digest(text: str) -> str:
    """Return a digest in its one spelling, or raise `ValueError`."""
    if not (found := _DIGEST.fullmatch(text)):
        raise ValueError("expected sha-256=:<base64 of 32 bytes>:")
    if write_digest(base64.b64decode(found[1])) != text:
        raise ValueError("the base64 has set bits after its end")
    return text


class _About(TypedDict):
    transaction_id: str
    participant: str


def read_answer(
    status: int,
    content_type: str,
    body: bytes,
    *,
    transaction_id: str,
    participant: str,
    states: frozenset[str],
) -> Mapping[str, Any]:
    """Return the acknowledgement, or say what is known.

    An acknowledgement is status 200 and a JSON object that repeats the transaction id
    with one of `states`. A refusal is 404, 409, 410 or 400 with a problem document
    that repeats the id. Anything else is not an answer, whatever its status.

    Raises:
        ParticipantRefusedError: a definite no.
        ParticipantUnavailableError: not an answer; ask again, guess nothing.
    """
    about: _About = {"transaction_id": transaction_id, "participant": participant}
    item = read_object(content_type, body)
    detail = _reason(item)
    state = _word((item or {}).get("state"))
    if status in NOT_ADMITTED:  # before the id is read
        raise ParticipantUnavailableError(
            f"participant {participant!r} answered {status}: {detail}",
            status=status,
            **about,
        )
    if item is None or item.get("transaction_id") != transaction_id:
        raise ParticipantUnavailableError(
            f"participant {participant!r} answered {status} without naming "
            f"{transaction_id}, which is no acknowledgement: {detail}",
            status=status,
            **about,
        )
    if status == 200 and state in states:
        return item
    if status in DEFINITE or status == 400:
        raise ParticipantRefusedError(
            f"participant {participant!r} refused ({status}): {detail}",
            status=status,
            state=state,
            **about,
        )
    raise ParticipantUnavailableError(
        f"participant {participant!r} answered {status}: {detail}",
        status=status,
        **about,
    )


def refusal_of_prepare(status: int, content_type: str, body: bytes) -> str | None:
    """Say why a prepare was refused for good; None if it may be sent again.

    Before the decision every 4xx but "ask again" is a no, with an id in it or not:
    a wrong token or address will not mend itself within the task.
    """
    if 400 <= status < 500 and status not in ASK_AGAIN | {408, 429}:
        return reason_of(content_type, body)
    return None


def reason_of(content_type: str, body: bytes) -> str:
    """Return what a problem document says, as it may stand in a message."""
    return _reason(read_object(content_type, body))


def _reason(item: Mapping[str, Any] | None) -> str:
    found = (item or {}).get("detail") or (item or {}).get("title")
    return _printable(found, 300) or "no reason given"


def _word(found: object) -> str:
    return _printable(found, 40) if isinstance(found, str) else ""


def _printable(found: object, longest: int) -> str:
    """Somebody else's text, as it may stand in a message, a log line, a database."""
    text = str(found or "")[:longest]
    return "".join(c if c.isprintable() else "?" for c in text)


def read_object(content_type: str, body: bytes) -> Mapping[str, Any] | None:
    """Return the JSON object that a body is; None if it is not one."""
    if content_type.partition(";")[0].strip().lower() not in {JSON, PROBLEM}:
        return None
    try:
        item = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return item if isinstance(item, dict) else None
