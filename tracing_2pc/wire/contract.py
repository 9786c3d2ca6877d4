"""The words of the participant contract, version 1; `openapi.yaml` is the reference."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from tracing_2pc.core.errors import (
    EACH_TIME,
    ParticipantError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.settings import without_secrets
from tracing_2pc.core.states import ASK_AGAIN, OF_CALLER, Refusal, Word
from tracing_2pc.wire.error_responses import OK, PROBLEM, refusal_of

ErrorT = TypeVar("ErrorT", bound=ParticipantError)

VERSION: Final = "1"
VERSION_HEADER: Final = "Tpc-Version"
PARTICIPANT_HEADER: Final = "Tpc-Participant"
JOURNAL_HEADER: Final = "Tpc-Journal"
TRANSACTION_HEADER: Final = "Tpc-Transaction-Id"
BRANCH_HEADER: Final = "Tpc-Branch"
ROWS_HEADER: Final = "Tpc-Rows"
NAME_ROWS_HEADER: Final = "Tpc-Name-Rows"
DIGEST_HEADER: Final = "Content-Digest"

JSON: Final = "application/json"

MAX_CONTROL_BYTES: Final = 4 << 20
"""Bodies of commit, abort and resolve above this are 413."""

MAX_ANSWER_BYTES: Final = 1 << 20
"""A participant's answer above this is not read further, and is no answer."""

MAX_SHOWN_BYTES: Final = 1 << 23
"""Of one transaction with all its branches: `model.MAX_BRANCHES`, and lost tries."""

_DEFINITE: Final = frozenset(
    {Refusal.UNKNOWN, Refusal.FORGOTTEN, Refusal.CONFLICT, Refusal.MALFORMED}
)
"""Refusals that are an answer about the transaction, if the body names it too."""


class Silence(Word):
    """Why no whole answer came to a request."""

    NOT_SENT = "not sent"
    CUT = "cut"
    LATE = "late"
    NOT_OFFERED = "not offered"


class NoAnswerError(Exception):
    """Raised by a transport: no whole answer came to one request.

    `NOT_SENT`: could not connect, so nothing was sent. `CUT`, `LATE`: connection lost
    or timed out; the request may have been executed. `NOT_OFFERED`: the server does not
    offer this, and did nothing. `detail` is a word for the cause, such as the name of
    the library's own error; for `NOT_OFFERED`, an explanation.
    """

    def __init__(self, silence: Silence, detail: str) -> None:
        super().__init__(silence, detail)
        self.silence = silence
        self.detail = detail


class Request(NamedTuple):
    """A request to a participant, as an error describes it."""

    participant: str
    url: str
    token: str | None  # the reference to ours; None where none is sent
    route: str  # method and path
    transaction_id: str | None = None  # None: it is about no transaction

    def __str__(self) -> str:
        about = self.transaction_id or ""
        suffix = "" if about in self.route else f" of {about}"
        return f"{self.route}{suffix} at {self.url}"

    @property
    def cure_of_address(self) -> str:
        """The cure if another server, or none, answers there."""
        return (
            f"start participant {self.participant!r} there, or mend its address in "
            "`participants`"
        )

    @property
    def cure_of_token(self) -> str:
        """The cure if the participant does not accept our token."""
        kind, _, place = (self.token or "").partition(":")
        if kind == "env":
            return f"set {place} to a token of its tokens file"
        if kind == "file":
            return f"write a token of its tokens file into {place}"
        return "it wants a token, and none is configured: set `token`"

    def why_silent(self, error: NoAnswerError, timeout: float) -> str:
        """Explain why no answer came, and whether the request may have been obeyed."""
        if error.silence is Silence.NOT_OFFERED:
            return f"{error.detail} ({self})"
        changing = self.route.startswith("POST")
        if error.silence is Silence.NOT_SENT:
            cause = f"nothing listens at {self.url}"
            if not changing:
                return cause
            asked = str(self).removesuffix(f" at {self.url}")
            return f"{cause}, so {asked} was not sent: {self.cure_of_address}"
        unknown = ": it may or may not have happened" if changing else ""
        if error.silence is Silence.CUT:
            # At once, where the participant was killed too: no time has run out.
            return f"the connection ended without a whole answer to {self}{unknown}"
        return f"no answer to {self} within {timeout:.3g} s ({error.detail}){unknown}"

    def error(
        self,
        kind: Callable[..., ErrorT],
        message: str,
        refusal: Refusal | None = None,
        state: str | None = None,
    ) -> ErrorT:
        """Return an error about this participant and transaction."""
        return kind(
            f"participant {self.participant!r}{message}",
            refusal=refusal,
            state=state,
            transaction_id=self.transaction_id,
            participant=self.participant,
        )


