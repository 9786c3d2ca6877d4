"""The words of the participant contract, version 1: headers, digests, answers.

Both sides read them here. `openapi.yaml` in the participant package is the reference.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

from tracing_2pc.errors import (
    ParticipantError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)

ErrorT = TypeVar("ErrorT", bound=ParticipantError)

VERSION: Final = "1"
VERSION_HEADER: Final = "Tpc-Version"
PARTICIPANT_HEADER: Final = "Tpc-Participant"
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

MISDIRECTED: Final = 421
"""Status that says: you have reached another participant than you mean."""

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


class Request(NamedTuple):
    """What was asked of whom, as an error tells it.

    Args:
        participant: its configured name.
        url: its configured address.
        token: the reference to our token, None where none is sent.
        route: method and path.
        transaction_id: what it is about; None for a list.
    """

    participant: str
    url: str
    token: str | None
    route: str
    transaction_id: str | None = None

    def __str__(self) -> str:
        about = self.transaction_id or ""
        of = "" if about in self.route else f" of {about}"
        return f"{self.route}{of} at {self.url}"

    @property
    def cure_of_address(self) -> str:
        """What mends that something else, or nothing, answers there."""
        return (
            f"start participant {self.participant!r} there, or mend its address in "
            "`participants`"
        )

    @property
    def cure_of_token(self) -> str:
        """What mends that the participant does not take our token."""
        kind, _, place = (self.token or "").partition(":")
        if kind == "env":
            return f"set {place} to a token of its tokens file"
        if kind == "file":
            return f"write a token of its tokens file into {place}"
        return "it wants a token, and none is configured: set `token`"

    def error(
        self,
        kind: type[ErrorT],
        message: str,
        status: int | None = None,
        state: str | None = None,
    ) -> ErrorT:
        """Return an error about this participant and transaction."""
        return kind(
            f"participant {self.participant!r}{message}",
            status=status,
            state=state,
            transaction_id=self.transaction_id,
            participant=self.participant,
        )


def read_answer(
    status: int,
    content_type: str,
    body: bytes,
    *,
    request: Request,
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
    item = read_object(content_type, body)
    detail = _reason(item)
    state = _word((item or {}).get("state"))
    answered = f" answered {status} to {request} ({detail})"
    if status in NOT_ADMITTED:  # before the id is read
        why = f"{answered}, which is no acknowledgement: {request.cure_of_token}"
        raise request.error(ParticipantUnavailableError, why, status)
    if item is None or item.get("transaction_id") != request.transaction_id:
        why = f"{answered} without naming {request.transaction_id}, which is no "
        why += f"acknowledgement: {_cure(status, request)}"
        raise request.error(ParticipantUnavailableError, why, status)
    if status == 200 and state in states:
        return item
    if status in DEFINITE or status == 400:
        why = f" refused ({status}) {request}: {detail}"
        raise request.error(ParticipantRefusedError, why, status, state)
    raise request.error(ParticipantUnavailableError, answered, status)


def _cure(status: int, request: Request) -> str:
    """Say what to do about an answer that names no transaction."""
    if status >= 500 or status in ASK_AGAIN:
        return "it is asked again; see its own log"
    return request.cure_of_address


def refusal_of_prepare(
    status: int, content_type: str, body: bytes, request: Request
) -> str | None:
    """Say what was refused for good, and what mends it; None if it may be sent again.

    Before the decision every 4xx but "ask again" is a no, with an id in it or not:
    a wrong token or address will not mend itself within the task. Only what names the
    transaction, or its vote, is called a vote.
    """
    if not 400 <= status < 500 or status in ASK_AGAIN | {408, 429}:
        return None
    item = read_object(content_type, body) or {}
    detail = _reason(item)
    if status in NOT_ADMITTED:
        cure = request.cure_of_token
    elif status != MISDIRECTED and (
        item.get("transaction_id") == request.transaction_id or "vote" in item
    ):
        return f" votes abort ({status}) on {request}: {detail}"
    else:
        cure = request.cure_of_address
    return f" answered {status} to {request} ({detail}): nobody voted; {cure}"


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
