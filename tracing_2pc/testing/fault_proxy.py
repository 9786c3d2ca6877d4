"""A proxy in front of one participant: each fault happens to the request you say."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.client
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.testing.faults import (
    REPLIES,
    Fault,
    ProxiedRequest,
    Reply,
    SeenRequest,
    Verb,
    check_possible,
    passed_on,
)
from tracing_2pc.testing.loopback import LoopbackConnection, LoopbackServer

_POLL: Final = 0.01
"""Seconds between two looks whether a client has given up."""


class FaultProxy:
    """A proxy in front of one participant: each fault happens to the request you say.

    Give the sink the proxy's URL instead of the participant's. What is not planned
    passes through, unchanged:

        with FaultProxy("http://127.0.0.1:8081") as proxy:
            sink = ParticipantSink({"ledger": proxy.url})
            proxy.plan("commit", Fault.LOSE_ANSWER)
            ...  # write a batch
        assert [s.statuses for s in proxy.seen if s.fault] == [(200,)]

    Nothing depends on luck. A request is sent on when it is there whole; what is held
    back waits for an event, not for time, unless you plan a time; nothing is sent
    twice unless a fault says so. It listens on 127.0.0.1 only, and keeps connections
    open on both sides. Bodies are held in memory.

    At the end of `with` what is under way is finished, what is held back is dropped,
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
        self._connect = functools.partial(
            _Upstream, parts.hostname, parts.port or 80, timeout=timeout
        )
        self._lock = threading.Lock()
        self._planned: dict[str, list[tuple[Fault, float | None]]] = {}
        self._exchanges: list[_Exchange] = []
        self._redirects: dict[str, Reply] = {}
        self._threads: list[threading.Thread] = []
        self._ended = False
        self._server: LoopbackServer | None = None

    @property
    def url(self) -> str:
        """What to give the sink; known inside of `with`.

        Raises:
            ConfigurationError: it does not listen yet.
        """
        if self._server is None:
            raise ConfigurationError("a FaultProxy listens inside of `with` only")
        return self._server.url + self._base

    @property
    def seen(self) -> tuple[SeenRequest, ...]:
        """Every request that came, in order, and what has become of it."""
        with self._lock:
            return tuple(exchange.seen() for exchange in self._exchanges)

    def plan(
        self, verb: Verb, fault: Fault, *, times: int = 1, after: float | None = None
    ) -> None:
        """Let a fault happen to the next requests of a verb.

        Faults of one verb happen in the order in which they were planned.

        Args:
            verb: `prepare`, `commit`, `abort`, `resolve` or `transactions`. The abort
                of one branch, by its task, is an abort too.
            fault: what goes wrong.
            times: to so many requests.
            after: seconds, for `DELAY` and `DUPLICATE_LATER` only.

        Raises:
            ConfigurationError: such a fault cannot happen.
        """
        check_possible(verb, fault, times, after)
        with self._lock:
            self._planned.setdefault(verb, []).extend([(fault, after)] * times)

    def clear(self) -> None:
        """Forget what is planned and has not begun."""
        with self._lock:
            self._planned.clear()

    def release(self) -> None:
        """Send on what is held back; return when all of it has been answered."""
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

    def _answer(
        self, request: ProxiedRequest, client: socket.socket, upstream: _Upstream
    ) -> Reply:
        """Do with a request what is planned; return what its client is told."""
        with self._lock:
            redirected = self._redirects.get(request.path)
            if redirected is not None:
                request = request._replace(verb="redirected")
            planned = self._planned.get(request.verb)
            fault, after = planned.pop(0) if planned else (None, None)
            exchange = _Exchange(self, request, client, upstream, fault, after)
            self._exchanges.append(exchange)
        reply = redirected or exchange.play()
        exchange.returned = reply.status
        return reply

    def _start(self, work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=work, name="tpc-fault-proxy")
        self._threads.append(thread)
        thread.start()
        return thread

    def _release(self, chosen: Callable[[_Exchange], bool]) -> None:
        """Send on what is chosen; return when it has been answered."""
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

    def setup(self) -> None:
        super().setup()
        self._upstream = self.proxy._connect()

    def finish(self) -> None:
        self._upstream.close()
        super().finish()

    def serve(self, body: bytes | None) -> None:
        if body is None:
            self._refuse()
            return
        request = ProxiedRequest.of(self.command, self.path, self.headers, body)
        reply = self.proxy._answer(request, self.connection, self._upstream)
        self.close_connection = self.close_connection or reply.is_last
        self.wfile.write(reply.raw)

    def _refuse(self) -> None:
        """Refuse a body without a length; read on, or the answer would be reset."""
        self.send_error(411)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_WR)
        while self.rfile.read(1 << 16):
            pass


