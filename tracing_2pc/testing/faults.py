"""Requests and answers as the fault proxy has them, and what can go wrong with one."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
from collections.abc import Iterable, Mapping
from email.message import Message
from typing import Any, Final, Literal, NamedTuple, get_args

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.states import Word
from tracing_2pc.http import contract

Verb = Literal["prepare", "commit", "abort", "resolve", "transactions"]
"""The last segment of a path; `transactions` also for `/transactions/<id>`."""


class Fault(Word):
    """What goes wrong with one request.

    *The connection is closed* is what the client sees then: no answer at all.
    """

    DROP = "drop"
    """The participant never hears of it; the connection is closed."""

    LOSE_ANSWER = "lose answer"
    """The participant does it; the answer is lost, the connection is closed."""

    DUPLICATE = "duplicate"
    """It is sent twice at the same moment; the answer to one of them is returned."""

    DUPLICATE_LATER = "duplicate later"
    """It is answered, and sent again after some time or at `release()`."""

    DELAY = "delay"
    """It is held back until the client has given up, and sent then.

    With `after` it is held back for so many seconds, and a client that is still there
    gets the answer.
    """

    LATE_AFTER_ABORT = "late after abort"
    """A prepare whose connection is closed, and which is sent when it is too late.

    That is when the participant has answered the next commit or abort of the
    transaction, or the next abort of this very branch; and before that answer is
    returned.
    """

    CUT = "cut"
    """The participant does it; the body of the answer ends in the middle."""

    UNAVAILABLE = "unavailable"
    """503 without a body; the participant never hears of it."""

    GARBAGE = "garbage"
    """Bytes that are not HTTP; the participant never hears of it."""

    NOT_JSON = "not json"
    """200 that says JSON and is none; the participant never hears of it."""

    REDIRECT = "redirect"
    """302 to where an acknowledgement waits; the participant never hears of it.

    A client that goes there is told that all is done, and nothing is.
    """

    PAGE = "page"
    """200 with an HTML page, as a proxy shows; the participant never hears of it."""

    OTHER_TRANSACTION = "other transaction"
    """An acknowledgement of another transaction; the participant never hears of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request that came to the proxy, and what became of it.

    Args:
        verb: the last segment of its path; `transactions` for a look-up, `redirected`
            for a client that went where `REDIRECT` sent it.
        transaction: the id that it names; empty if it names none.
        branch: of a prepare, or of the abort of one branch; else empty.
        fault: what went wrong with it; None if nothing did.
        statuses: what the participant answered, once for each time that it was asked;
            None where it did not answer.
        returned: the status that the client was sent; None for no answer.
    """

    verb: str
    transaction: str
    branch: str
    fault: Fault | None
    statuses: tuple[int | None, ...]
    returned: int | None


_TIMED: Final = (Fault.DELAY, Fault.DUPLICATE_LATER)


def check_possible(verb: str, fault: Fault, times: int, after: float | None) -> None:
    """Raise `ConfigurationError` if such a fault cannot happen."""
    if verb not in get_args(Verb):
        verbs = ", ".join(get_args(Verb))
        raise ConfigurationError(f"no verb {verb!r}: one of {verbs}")
    if fault is Fault.LATE_AFTER_ABORT and verb != "prepare":
        raise ConfigurationError(f"{fault}: only a prepare can be late, not {verb}")
    if after is not None and fault not in _TIMED:
        timed = " and ".join(_TIMED)
        raise ConfigurationError(f"after: only for {timed}, not for {fault}")
    if times < 1:
        raise ConfigurationError(f"times: {times}, but a fault happens at least once")


Headers = tuple[tuple[str, str], ...]


def passed_on(headers: Iterable[tuple[str, str]]) -> Headers:
    """Return the headers that go on to the other side."""
    return tuple((n, v) for n, v in headers if n.lower() not in _ONE_CONNECTION)


_ONE_CONNECTION: Final = frozenset(
    (
        *("connection", "content-length", "expect", "host", "keep-alive"),
        *("proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)
"""Headers that speak of one connection, or are written anew for the next."""


class ProxiedRequest(NamedTuple):
    """One request, read whole, and what it names, unchecked; see `SeenRequest`."""

    method: str
    path: str
    headers: Message
    body: bytes
    verb: str
    transaction: str
    branch: str

    @classmethod
    def of(
        cls, method: str, path: str, headers: Message, body: bytes
    ) -> ProxiedRequest:
        """Read what a request names: a prepare in its headers, others in their body."""
        *_, parent, last = ["", *path.partition("?")[0].rstrip("/").split("/")]
        fields: dict[str, Any] = {}
        if contract.TRANSACTION_HEADER not in headers:
            with contextlib.suppress(ValueError):
                parsed = json.loads(body)
                fields = parsed if isinstance(parsed, dict) else {}
        verb = last
        id_ = headers.get(contract.TRANSACTION_HEADER) or fields.get("transaction_id")
        if "transactions" in {parent, last}:
            verb, id_ = "transactions", last if parent == "transactions" else ""
        branch = headers.get(contract.BRANCH_HEADER) or fields.get("branch")
        return cls(method, path, headers, body, verb, str(id_ or ""), str(branch or ""))

    def acknowledgement(self, transaction: str) -> Reply:
        """Return the answer of a participant that has done it, for any transaction."""
        state = _DONE.get(self.verb, "")
        item: dict[str, Any] = {"transaction_id": transaction, "state": state}
        if self.verb == "prepare":
            item |= {
                "branch": self.branch,
                "vote": "commit",
                "rows": int(self.headers.get(contract.ROWS_HEADER) or 0),
                "digest": self.headers.get(contract.DIGEST_HEADER, ""),
            }
        return Reply.of(200, json.dumps(item).encode(), JSON)


_DONE: Final = {"prepare": "prepared", "commit": "committed", "abort": "aborted"}


class Reply(NamedTuple):
    """What a client is told: the bytes, the status in them, and whether that is all.

    Without a status it is no answer; after the last reply the connection is closed.
    """

    raw: bytes = b""
    status: int | None = None
    is_last: bool = True

    @classmethod
    def of(
        cls, status: int, body: bytes, headers: Headers, reason: str | None = None
    ) -> Reply:
        """Write an answer in one piece, because a second one may be delayed."""
        if reason is None:
            reason = http.client.responses[status]
        lines = [f"HTTP/1.1 {status} {reason}"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines += [f"Content-Length: {len(body)}", "", ""]
        raw = "\r\n".join(lines).encode("latin-1") + body
        return cls(raw, status, is_last=False)


JSON: Final = (("Content-Type", contract.JSON),)
HTML: Final = (("Content-Type", "text/html"),)
REPLIES: Final[Mapping[Fault, Reply]] = {
    Fault.DROP: Reply(),
    Fault.UNAVAILABLE: Reply.of(503, b"", ()),
    Fault.GARBAGE: Reply(b"\x00\x01 this is not HTTP\r\n\r\n"),
    Fault.NOT_JSON: Reply.of(200, b'{"state": committed', JSON),
    Fault.PAGE: Reply.of(200, b"<html><h1>Please log in</h1></html>", HTML),
}
"""Faults that the participant never hears of, and what the client is told."""
