"""Telemetry starts once where it is asked for, and ends in bounded time.

Each test runs a program of its own: a process has one tracer provider for its life.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tracing_support import read_trace_file, span_tree

from tracing_2pc.telemetry import lifecycle

START = """
import json, os, sys, time
from tracing_2pc.telemetry import lifecycle, spans
def timed(function, *arguments):
    start = time.monotonic()
    return function(*arguments), time.monotonic() - start
def made(count=1):
    for _ in range(count):
        with spans.span("tpc.decide"):
            pass
lifecycle.start("job")
"""


def run(program: str, **environment: str) -> tuple[dict[str, Any], float]:
    """Run it; return what it printed last and how long it took to exit after that."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", START + program],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    with process:
        line = process.stdout.readline()
        printed = time.monotonic()
        assert process.wait(60) == 0
    return json.loads(line), time.monotonic() - printed


@contextlib.contextmanager
def hanging() -> Iterator[str]:
    """A collector that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    """A collector that is not there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


class Collector(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.bodies: list[bytes] = []
        self.connections: set[tuple[str, int]] = set()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        self.server.connections.add(self.client_address)
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def address(collector: Collector) -> str:
    return f"http://127.0.0.1:{collector.server_port}"


def test_spans_reach_a_collector(collector):
    printed, _ = run(
        "made(3); print(json.dumps([lifecycle.flush(20), lifecycle.dropped()]))",
        OTEL_EXPORTER_OTLP_ENDPOINT=address(collector),
    )
    assert printed == [True, 0]
    assert sum(body.count(b"tpc.decide") for body in collector.bodies) == 3
    assert b"job" in collector.bodies[0]


def test_spans_that_were_not_flushed_are_sent_at_exit(collector):
    run("made(2); print(0)", OTEL_EXPORTER_OTLP_ENDPOINT=address(collector))
    assert sum(body.count(b"tpc.decide") for body in collector.bodies) == 2


@pytest.mark.parametrize("broken", [hanging, refusing])
def test_a_dead_collector_costs_one_short_wait(broken):
    """A flush returns in time, the next one at once, and exit is not held up."""
    with broken() as url:
        printed, exit_seconds = run(
            "made()\n"
            "first = timed(lifecycle.flush, 0.5)\n"
            "made()\n"
            "print(json.dumps([first, timed(lifecycle.flush, 5.0)]))\n"
            "sys.stdout.flush()",
            OTEL_EXPORTER_OTLP_ENDPOINT=url,
            OTEL_EXPORTER_OTLP_TIMEOUT="30",
        )
    (first, waited), (second, at_once) = printed
    assert (first, second) == (False, False)
    assert waited < 3
    assert at_once < 2
    assert exit_seconds < 6


def test_flushing_resumes_when_an_export_has_succeeded():
    """A collector that comes back is used again, without a restart."""
    printed, _ = run(
        """
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
alive = threading.Event()
class Answer(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        alive.wait()
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args): pass
server = ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Answer)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
made()
late = [lifecycle.flush(0.3), lifecycle.flush(0.3)]
alive.set()
resumed, until = False, time.monotonic() + 40
while not resumed and time.monotonic() < until:
    made()
    resumed = lifecycle.flush(5)
    time.sleep(0.1)
print(json.dumps([*late, resumed]))
""",
        **_port_and_endpoint(),
    )
    assert printed == [False, False, True]


def _port_and_endpoint() -> dict[str, str]:
    with refusing() as url:
        port = url.rpartition(":")[2]
    return {"PORT": port, "OTEL_EXPORTER_OTLP_ENDPOINT": url}


def test_what_is_lost_is_counted():
    """Spans that no export could send, and those that found the queue full."""
    with refusing() as url:
        failed, _ = run(
            "made(3); lifecycle.flush(30); print(lifecycle.dropped())",
            OTEL_EXPORTER_OTLP_ENDPOINT=url,
        )
    with hanging() as url:
        overflowed, _ = run(
            "made(50); print(lifecycle.dropped())",
            OTEL_EXPORTER_OTLP_ENDPOINT=url,
            OTEL_BSP_MAX_QUEUE_SIZE="8",
            OTEL_BSP_MAX_EXPORT_BATCH_SIZE="4",
        )
    assert failed == 3
    assert 50 - 8 - 2 * 4 <= overflowed <= 50 - 8


def test_many_processes_write_one_trace_file(tmp_path: Path):
    """A child of a fork goes on in the same trace; a killed process loses nothing."""
    file = tmp_path / "trace"
    run(
        """
with spans.span("tpc.transaction", attributes={"tpc.batch": 1}):
    for partition in range(4):
        if os.fork() == 0:
            with spans.span("tpc.branch"):
                made(50)
            os.kill(os.getpid(), 9)
    for _ in range(4):
        os.wait()
print(0)
""",
        TPC_TRACE_FILE=str(file),
    )
    lines = read_trace_file(file)
    assert span_tree(lines) == [
        "tpc.transaction",
        *(["  tpc.branch", *["    tpc.decide"] * 50] * 4),
    ]
    assert set(lines[-1]) == {
        "name",
        "trace_id",
        "span_id",
        "parent_id",
        "kind",
        "start",
        "end",
        "service",
        "attributes",
        "links",
        "status",
    }
    assert lines[-1]["attributes"] == {"tpc.batch": 1}
    assert (lines[-1]["service"], lines[-1]["kind"]) == ("job", "INTERNAL")


def test_a_forked_worker_sends_its_own_spans(collector):
    """On a connection of its own: two processes on one would garble both."""
    printed, _ = run(
        """
made()
lifecycle.flush(20)
read, write = os.pipe()
if os.fork() == 0:
    made(2)
    os.write(write, b"1" if lifecycle.flush(20) else b"0")
    os._exit(0)
os.wait()
print(os.read(read, 1).decode())
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=address(collector),
    )
    assert printed == 1
    assert len(collector.connections) == 2
    assert sum(body.count(b"tpc.decide") for body in collector.bodies) == 3


def test_the_environment_names_the_service(tmp_path: Path):
    file = tmp_path / "trace"
    run("made(); print(0)", TPC_TRACE_FILE=str(file), OTEL_SERVICE_NAME="mine")
    assert read_trace_file(file)[0]["service"] == "mine"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_SDK_DISABLED": "true", "TPC_TRACE_FILE": "/nowhere"},
        {
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        },
    ],
)
def test_nothing_starts_unless_asked_for(environment):
    printed, _ = run(
        "made(); loaded = [m for m in sys.modules if m == 'opentelemetry.sdk']\n"
        "print(json.dumps([lifecycle.is_set(), lifecycle.flush(), loaded]))",
        **environment,
    )
    assert printed == [False, True, []]


def test_a_provider_of_the_program_is_used_as_it_is(tmp_path: Path):
    file = tmp_path / "trace"
    printed, _ = run(
        """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
mine = TracerProvider()
flushed = []
mine.force_flush = lambda *a: flushed.append(1)
trace.set_tracer_provider(mine)
os.environ["TPC_TRACE_FILE"] = os.environ["FILE"]
lifecycle.start("job")
made()
print(json.dumps([trace.get_tracer_provider() is mine, lifecycle.flush(5), flushed]))
""",
        FILE=str(file),
    )
    assert printed == [True, True, [1]]
    assert not file.exists()


def test_settings_travel_without_secrets(monkeypatch: pytest.MonkeyPatch):
    """What an executor on another host is told, and what its own environment keeps."""
    secrets = {
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=secret",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://user:secret@collector:4318",
        "VENDOR_TOKEN": "secret",
        "TPC_TOKEN": "secret",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "job")
    monkeypatch.setenv("TPC_TRACE_FILE", "trace")
    settings = lifecycle.telemetry_settings()
    assert (
        settings.items()
        >= {"OTEL_SERVICE_NAME": "job", "TPC_TRACE_FILE": "trace"}.items()
    )
    assert "secret" not in repr(settings)

    monkeypatch.setenv("OTEL_SERVICE_NAME", "own")
    monkeypatch.delenv("TPC_TRACE_FILE")
    lifecycle.apply({**settings, "PATH": "evil", "TPC_TOKEN_NEW": "x"})
    after = lifecycle.telemetry_settings()
    assert (after["OTEL_SERVICE_NAME"], after["TPC_TRACE_FILE"]) == ("own", "trace")
