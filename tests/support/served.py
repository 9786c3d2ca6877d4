"""Servers of threads, in tests: at their end no thread and no socket is left."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from participants import processes
from support.waiting import AT_LAST

ROOT = Path(__file__).parents[2]

Server = TypeVar("Server", bound=socketserver.TCPServer)


class StandIn(http.server.BaseHTTPRequestHandler):
    """A handler of a stand-in: it logs no request."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, body: bytes = b"", kind: str = "") -> None:
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def unserved() -> Iterator[str]:
    """Yield a URL where nobody listens, nor can: its port is held."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@contextlib.contextmanager
def by_gunicorn(
    application: str, folder: Path, *options: str, **settings: str | None
) -> Iterator[str]:
    """Serve it, of ours or of a module in a folder, and yield its URL when it is ready.

    Args:
        application: module and what in it is served, as gunicorn is told.
        folder: also for what it logs.
        options: of gunicorn's own.
        settings: variables of its environment.
    """
    (port,) = processes.free_ports(1)
    command = [sys.executable, "-m", "gunicorn", "-b", f"127.0.0.1:{port}"]
    settings["PYTHONPATH"] = os.pathsep.join(map(str, (folder, ROOT)))
    arguments = [*command, *options, application]
    server = processes.Process("gunicorn", arguments, folder / "log", settings)
    with processes.stopping(server):
        server.start()
        server.until_answers(f"http://127.0.0.1:{port}/health/ready", AT_LAST)
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def served(server: Server) -> Iterator[Server]:
    """Serve from threads, and end with them: what one still does is done before.

    A thread of a request that outlived its server would meet closed databases, and
    leave its socket to a collection of garbage in the middle of another test. Who
    makes a request wait for an event lets it go before.
    """
    clients: set[socket.socket] = set()
    accept, end = server.get_request, server.shutdown_request

    def get_request() -> tuple[Any, Any]:
        client, address = accept()
        clients.add(client)
        return client, address

    def shutdown_request(request: Any) -> None:
        clients.discard(request)
        end(request)

    server.get_request = get_request  # type: ignore[method-assign]
    server.shutdown_request = shutdown_request  # type: ignore[method-assign]
    server.daemon_threads = False  # type: ignore[attr-defined] - close waits for them
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        for client in list(clients):
            # It asks nothing more; what it has asked is still answered.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(client, socket.SHUT_RD)  # TLS goes on
        server.server_close()