class Answer(NamedTuple):
    """The answer to a request, read whole."""

    request: Request
    status: int
    content_type: str
    body: bytes


def read_answer(answer: Answer, *states: str) -> Mapping[str, Any]:
    """Return the acknowledgement, or raise.

    An acknowledgement is status 200 and a JSON object that repeats the transaction id
    with one of `states`. A refusal is 404, 409, 410 or 400 with a problem document that
    repeats the id. Anything else is not an answer, with any status.

    Raises:
        ParticipantRefusedError: a definite no.
        ParticipantUnavailableError: not an answer; ask again, guess nothing.
    """
    item = read_object(answer) or {}
    request, status, refusal = answer.request, answer.status, refusal_of(answer.status)
    names_it = item.get("transaction_id") == request.transaction_id
    if status == OK and names_it and item.get("state") in states:
        return item
    detail = reason_of(answer)
    answered = f" answered {status} to {request} ({detail})"
    if refusal in OF_CALLER:  # before the id is read
        text = f"{answered}, which is no acknowledgement: {request.cure_of_token}"
        raise request.error(ParticipantUnavailableError, text, refusal)
    if not names_it:
        may_mend = status >= 500 or refusal in ASK_AGAIN
        again = "it is asked again; see its own log"
        text = f"{answered} without naming {request.transaction_id}, which is no "
        text += f"acknowledgement: {again if may_mend else request.cure_of_address}"
        raise request.error(ParticipantUnavailableError, text, refusal)
    state = item.get("state")
    state = _bounded(state, 40) if isinstance(state, str) else ""
    if refusal in _DEFINITE:
        text = f" refused ({status}) {request}: {detail}"
        raise request.error(ParticipantRefusedError, text, refusal, state)
    raise request.error(ParticipantUnavailableError, answered, refusal)


def refusal_of_prepare(answer: Answer) -> str | None:
    """Describe a final refusal and its cure; None if it may be sent again.

    Before the decision every 4xx but "ask again" is a no, with an id in it or not: a
    wrong token or address will not correct itself within the task. Only an answer that
    names the transaction, or its vote, is called a vote.
    """
    request, status, refusal = answer.request, answer.status, refusal_of(answer.status)
    if not 400 <= status < 500 or refusal in ASK_AGAIN or status in (408, 429):
        return None
    item, detail = read_object(answer) or {}, reason_of(answer)
    names_it = item.get("transaction_id") == request.transaction_id
    if refusal in OF_CALLER:
        cure = request.cure_of_token
    elif refusal is not Refusal.MISDIRECTED and (names_it or "vote" in item):
        # A state is that of the transaction there; without one it is about the data.
        each = f", {EACH_TIME}" if item.get("state") in {None, "unknown"} else ""
        return f" votes abort ({status}) on {request}{each}: {detail}"
    else:
        cure = request.cure_of_address
    return f" answered {status} to {request} ({detail}): nobody voted; {cure}"


def reason_of(answer: Answer) -> str:
    """Return the reason in a problem document, as text for a message."""
    item = read_object(answer) or {}
    return printable(item.get("detail") or item.get("title"), 300) or "no reason given"


def printable(text: object, longest: int) -> str:
    """Bound a foreign text, as it may stand in a message, a log line, a database."""
    return _bounded(without_secrets(str(text or "")), longest)


def _bounded(text: str, longest: int) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:longest])


def read_object(answer: Answer) -> Mapping[str, Any] | None:
    """Return the JSON object that a body is; None if it is not one."""
    kind = answer.content_type.partition(";")[0].strip().lower()
    try:
        item = json.loads(answer.body) if kind in {JSON, PROBLEM} else None
    except (ValueError, RecursionError):
        return None
    return item if isinstance(item, dict) else None
