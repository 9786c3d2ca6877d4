"""A server of a test leaves nothing behind that another test would meet."""

from __future__ import annotations

import http.client
import http.server
import socket
import socketserver
import threading
import time
from collections.abc import Iterable
from typing import Any

from support.served import served
from support.spark import serving
from support.waiting import AT_LAST, PATIENT, PAUSE


def test_a_request_that_nobody_waits_for_ends_before_its_server(monkeypatch):
    """So what it works on, a database's connection say, can be closed after it."""
    begun, ended = threading.Event(), threading.Event()
    ending, shut_down = threading.Event(), socketserver.BaseServer.shutdown

    def end(server: socketserver.BaseServer) -> None:
        ending.set()
        shut_down(server)

    def slow(environ: Any, start_response: Any) -> Iterable[bytes]:
        begun.set()
        ending.wait(AT_LAST)
        time.sleep(PAUSE)  # a server that does not wait is over by then
        ended.set()
        start_response("204 No Content", [])
        return []

    monkeypatch.setattr(socketserver.BaseServer, "shutdown", end)
    with serving(slow) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert begun.wait(AT_LAST)
    assert ended.is_set()


class Idle(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_a_connection_that_is_kept_open_ends_with_its_server():
    """No thread goes on to wait for a client that asks nothing more."""
    before = threading.enumerate()
    with served(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Idle)) as server:
        client = http.client.HTTPConnection(
            "127.0.0.1", server.server_port, timeout=PATIENT
        )
        client.request("GET", "/")
        assert client.getresponse().status == 204
        assert len(threading.enumerate()) == len(before) + 2
    assert threading.enumerate() == before
    client.close()
