"""A proxy in front of one participant: each fault happens to the request you say."""

from __future__ import annotations

import contextlib
import functools
import http.server
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.testing.exchanges import Exchange, Said, Shared
from tracing_2pc.testing.faults import Fault, Plan, Seen, Verb
from tracing_2pc.testing.forwarding import Request, Upstream, passed_on
from tracing_2pc.testing.holding import Gate


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
        host, port = parts.hostname, parts.port or 80
        self._base = parts.path.rstrip("/")
        self._shared = Shared(lambda: Upstream(host, port, timeout))
        self._lock = threading.Lock()
        self._plan = Plan()
        self._exchanges: list[Exchange] = []
        self._clients: set[socket.socket] = set()
        self._gate: Gate | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """What to give the sink; known inside of `with`.

        Raises:
            ConfigurationError: it does not listen yet.
        """
        if not self._url:
            raise ConfigurationError("a FaultProxy listens inside of `with` only")
        return self._url

    @property
    def seen(self) -> tuple[Seen, ...]:
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
        with self._lock:
            self._plan.add(verb, fault, times, after)

    def release(self) -> None:
        """Send on what is held back; return when all of it has been answered."""
        self._shared.holding.release()

    def __enter__(self) -> FaultProxy:
        listener = socket.create_server(("127.0.0.1", 0))
        self._url = f"http://127.0.0.1:{listener.getsockname()[1]}{self._base}"
        self._gate = Gate()
        accept = functools.partial(self._accept, listener, self._gate)
        self._accepting = self._shared.threads.start(accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        assert self._gate is not None  # noqa: S101 - it was entered
        self._gate.open()
        self._accepting.join()
        self._gate.close()
        self._shared.holding.end()
        with self._lock:
            for client in self._clients:
                # It will send nothing more; what is under way is still answered.
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RD)
        self._shared.threads.join()

    def _accept(self, listener: socket.socket, gate: Gate) -> None:
        with listener:
            while not gate.wait(beside=listener):
                client, address = listener.accept()
                with self._lock:
                    self._clients.add(client)
                converse = functools.partial(self._converse, client, address)
                self._shared.threads.start(converse)

    def _converse(self, client: socket.socket, address: Any) -> None:
        """Serve one client's connection until either side ends it."""
        with client, contextlib.closing(self._shared.connect()) as upstream:
            play = functools.partial(self._play, client, upstream)
            with contextlib.suppress(OSError):  # the client has gone
                _Connection(client, address, play)
            with self._lock:
                self._clients.discard(client)

    def _play(
        self, client: socket.socket, upstream: Upstream, request: Request
    ) -> Said:
        """Do with a request what is planned; return what its client is told."""
        with self._lock:
            planned = self._plan.take(request.verb)
            exchange = Exchange(request, planned, client, upstream, self._shared)
            self._exchanges.append(exchange)
        return exchange.play()


class _Connection(http.server.BaseHTTPRequestHandler):
    """One client's connection: reads requests whole, and says what it is told to."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(
        self, client: socket.socket, address: Any, play: Callable[[Request], Said]
    ) -> None:
        self._play = play
        super().__init__(client, address, None)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Serve a look-up."""
        self._serve()

    def do_POST(self) -> None:
        """Serve everything else."""
        self._serve()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: `seen` has it all."""

    def _serve(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal():
            self._refuse()
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
            return
        headers = passed_on(self.headers.items())
        said = self._play(Request(self.command, self.path, headers, body))
        self.close_connection = self.close_connection or said.is_last
        self.wfile.write(said.raw)

    def _refuse(self) -> None:
        """Refuse a body without a length; read on, or the answer would be reset."""
        self.send_error(411)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_WR)
        while self.rfile.read(1 << 16):
            pass
