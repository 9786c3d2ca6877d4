"""A stand-in for SkyWalking's collector: keeps what it is sent, as that reads it."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer

from support.served import StandIn, served
from support.waiting import AT_LAST, PATIENT
from tracing_2pc.skywalking import in_use, sender
from tracing_2pc.skywalking.start import start


class _Tls(ssl.SSLSocket):
    """Python forgets to close one whose client went away before the handshake."""

    def __del__(self) -> None:
        self.close()


class Oap(ThreadingHTTPServer):
    """Keeps segments as they came. SkyWalking drops one that comes again."""

    def __init__(self, own: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if own else None
        if self._tls and own:
            self._tls.load_cert_chain(own, own.with_suffix(".key"))
            self._tls.sslsocket_class = _Tls
        self.url = f"{'https' if own else 'http'}://127.0.0.1:{self.server_port}"
        self.mistrusted = 0
        self.segments: list[dict[str, Any]] = []
        self.posts: list[tuple[str, dict[str, str], Any]] = []
        self.asked: set[str] = set()
        self.status = 200

    def get_request(self) -> tuple[socket.socket, Any]:
        """Take a connection; count a client that does not trust our certificate."""
        connection, address = super().get_request()
        if self._tls is None:
            return connection, address
        connection.settimeout(PATIENT)
        try:
            return self._tls.wrap_socket(connection, server_side=True), address
        except OSError:
            self.mistrusted += 1
            connection.close()
            raise

    def spans(self) -> list[dict[str, Any]]:
        """Return all spans as the protocol reads them, with the id of the segment."""
        return [
            {**_DEFAULTS, **s, "in": g["traceSegmentId"]}
            for g in self.segments
            for s in g["spans"]
        ]

    def tree(self) -> list[str]:
        """Show spans by type and name below what they follow from."""
        by = {(s["in"], s["spanId"]): s for s in self.spans()}
        lines: list[str] = []

        def parent(span: dict[str, Any]) -> tuple[str, int] | None:
            if span["parentSpanId"] >= 0:
                return span["in"], span["parentSpanId"]
            refs = [
                (r["parentTraceSegmentId"], r["parentSpanId"]) for r in span["refs"]
            ]
            return refs[0] if refs else None

        def show(span: dict[str, Any], depth: int) -> None:
            lines.append("  " * depth + f"{span['spanType']} {span['operationName']}")
            at = (span["in"], span["spanId"])
            for child in sorted(self.spans(), key=lambda s: s["startTime"]):
                if parent(child) == at:
                    show(child, depth + 1)

        for span in sorted(self.spans(), key=lambda s: s["startTime"]):
            above = parent(span)
            assert above is None or above in by, f"dangling: {span}"
            if above is None:
                show(span, 0)
        return lines


_DEFAULTS: Final = {
    "spanLayer": "Unknown",
    "componentId": 0,
    "peer": "",
    "isError": False,
    "logs": [],
    "refs": [],
}


class _Answer(StandIn):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # noqa: N802 - as http.server has it
        oap = self.server
        assert isinstance(oap, Oap)
        oap.asked.add(self.path)
        body = json.loads(self.body())
        if oap.status == 200:
            oap.posts.append((self.path, dict(self.headers), body))
            if self.path == "/v3/segments":
                oap.segments += body
        self.send_response(oap.status)
        if oap.status in range(300, 400):
            self.send_header("location", f"{oap.url}/elsewhere")
        self.send_header("content-length", "0")
        self.end_headers()


@contextlib.contextmanager
def serving(own: Path | None = None) -> Iterator[Oap]:
    """Run one; with a certificate of its own it speaks https."""
    with served(Oap(own)) as server:
        yield server


@pytest.fixture
def oap() -> Iterator[Oap]:
    with serving() as server:
        yield server


def certificate(folder: Path, name: str) -> Path:
    """Make one for 127.0.0.1 that vouches for itself, with its key beside it."""
    made = folder / f"{name}.pem"
    about = {
        "-newkey": "ec",
        "-pkeyopt": "ec_paramgen_curve:P-256",
        "-days": "2",
        "-subj": f"/CN={name}",
        "-keyout": str(made.with_suffix(".key")),
        "-out": str(made),
    }
    command = ["openssl", "req", "-x509", "-nodes"]
    command += [word for option in about.items() for word in option]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-addext", "keyUsage=digitalSignature,keyCertSign"]
    subprocess.run(command, check=True, capture_output=True)
    return made


class World:
    """A provider whose spans go to that collector."""

    def __init__(self, oap: Oap, **settings: Any) -> None:
        self.oap = oap
        resource = Resource.create({"service.name": "orders"})
        self.provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self.processor = start(oap.url, provider=self.provider, **settings)

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer("test")

    def tree(self) -> list[str]:
        assert self.flush()
        return self.oap.tree()

    def flush(self) -> bool:
        """Send what has ended; say whether the collector has taken it all."""
        return self.provider.force_flush(int(1000 * PATIENT))

    def close(self) -> None:
        """Send no more. After it the collector may go without cutting a handshake."""
        self.provider.shutdown()
        if thread := self.processor._sender._thread:
            thread.join(AT_LAST)
            assert not thread.is_alive()


@pytest.fixture
def bridge(oap: Oap, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(sender, "TIMEOUT", PATIENT)
    before = in_use.processor()
    world = World(oap)
    yield world
    world.close()
    in_use.use(before)
