"""A proxy in front of one participant: each fault happens to the planned request."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import selectors
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from email.message import Message
from typing import Any, Final, Literal, NamedTuple, get_args
from urllib.parse import urlsplit

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.states import Word
from tracing_2pc.testing.loopback import LoopbackConnection, LoopbackServer
from tracing_2pc.wire import contract

Verb = Literal["prepare", "commit", "abort", "resolve", "transactions"]
"""The last segment of a path; `transactions` also for `/transactions/<id>`."""

_POLL: Final = 0.01  # seconds between two looks whether a client has given up


class Fault(Word):
    """A fault of one request.

    *The connection is closed* means that the client gets no answer at all.
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

    UNAVAILABLE = "unavailable"
    """503 without a body; the participant never hears of it."""

    GARBAGE = "garbage"
    """Bytes that are not HTTP; the participant never hears of it."""

    PAGE = "page"
    """200 with an HTML page, as a proxy shows; the participant never hears of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request that came to the proxy, and its outcome.

    Args:
        verb: the last segment of its path; `transactions` for a look-up.
        transaction: the id that it names; empty if it names none.
        branch: of a prepare, or of the abort of one branch; else empty.
        fault: the fault that happened to it; None for none.
        statuses: the participant's answers, one for each time that it was asked; None
            where it did not answer.
        returned: the status that the client was sent; None for no answer.
    """

    verb: str
    transaction: str
    branch: str
    fault: Fault | None
    statuses: tuple[int | None, ...]
    returned: int | None


class FaultProxy:
    """A proxy in front of one participant: each fault happens to the planned request.

    Give the sink the proxy's URL instead of the participant's. Requests without a
    planned fault pass through, unchanged:

        with FaultProxy("http://127.0.0.1:8081") as proxy:
            sink = ParticipantSink({"ledger": proxy.url})
            proxy.plan("commit", Fault.LOSE_ANSWER)
            ...  # write a batch
        assert [s.statuses for s in proxy.seen if s.fault] == [(200,)]

    Nothing depends on luck. A request is sent on when it is there whole; one that is
    held back waits for an event, not for time, unless you plan a time; none is sent
    twice without a fault for that. It listens on 127.0.0.1 only. Bodies are held in
    memory, and need a length.

    At the end of `with` requests under way are finished, those held back are dropped,
    and no thread and no socket is left; `seen` stays. It listens once.

    Args:
        participant: its base URL, `http://` only.
        timeout: seconds to connect to it, and for each read; after that it has not
            answered, and the client's connection is closed.

    Raises:
        ConfigurationError: a URL that it cannot forward to.
    """

    def __init__(self, participant: str, *, timeout: float = 30.0) -> None:
        parts = urlsplit(participant)
        if parts.scheme != "http" or not parts.hostname or parts.query:
            raise ConfigurationError(f"{participant!r}: expected http://host:port")
        self._base = parts.path.rstrip("/")
        self._address, self._timeout = parts.netloc, timeout
        self._lock = threading.Lock()
        self._planned: dict[str, list[tuple[Fault, float | None]]] = {}
        self._exchanges: list[_Exchange] = []
        self._threads: list[threading.Thread] = []
        self._ended = False
        self._server: LoopbackServer | None = None

    @property
    def url(self) -> str:
        """The URL to give to the sink; known inside of `with`.

        Raises:
            ConfigurationError: it does not listen yet.
        """
        if self._server is None:
            raise ConfigurationError("a FaultProxy listens inside of `with` only")
        return self._server.url + self._base

    @property
    def seen(self) -> tuple[SeenRequest, ...]:
        """Every request that came, in order, and its outcome."""
        with self._lock:
            return tuple(exchange.seen() for exchange in self._exchanges)

    def plan(
        self, verb: Verb, fault: Fault, *, times: int = 1, after: float | None = None
    ) -> None:
        """Let a fault happen to the next requests of a verb, in the order of the plan.

        Args:
            verb: the abort of one branch, by its task, is an abort too.
            fault: the fault.
            times: to so many requests.
            after: seconds, for `DELAY` and `DUPLICATE_LATER` only.

        Raises:
            ConfigurationError: such a fault cannot happen.
        """
        if verb not in get_args(Verb):
            verbs = ", ".join(get_args(Verb))
            raise ConfigurationError(f"no verb {verb!r}: one of {verbs}")
        if fault is Fault.LATE_AFTER_ABORT and verb != "prepare":
            raise ConfigurationError(f"{fault}: only a prepare can be late, not {verb}")
        if after is not None and fault not in _TIMED:
            timed = " and ".join(_TIMED)
            raise ConfigurationError(f"after: only for {timed}, not for {fault}")
        if times < 1:
            raise ConfigurationError(
                f"times: {times}, but a fault happens at least once"
            )
        with self._lock:
            self._planned.setdefault(verb, []).extend([(fault, after)] * times)

    def clear(self) -> None:
        """Forget planned faults that have not begun."""
        with self._lock:
            self._planned.clear()

    def release(self) -> None:
        """Send on requests that are held back; return when all are answered."""
        self._release(lambda _: True)

    def __enter__(self) -> FaultProxy:
        self._server = LoopbackServer(
            type("Connection", (_Connection,), {"proxy": self}), end=self._drop_held
        )
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None  # noqa: S101 - it was entered
        self._server.__exit__()
        for thread in self._threads:
            thread.join()

    def _begin(self, request: _Request, client: socket.socket) -> _Exchange:
        with self._lock:
            planned = self._planned.get(request.verb)
            fault, after = planned.pop(0) if planned else (None, None)
            exchange = _Exchange(self, request, client, fault, after)
            self._exchanges.append(exchange)
        return exchange

    def _start(self, work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=work, name="tpc-fault-proxy")
        self._threads.append(thread)
        thread.start()
        return thread

    def _release(self, chosen: Callable[[_Exchange], bool]) -> None:
        """Send on the chosen requests; return when they are answered."""
        with self._lock:
            released = [e for e in self._exchanges if e.is_held and chosen(e)]
        for exchange in released:
            exchange.moment.set()
        for exchange in released:
            exchange.over.wait()

    def _drop_held(self) -> None:
        with self._lock:
            self._ended = True
            for exchange in self._exchanges:
                exchange.moment.set()