class _Upstream(http.client.HTTPConnection):
    """One connection to the participant, kept open between requests."""

    def ask(self, request: ProxiedRequest) -> Reply:
        """Send a request once, never again."""
        opened: socket.socket | None = self.sock
        if opened is not None and _is_readable(opened):
            self.close()  # the participant has closed it: a request would be lost
        try:
            self.putrequest(request.method, request.path, skip_accept_encoding=True)
            for name, value in passed_on(request.headers.items()):
                self.putheader(name, value)
            if request.body or request.method != "GET":
                self.putheader("Content-Length", str(len(request.body)))
            self.endheaders(request.body)
            with self.getresponse() as response:
                body = response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            return Reply()
        headers = passed_on(response.getheaders())
        return Reply.of(response.status, body, headers, response.reason)


def _is_readable(opened: socket.socket) -> bool:
    """Whether something has come, or the other side has closed it."""
    with selectors.DefaultSelector() as selector:
        selector.register(opened, selectors.EVENT_READ)
        return bool(selector.select(0))


@dataclasses.dataclass(slots=True, eq=False)
class _Exchange:
    """One request, what is to go wrong with it, and what has become of it.

    If it is held back, it is sent at `moment`, and `over` once answered or dropped.
    """

    proxy: FaultProxy
    request: ProxiedRequest
    client: socket.socket
    upstream: _Upstream
    fault: Fault | None
    after: float | None
    statuses: list[int | None] = dataclasses.field(default_factory=list)
    returned: int | None = None
    is_held: bool = False
    moment: threading.Event = dataclasses.field(default_factory=threading.Event)
    over: threading.Event = dataclasses.field(default_factory=threading.Event)

    def seen(self) -> SeenRequest:
        return SeenRequest(
            self.request.verb,
            self.request.transaction,
            self.request.branch,
            self.fault,
            tuple(self.statuses),
            self.returned,
        )

    def play(self) -> Reply:
        """Do what is planned; return what the client is to be told."""
        match self.fault:
            case None:
                return self._ask()
            case Fault.LOSE_ANSWER:
                self._ask()
                return Reply()
            case Fault.DUPLICATE:
                twin = self.proxy._start(self._ask_apart)
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
                return Reply()
            case Fault.DELAY:
                self.is_held = True
                reply = self._send()
                return Reply() if _is_readable(self.client) else reply
            case Fault.CUT:
                reply = self._ask()
                body = reply.raw.partition(b"\r\n\r\n")[2]
                lost = max(1, len(body) // 2)
                return Reply(reply.raw[:-lost], reply.status)
            case Fault.REDIRECT:
                return self._redirect()
            case Fault.OTHER_TRANSACTION:
                other = f"{self.request.transaction}1"
                return self.request.acknowledgement(other)
            case fault:
                return REPLIES[fault]

    def is_made_late_by(self, decision: ProxiedRequest) -> bool:
        """Whether it is sent now that this commit or abort has been answered."""
        same = decision.transaction == self.request.transaction
        late = self.fault is Fault.LATE_AFTER_ABORT
        return late and same and decision.branch in {"", self.request.branch}

    def _ask(self, upstream: _Upstream | None = None) -> Reply:
        """Ask the participant, once, and send on what waited for its answer."""
        reply = (upstream or self.upstream).ask(self.request)
        self.statuses.append(reply.status)
        if reply.status is not None and self.request.verb in ("commit", "abort"):
            self.proxy._release(lambda held: held.is_made_late_by(self.request))
        return reply

    def _ask_apart(self) -> Reply:
        """Ask on a connection of its own."""
        with contextlib.closing(self.proxy._connect()) as upstream:
            return self._ask(upstream)

    def _send(self) -> Reply:
        """Wait for its moment, then ask, unless it is dropped then.

        A client that has gone makes it the moment, too, if no time was planned.
        """
        proxy, poll = self.proxy, self.fault is Fault.DELAY and self.after is None
        while not (proxy._ended or self.moment.wait(_POLL if poll else self.after)):
            if not poll or _is_readable(self.client):
                break
        try:
            return Reply() if proxy._ended else self._ask_apart()
        finally:
            self.is_held = False
            self.over.set()

    def _redirect(self) -> Reply:
        redirects = self.proxy._redirects
        with self.proxy._lock:
            path = f"/redirected/{len(redirects) + 1}"
            redirects[path] = self.request.acknowledgement(self.request.transaction)
        headers = (("Content-Type", "text/plain"), ("Location", path))
        return Reply.of(302, b"", headers)
