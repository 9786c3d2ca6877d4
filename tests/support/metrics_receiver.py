"""Somewhere that metrics are sent to by OTLP, over HTTP or gRPC, on loopback."""

from __future__ import annotations

import contextlib
import http.server
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2,
    metrics_service_pb2_grpc,
)

from support.served import served

Request = metrics_service_pb2.ExportMetricsServiceRequest
CUMULATIVE = 2


class Sent(NamedTuple):
    """What one process has said last: its name, and samples as in `support.metrics`."""

    service: str
    samples: dict[str, float]
    units: dict[str, str]


class Receiver:
    """What came, the newest of each process."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.asked = threading.Semaphore(0)
        self._newest: dict[str, Sent] = {}

    def take(self, request: Any) -> None:
        for of_resource in request.resource_metrics:
            about = {
                a.key: a.value.string_value for a in of_resource.resource.attributes
            }
            metrics = [m for s in of_resource.scope_metrics for m in s.metrics]
            instance = about["service.instance.id"]
            self._newest[instance] = Sent(
                about["service.name"],
                dict(sample for metric in metrics for sample in _samples(metric)),
                {metric.name: metric.unit for metric in metrics},
            )
        self.asked.release()

    def sent(self) -> list[Sent]:
        return list(self._newest.values())


@contextlib.contextmanager
def receiving(protocol: str, status: int = 200) -> Iterator[Receiver]:
    """Take what comes; over HTTP with this status, for metrics only."""
    receiver = Receiver()
    serve = _http(receiver, status) if protocol == "http/protobuf" else _grpc(receiver)
    with serve:
        yield receiver


@contextlib.contextmanager
def _grpc(receiver: Receiver) -> Iterator[None]:
    class Service(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            receiver.take(request)
            return metrics_service_pb2.ExportMetricsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Service(), server)
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


@contextlib.contextmanager
def _http(receiver: Receiver, status: int) -> Iterator[None]:
    class Connection(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = zlib.decompress(body, 32 + zlib.MAX_WBITS)
            is_metrics = self.path == "/v1/metrics"
            if is_metrics and status == 200:
                receiver.take(Request.FromString(body))
            elif is_metrics:
                receiver.asked.release()
            self.send_response(status if is_metrics else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Connection)
    receiver.endpoint = f"http://127.0.0.1:{server.server_port}"
    with served(server):
        yield


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
