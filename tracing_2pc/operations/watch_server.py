"""`/metrics` and health of the watcher, for whoever may read them."""

from __future__ import annotations

import contextlib
import http.server
import ipaddress
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.participant.auth import (
    Gate,
    LoopbackGate,
    TokenGate,
    forwarded,
)
from tracing_2pc.participant.problems import Problem
from tracing_2pc.telemetry import metrics, prometheus
from tracing_2pc.transports import wire

_PATIENCE: Final = 10.0
"""Seconds that a client has for its request."""


def gate_for(host: str, tokens: str | None) -> Gate:
    """Return who may read: holders of tokens; without any, this machine only.

    Raises:
        ConfigurationError: the address is not a loopback one and there are no tokens.
    """
    if tokens is not None:
        return TokenGate.read(Path(tokens))
    if not _is_loopback(host):
        raise ConfigurationError(
            f"--listen {host}: everybody could read it. Listen on 127.0.0.1, or name a "
            "tokens file in `tokens_file` (TPC_TOKENS_FILE)"
        )
    return LoopbackGate()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address(text: str) -> tuple[str, int]:
    """Read `host:port`, or raise `ConfigurationError`."""
    parts = urlsplit(f"//{text}")
    try:
        host, port = parts.hostname, parts.port
        ipaddress.ip_address(host or "")
    except ValueError:
        host, port = None, None
    if host is None or port is None or parts.path or parts.username:
        raise ConfigurationError(
            f"--listen {text}: expected address:port, as in 127.0.0.1:9095"
        )
    return host, port


@contextlib.contextmanager
def serving(
    host: str, port: int, gate: Gate, ready: Callable[[], bool]
) -> Iterator[int]:
    """Serve from threads of their own; yield the port.

    Args:
        host: address to listen on.
        port: 0 for one that is free.
        gate: who may read `/metrics`; health needs no token.
        ready: whether the last sweep is young enough.

    Raises:
        ConfigurationError: it cannot listen there.
    """

    class Handler(_Handler):
        admits, is_ready = gate, staticmethod(ready)

    family = _Server6 if ":" in host else _Server
    try:
        server = family((host, port), Handler)
    except OSError as error:
        raise ConfigurationError(f"--listen {host}:{port}: {error.strerror}") from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    # Not http.server's: that one asks a name server who we are.
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *args: Any) -> None:
        self._until: dict[Any, float] = {}
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a request, whose time runs from now on."""
        self._until[request] = time.monotonic() + _PATIENCE
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Hear no more of those whose time is over: each has a thread of ours."""
        now = time.monotonic()
        for request, until in self._until.copy().items():
            if until < now:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RD)

    def shutdown_request(self, request: Any) -> None:
        """End a request."""
        self._until.pop(request, None)
        super().shutdown_request(request)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(http.server.BaseHTTPRequestHandler):
    admits: Gate
    is_ready: Callable[[], bool]
    timeout = _PATIENCE
    server_version, sys_version = "tracing-2pc", ""

    def do_GET(self) -> None:
        """Answer a route, or say that there is none."""
        route = {
            "/metrics": self._metrics,
            "/health/live": self._live,
            "/health/ready": self._ready,
        }.get(urlsplit(self.path).path)
        if route is None:
            self._refuse(Problem(404, "there is /metrics, /health/live, /health/ready"))
            return
        route()

    def _metrics(self) -> None:
        try:
            near = not forwarded(self.headers.keys())
            caller = self.admits.admit(
                self.headers.get("Authorization"),
                self.client_address[0] if near else None,
            )
            caller.check("metrics")
        except Problem as problem:
            self._refuse(problem)
            return
        self._answer(200, prometheus.CONTENT_TYPE, metrics.exposition())

    def _live(self) -> None:
        self._answer(200, wire.JSON, json.dumps({"status": "live"}))

    def _ready(self) -> None:
        if self.is_ready():
            self._answer(200, wire.JSON, json.dumps({"status": "ready"}))
            return
        self._refuse(Problem(503, "the decision log was not read lately"))

    def _refuse(self, problem: Problem) -> None:
        document = {
            "type": "about:blank",
            "title": HTTPStatus(problem.status).phrase,
            "status": problem.status,
            "detail": problem.detail,
        }
        self._answer(
            problem.status, wire.PROBLEM, json.dumps(document), problem.headers
        )

    def _answer(
        self,
        status: int,
        kind: str,
        text: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: a scrape every few seconds is no news."""
