"""What SkyWalking costs beside OTLP, in the driver's part of a transaction.

Both arms trace the same nine spans by the library's own functions: the reserved root,
begin, decide, deliver, finish, and for each of two participants the sink's phase and
the request, with the headers that go out. Both send all of it to a collector in another
process, which reads and answers. The base has OTLP alone and W3C's headers; the
library's arm has SkyWalking's segments as well, and its headers.

| goal | what both backends are measured on, and OTLP alone | limit |
|---|---|---|
| A8 | the spans: each gets its place | 1.40 |
| A8-headers | the spans, and `sw8` in and out | 1.40 |
| A8-process | all of it, with conversion and sending | 1.40 |

Time is CPU time: of the thread that works, or, in the last one, of the process.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from opentelemetry import propagate
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from bench import pair
from bench.deco import in_force
from tracing_2pc.core import names
from tracing_2pc.core.model import Root, TransactionId, TransactionRecord
from tracing_2pc.core.states import Decision, TransactionState
from tracing_2pc.skywalking import in_use
from tracing_2pc.skywalking.processor import SkyWalkingProcessor
from tracing_2pc.skywalking.propagator import SkyWalkingPropagator
from tracing_2pc.skywalking.sender import Collector
from tracing_2pc.tracing.spans import client_span, current_carrier, span
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

LIMITS: Final = dict.fromkeys(("A8", "A8-headers", "A8-process"), 1.40)
TRANSACTIONS: Final = 50
PARTICIPANTS: Final = {"ledger": 8081, "notifier": 8082}
_OTLP: Final = "/v1/traces"
_DEFAULT: Final = [TraceContextTextMapPropagator(), W3CBaggagePropagator()]
_W3C: Final = CompositePropagator(_DEFAULT)
_BOTH: Final = CompositePropagator([*_DEFAULT, SkyWalkingPropagator()])

_SINK: Final = """
import http.server

class Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink)
print(server.server_port, flush=True)
server.serve_forever()
"""


def measure(rounds: int) -> Iterator[dict[str, Any]]:
    """Measure both; yield a line for each."""
    with _sink() as url:
        base, library = _provider(url), _provider(url)
        skywalking = SkyWalkingProcessor(Collector(url, "bench"))
        library.add_span_processor(skywalking)
        for goal, headers, clock in (
            ("A8", _W3C, time.thread_time_ns),
            ("A8-headers", _BOTH, time.thread_time_ns),
            ("A8-process", _BOTH, time.process_time_ns),
        ):
            arms = {
                "library": _block(library, headers, skywalking, clock),
                "base": _block(base, _W3C, None, clock),
            }
            durations = pair.measure(arms, rounds)
            ratio = pair.compare(durations["library"], durations["base"])
            yield pair.line(goal, ratio, LIMITS[goal], {"transactions": TRANSACTIONS})
        for provider in (base, library):
            provider.shutdown()


@contextlib.contextmanager
def _sink() -> Iterator[str]:
    """Run a collector that takes everything; yield its URL."""
    arguments = [sys.executable, "-c", _SINK]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def _provider(url: str) -> TracerProvider:
    """Make what the library makes, so that a block does not wait for its schedule."""
    resource = Resource({SERVICE_NAME: "bench"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(
            OTLPSpanExporter(url + _OTLP),
            max_queue_size=1 << 16,
            schedule_delay_millis=600_000,
        )
    )
    return provider


def _block(
    provider: TracerProvider,
    propagator: TextMapPropagator,
    skywalking: SkyWalkingProcessor | None,
    clock: Callable[[], int],
) -> pair.Block:
    """Return an arm: so many transactions, and in the process's time their export."""

    def block() -> float:
        with in_force(provider), _headers(propagator, skywalking):
            started = clock()
            for number in range(TRANSACTIONS):
                transaction(number)
            elapsed = clock() - started
            provider.force_flush()
        return elapsed if clock is time.thread_time_ns else clock() - started

    return block


@contextlib.contextmanager
def _headers(
    propagator: TextMapPropagator, skywalking: SkyWalkingProcessor | None
) -> Iterator[None]:
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(propagator)
    if skywalking:
        in_use.use(skywalking)
    try:
        yield
    finally:
        in_use.use(None)
        propagate.set_global_textmap(before)


def transaction(number: int) -> None:
    """Trace what a driver does for one batch."""
    tracing = OpenTelemetryTracing()
    root = tracing.reserve()
    carrier, record = root.carrier, _record(number, root)
    for step in (names.BEGIN, names.DECIDE):
        with tracing.step(step, carrier, record):
            pass
    tracing.export_root(record, taken_over=False)
    with tracing.step(names.DELIVER, carrier, record) as deliver:
        deliver.end()
        for name, port in PARTICIPANTS.items():
            with span("Sink.commit", attributes={"tpc.phase": "commit"}):
                _request(record, name, port)
        with tracing.step(names.FINISH, carrier, record):
            pass


def _request(record: TransactionRecord, name: str, port: int) -> None:
    about: dict[str, str | int | float | bool] = {
        "http.request.method": "POST",
        "tpc.participant": name,
        "tpc.transaction.id": str(record.id),
        "server.address": "127.0.0.1",
        "server.port": port,
    }
    with client_span("POST /commit", about) as request:
        current_carrier()
        request.set("http.response.status_code", 200)


def _record(number: int, root: Root) -> TransactionRecord:
    now = time.time()
    return TransactionRecord(
        TransactionId("bench", number, 1),
        "run",
        TransactionState.COMMITTING,
        Decision.COMMIT,
        tuple(PARTICIPANTS),
        frozenset(),
        root.carrier,
        now,
        decided=now,
        **root.facts,
    )
