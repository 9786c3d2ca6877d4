"""A stand-in for SkyWalking's collector: keeps what it is sent, as that reads it.

from skywalking_support import World, oap, world  # noqa: F401 - fixtures
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer

from tracing_2pc.telemetry.skywalking import active
from tracing_2pc.telemetry.skywalking.start import start


class Oap(ThreadingHTTPServer):
    """Keeps segments as they came. SkyWalking drops one that comes again."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.segments: list[dict[str, Any]] = []
        self.posts: list[tuple[str, dict[str, str], Any]] = []
        self.status = 200

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


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        oap = self.server
        assert isinstance(oap, Oap)
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if oap.status == 200:
            oap.posts.append((self.path, dict(self.headers), body))
            if self.path == "/v3/segments":
                oap.segments += body
        self.send_response(oap.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def oap() -> Iterator[Oap]:
    with Oap() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class World:
    """A provider whose spans go to that collector."""

    def __init__(self, oap: Oap) -> None:
        self.oap = oap
        resource = Resource.create({"service.name": "orders"})
        self.provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self.processor = start(oap.url, provider=self.provider)

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer("test")

    def tree(self) -> list[str]:
        assert self.provider.force_flush(10_000)
        return self.oap.tree()


@pytest.fixture
def world(oap: Oap) -> Iterator[World]:
    before = list(active._processors)
    world = World(oap)
    yield world
    world.provider.shutdown()
    active._processors[:] = before