class _Connection(LoopbackConnection):
    """One client's connection: reads requests whole, and answers as it is told to."""

    proxy: FaultProxy

    def serve(self, body: bytes | None) -> None:
        if body is None:
            self.close_connection = True
            return
        request = _Request.of(self.command, self.path, self.headers, body)
        exchange = self.proxy._begin(request, self.connection)
        reply = exchange.play()
        exchange.returned = reply.status
        self.close_connection = self.close_connection or reply.status is None
        self.wfile.write(reply.raw)


class _Reply(NamedTuple):
    """An answer to a client. Without a status it is no answer, and the last."""

    raw: bytes = b""
    status: int | None = None

    @classmethod
    def of(
        cls, status: int, body: bytes, headers: Iterable[tuple[str, str]], reason: str
    ) -> _Reply:
        """Write an answer in one piece, because a second one may be delayed."""
        lines = [f"HTTP/1.1 {status} {reason}"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines += [f"Content-Length: {len(body)}", "", ""]
        return cls("\r\n".join(lines).encode("latin-1") + body, status)


_TIMED: Final = (Fault.DELAY, Fault.DUPLICATE_LATER)
_HTML: Final = (("Content-Type", "text/html"),)
_FORGED: Final[Mapping[Fault, _Reply]] = {
    Fault.DROP: _Reply(),
    Fault.UNAVAILABLE: _Reply.of(503, b"", (), "Service Unavailable"),
    Fault.GARBAGE: _Reply(b"\x00\x01 this is not HTTP\r\n\r\n"),
    Fault.PAGE: _Reply.of(200, b"<html><h1>Please log in</h1></html>", _HTML, "OK"),
}
"""Faults that never reach the participant, and the answers to the client."""

_ONE_CONNECTION: Final = frozenset(
    (
        *("connection", "content-length", "expect", "host", "keep-alive"),
        *("proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)
"""Headers of one connection, or that are written again for the next."""


def _passed_on(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(n, v) for n, v in headers if n.lower() not in _ONE_CONNECTION]


class _Request(NamedTuple):
    """One request, read whole, and its names, unchecked; see `SeenRequest`."""

    method: str
    path: str
    headers: Message
    body: bytes
    verb: str
    transaction: str
    branch: str

    @classmethod
    def of(cls, method: str, path: str, headers: Message, body: bytes) -> _Request:
        """Read a request's names: a prepare's in its headers, others' in the body."""
        *_, parent, verb = ["", *path.partition("?")[0].rstrip("/").split("/")]
        fields: dict[str, Any] = {}
        if contract.TRANSACTION_HEADER not in headers:
            with contextlib.suppress(ValueError):
                parsed = json.loads(body)
                fields = parsed if isinstance(parsed, dict) else {}
        id_ = headers.get(contract.TRANSACTION_HEADER) or fields.get("transaction_id")
        if parent == "transactions":
            verb, id_ = parent, verb
        branch = headers.get(contract.BRANCH_HEADER) or fields.get("branch")
        return cls(method, path, headers, body, verb, str(id_ or ""), str(branch or ""))

    def send(self, address: str, timeout: float) -> _Reply:
        """Send it once, never again, on a connection of its own."""
        upstream = http.client.HTTPConnection(address, timeout=timeout)
        with contextlib.closing(upstream):
            try:
                upstream.putrequest(self.method, self.path, skip_accept_encoding=True)
                for name, value in _passed_on(self.headers.items()):
                    upstream.putheader(name, value)
                if self.body or self.method != "GET":
                    upstream.putheader("Content-Length", str(len(self.body)))
                upstream.endheaders(self.body)
                with upstream.getresponse() as response:
                    body, headers = response.read(), _passed_on(response.getheaders())
            except (OSError, http.client.HTTPException):
                return _Reply()
        return _Reply.of(response.status, body, headers, response.reason)


@dataclasses.dataclass(slots=True, eq=False)
class _Exchange:
    """One request, its planned fault, and its outcome."""

    proxy: FaultProxy
    request: _Request
    client: socket.socket
    fault: Fault | None
    after: float | None
    statuses: list[int | None] = dataclasses.field(default_factory=list)
    returned: int | None = None
    is_held: bool = False
    # Of one that is held back: when it is sent, and that it was answered or dropped.
    moment: threading.Event = dataclasses.field(default_factory=threading.Event)
    over: threading.Event = dataclasses.field(default_factory=threading.Event)

    def seen(self) -> SeenRequest:
        about = self.request.verb, self.request.transaction, self.request.branch
        return SeenRequest(*about, self.fault, tuple(self.statuses), self.returned)

    def play(self) -> _Reply:
        """Carry out the planned fault; return the answer to the client."""
        match self.fault:
            case None:
                return self._ask()
            case Fault.LOSE_ANSWER:
                self._ask()
                return _Reply()
            case Fault.DUPLICATE:
                twin = self.proxy._start(self._ask)
                reply = self._ask()
                twin.join()
                return reply
            case Fault.DUPLICATE_LATER:
                reply = self._ask()
                self.is_held = True
                self.proxy._start(self._send)
                return reply
            case Fault.LATE_AFTER_ABORT:
                self.is_held = True
                self.proxy._start(self._send)
                return _Reply()
            case Fault.DELAY:
                self.is_held = True
                reply = self._send()
                return _Reply() if self._client_is_gone() else reply
            case fault:
                return _FORGED[fault]

    def is_made_late_by(self, decision: _Request) -> bool:
        """Whether it is sent now that this commit or abort has been answered."""
        same = decision.transaction == self.request.transaction
        late = self.fault is Fault.LATE_AFTER_ABORT
        return late and same and decision.branch in {"", self.request.branch}

    def _ask(self) -> _Reply:
        """Ask the participant, once, and send on requests that waited for it."""
        reply = self.request.send(self.proxy._address, self.proxy._timeout)
        self.statuses.append(reply.status)
        if reply.status is not None and self.request.verb in ("commit", "abort"):
            self.proxy._release(lambda held: held.is_made_late_by(self.request))
        return reply

    def _send(self) -> _Reply:
        """Wait for its moment, then ask, unless it is dropped then.

        A client that has gone makes it the moment, too, if no time was planned.
        """
        proxy, poll = self.proxy, self.fault is Fault.DELAY and self.after is None
        while not (proxy._ended or self.moment.wait(_POLL if poll else self.after)):
            if not poll or self._client_is_gone():
                break
        try:
            return _Reply() if proxy._ended else self._ask()
        finally:
            self.is_held = False
            self.over.set()

    def _client_is_gone(self) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self.client, selectors.EVENT_READ)
            return bool(selector.select(0))
