"""Requests and answers, held whole, and the way to the participant."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.client
import json
import selectors
import socket
from collections.abc import Iterable
from typing import Any, Final

from tracing_2pc.transports import wire

Headers = tuple[tuple[str, str], ...]

_ONE_CONNECTION: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that speak of one connection, or are written anew for the next."""

_DONE: Final = {"prepare": "prepared", "commit": "committed", "abort": "aborted"}


def passed_on(headers: Iterable[tuple[str, str]]) -> Headers:
    """Return the headers that go on to the other side."""
    return tuple((n, v) for n, v in headers if n.lower() not in _ONE_CONNECTION)


@dataclasses.dataclass(frozen=True)
class Request:
    """One request, read whole."""

    method: str
    path: str
    headers: Headers
    body: bytes

    @functools.cached_property
    def verb(self) -> str:
        """The last segment of its path, or `transactions` for one of them."""
        segments = self._segments
        return "transactions" if "transactions" in segments[-2:] else segments[-1]

    @functools.cached_property
    def transaction(self) -> str:
        """The transaction id that it names, unchecked; empty for none."""
        if self.verb == "transactions":
            last = self._segments[-1]
            return "" if last == self.verb else last
        return self._header(wire.TRANSACTION_HEADER) or self._field("transaction_id")

    @functools.cached_property
    def branch(self) -> str:
        """The branch that it names, unchecked; empty for none."""
        return self._header(wire.BRANCH_HEADER) or self._field("branch")

    def acknowledgement(self, transaction: str) -> Answer:
        """Return what a participant says that has done it, for any transaction."""
        item: dict[str, Any] = {"transaction_id": transaction}
        item["state"] = _DONE.get(self.verb, "")
        if self.verb == "prepare":
            item |= {
                "branch": self.branch,
                "vote": "commit",
                "rows": int(self._header(wire.ROWS_HEADER) or 0),
                "digest": self._header(wire.DIGEST_HEADER),
            }
        return Answer.of(200, wire.JSON, json.dumps(item).encode())

    @property
    def _segments(self) -> list[str]:
        return self.path.partition("?")[0].rstrip("/").split("/")

    def _header(self, wanted: str) -> str:
        found = [v for n, v in self.headers if n.lower() == wanted.lower()]
        return found[0] if found else ""

    def _field(self, name: str) -> str:
        return str(self._order.get(name) or "")

    @functools.cached_property
    def _order(self) -> dict[str, Any]:
        with contextlib.suppress(ValueError):
            order = json.loads(self.body)
            return order if isinstance(order, dict) else {}
        return {}


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One answer, read whole."""

    status: int
    reason: str
    headers: Headers
    body: bytes

    @classmethod
    def of(cls, status: int, kind: str, body: bytes, **headers: str) -> Answer:
        """Make an answer of a content type."""
        named = (("Content-Type", kind), *headers.items())
        return cls(status, http.client.responses[status], named, body)

    def raw(self) -> bytes:
        """Write it as it travels; in one piece, because a second one may be delayed."""
        lines = [f"HTTP/1.1 {self.status} {self.reason}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += [f"Content-Length: {len(self.body)}", "", ""]
        return "\r\n".join(lines).encode("latin-1") + self.body


class Upstream:
    """One connection to the participant, kept open between requests.

    Args:
        host: the participant's.
        port: the participant's.
        timeout: seconds to connect, and for each read.
    """

    def __init__(self, host: str, port: int, timeout: float) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=timeout)

    def ask(self, request: Request) -> Answer | None:
        """Send a request once, never again; None if there was no answer."""
        self._drop_if_stale()
        try:
            self._send(request)
            with self._connection.getresponse() as response:
                body = response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            return None
        headers = passed_on(response.getheaders())
        return Answer(response.status, response.reason, headers, body)

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        self._connection.close()

    def _send(self, request: Request) -> None:
        self._connection.putrequest(
            request.method, request.path, skip_accept_encoding=True
        )
        for name, value in request.headers:
            self._connection.putheader(name, value)
        if request.body or request.method != "GET":
            self._connection.putheader("Content-Length", str(len(request.body)))
        self._connection.endheaders(request.body)

    def _drop_if_stale(self) -> None:
        """Close what the participant has closed: a request on it would be lost."""
        opened: socket.socket | None = self._connection.sock
        if opened is not None and is_readable(opened):
            self.close()


def is_readable(opened: socket.socket) -> bool:
    """Whether something has come, or the other side has closed it."""
    with selectors.DefaultSelector() as selector:
        selector.register(opened, selectors.EVENT_READ)
        return bool(selector.select(0))
