"""`/metrics` and health for a process that is no service: the watcher.

It needs neither Flask nor gunicorn, and runs beside the process's own work.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from tracing_2pc.core.access import Gate
from tracing_2pc.core.settings import READ_WAIT
from tracing_2pc.http.time_limits import reading_ends_at
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.sdk import prometheus
from tracing_2pc.wire import contract
from tracing_2pc.wire.auth import admit
from tracing_2pc.wire.error_responses import PROBLEM, Problem
from tracing_2pc.wire.serving import listen_at

_PATIENCE: Final = READ_WAIT  # for a whole request: each has a thread of ours


@contextlib.contextmanager
def serve_metrics(
    host: str, port: int, gate: Gate, ready: Callable[[], bool]
) -> Iterator[int]:
    """Serve from threads of their own; yield the port, which may be given as 0.

    `gate` decides who may read `/metrics`; health needs no token. `ready` returns
    whether the last sweep is recent enough.
    """

    class Handler(_Handler):
        admits, is_ready = gate, staticmethod(ready)

    server = _Server(listen_at(host, port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    # Not http.server's, which asks a name server for our name.
    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[_Handler]) -> None:
        address = listening.getsockname()[:2]
        super().__init__(address, handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening

    def finish_request(self, request: Any, client_address: Any) -> None:
        with reading_ends_at(request, time.monotonic() + _PATIENCE):
            super().finish_request(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    admits: Gate
    is_ready: Callable[[], bool]
    timeout = _PATIENCE
    server_version, sys_version = "tracing-2pc", ""

    def do_GET(self) -> None:
        try:
            kind, text = self._read(urlsplit(self.path).path)
            self._answer(200, kind, text)
        except Problem as problem:
            text = json.dumps(problem.document())
            self._answer(problem.status, PROBLEM, text, *problem.headers.items())

    def _read(self, path: str) -> tuple[str, str]:
        if path == "/metrics":
            admit(self.admits, "metrics", self.headers.items(), self.client_address[0])
            return prometheus.CONTENT_TYPE, instruments.exposition()
        if path == "/health/live":
            return contract.JSON, json.dumps({"status": "live"})
        if path != "/health/ready":
            raise Problem(404, "there is /metrics, /health/live, /health/ready")
        if not self.is_ready():
            raise Problem(503, "the decision log was not read lately")
        return contract.JSON, json.dumps({"status": "ready"})

    def _answer(
        self, status: int, kind: str, text: str, *headers: tuple[str, str]
    ) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing: a scrape every few seconds is no news."""
