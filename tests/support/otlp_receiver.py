"""Somewhere that any signal is sent to by OTLP, over HTTP or gRPC, on loopback."""

from __future__ import annotations

import contextlib
import http.server
import queue
import ssl
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

from support.served import StandIn, served
from support.waiting import AT_LAST

SIGNALS = ("TRACES", "METRICS", "LOGS")
_SERVICES = {"trace": "TRACES", "metrics": "METRICS", "logs": "LOGS"}


class Request(NamedTuple):
    """What came: by which protocol, of which signal, with which headers."""

    protocol: str
    signal: str
    headers: Mapping[str, str]
    body: bytes


class OtlpReceiver:
    """What came, in order. `refuse_first` is a status of gRPC, for one answer.

    `statuses` are of HTTP, for signals that are not taken.
    """

    def __init__(self) -> None:
        self.endpoint = ""
        self.requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.go_on = threading.Event()
        self.go_on.set()
        self.refuse_first: grpc.StatusCode | None = None
        self.statuses: dict[str, int] = {}

    def next(self) -> Request:
        return self.requests.get(timeout=AT_LAST)

    def all(self) -> list[Request]:
        """Return what has come until now, and nobody has asked for."""
        return [self.next() for _ in range(self.requests.qsize())]

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Answer nobody inside of the block; over HTTP."""
        self.go_on.clear()
        try:
            yield
        finally:
            self.go_on.set()


@contextlib.contextmanager
def receiving(protocol: str, certificate: Path | None = None) -> Iterator[OtlpReceiver]:
    """Take what comes; with a certificate by TLS, from clients that have it too."""
    receiver = OtlpReceiver()
    serve = _http if protocol == "http/protobuf" else _grpc
    with serve(receiver, certificate):
        yield receiver


@contextlib.contextmanager
def _http(receiver: OtlpReceiver, certificate: Path | None) -> Iterator[None]:
    class Connection(StandIn):
        def do_POST(self) -> None:  # noqa: N802 - as http.server has it
            body = self.body()
            if self.headers.get("Content-Encoding") == "gzip":
                body = zlib.decompress(body, 32 + zlib.MAX_WBITS)
            headers = {k.lower(): v for k, v in self.headers.items()}
            signal = self.path.removeprefix("/v1/").upper()
            receiver.go_on.wait(AT_LAST)
            receiver.requests.put(Request("http/protobuf", signal, headers, body))
            with contextlib.suppress(OSError):  # the client may have gone
                self.answer(receiver.statuses.get(signal, 200))

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # a client that does not trust us, or that we do not trust

    server = Server(("127.0.0.1", 0), Connection)
    scheme = "http"
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        context.load_verify_locations(certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    receiver.endpoint = f"{scheme}://127.0.0.1:{server.server_port}"
    with served(server):
        yield


@contextlib.contextmanager
def _grpc(receiver: OtlpReceiver, certificate: Path | None) -> Iterator[None]:
    class Handler(grpc.GenericRpcHandler):
        def service(self, call: Any) -> Any:
            signal = _SERVICES[call.method.split(".")[3]]
            headers = dict(call.invocation_metadata)

            def export(body: bytes, context: Any) -> bytes:
                receiver.requests.put(Request("grpc", signal, headers, body))
                if (status := receiver.refuse_first) is not None:
                    receiver.refuse_first = None
                    context.abort(status, "once")
                return b""

            return grpc.unary_unary_rpc_method_handler(export)

    server = grpc.server(ThreadPoolExecutor(2), [Handler()])
    if certificate is None:
        port, scheme = server.add_insecure_port("127.0.0.1:0"), "http"
    else:
        there = certificate.read_bytes()
        pair = [(certificate.with_suffix(".key").read_bytes(), there)]
        credentials = grpc.ssl_server_credentials(pair, there, False)
        port, scheme = server.add_secure_port("127.0.0.1:0", credentials), "https"
    receiver.endpoint = f"{scheme}://127.0.0.1:{port}"
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


CUMULATIVE = 2


def log_records(request: Request) -> list[Any]:
    """Return the log records of a request."""
    sent = logs_service_pb2.ExportLogsServiceRequest.FromString(request.body)
    scopes = [s for r in sent.resource_logs for s in r.scope_logs]
    return [record for scope in scopes for record in scope.log_records]


class Sent(NamedTuple):
    """What one process has said last: its name, and samples as in `support.metrics`."""

    service: str
    samples: dict[str, float]
    units: dict[str, str]


def sent(requests: Iterable[Request]) -> list[Sent]:
    """Return what each process has said last of its metrics."""
    newest: dict[str, Sent] = {}
    for request in requests:
        if request.signal == "METRICS":
            newest |= _processes(request.body)
    return list(newest.values())


def _processes(body: bytes) -> Iterator[tuple[str, Sent]]:
    told = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
    for of_resource in told.resource_metrics:
        about = {a.key: a.value.string_value for a in of_resource.resource.attributes}
        metrics = [m for s in of_resource.scope_metrics for m in s.metrics]
        yield (
            about["service.instance.id"],
            Sent(
                about["service.name"],
                dict(sample for metric in metrics for sample in _samples(metric)),
                {metric.name: metric.unit for metric in metrics},
            ),
        )


def _samples(metric: Any) -> Iterator[tuple[str, float]]:
    held = getattr(metric, metric.WhichOneof("data"))
    assert getattr(held, "aggregation_temporality", CUMULATIVE) == CUMULATIVE
    for point in held.data_points:
        labels = ",".join(f'{a.key}="{a.value.string_value}"' for a in point.attributes)
        inside = f"{{{labels}}}" if labels else ""
        if metric.WhichOneof("data") == "histogram":
            yield f"{metric.name}_count{inside}", point.count
        else:
            yield f"{metric.name}{inside}", getattr(point, point.WhichOneof("value"))
