"""A server on 127.0.0.1 that leaves no thread and no socket behind."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Callable
from typing import Any


class LoopbackServer(http.server.ThreadingHTTPServer):
    """Listens from its making on; serves inside of `with`, a thread per connection.

    At the end of `with` no more connections are taken, `end` is called, nothing more is
    read, and requests under way are answered.
    """

    daemon_threads = False

    def __init__(
        self,
        connection: type[LoopbackConnection],
        end: Callable[[], object],
        port: int = 0,
    ) -> None:
        super().__init__(("127.0.0.1", port), connection)
        self._end = end
        self._clients: set[socket.socket] = set()
        self._accepting = threading.Thread(target=self.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> LoopbackServer:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._accepting.join()
        self._end()
        for client in list(self._clients):
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RD)
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        client, address = super().get_request()
        self._clients.add(client)
        return client, address

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._clients.discard(request)
        super().shutdown_request(request)


class LoopbackConnection(http.server.BaseHTTPRequestHandler):
    """One client's connection, kept open; the client may go at any moment."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        """Serve until either side ends it."""
        with contextlib.suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing: requests are kept."""

    def do_GET(self) -> None:
        """Serve a request."""
        self.serve(self._body())

    do_POST = do_GET  # noqa: N815 - http.server's name

    def serve(self, body: bytes | None) -> None:
        """Answer; without a body where its length is unknown, or it did not come."""
        raise NotImplementedError

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal():
            return None
        body = self.rfile.read(int(length))
        return body if len(body) == int(length) else None
