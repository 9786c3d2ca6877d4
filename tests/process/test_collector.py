"""The collector takes what real exporters send, says what OTLP says, and misbehaves."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from support.programs import ran
from support.texts import texts
from support.waiting import AT_LAST, AT_ONCE, PATIENT

from tracing_2pc.testing import Collector, read_trace_file, span_tree

PROTOBUF = "application/x-protobuf"
SENDER = """
import sys
from tracing_2pc.tracing.sdk import lifecycle
from tracing_2pc.tracing import spans
lifecycle.start("job")
about = {"tpc.transaction.id": sys.argv[1], "tpc.batch": 7, "tpc.replay": True}
with spans.span("tpc.transaction", attributes=about):
    with spans.client_span("POST /commit"):
        pass
    try:
        with spans.span("tpc.decide"):
            raise ValueError
    except ValueError:
        pass
assert lifecycle.flush({patience})
""".replace("{patience}", f"{PATIENT}")


def send(collector: Collector, *arguments: str, **environment: str) -> None:
    """Let a process of its own make a trace, and export it."""
    subprocess.run(
        [sys.executable, "-W", "error", "-c", SENDER, *arguments],
        env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, **environment},
        check=True,
    )


def post(
    collector: Collector, body: bytes = b"", path: str = "/v1/traces", **headers: str
) -> tuple[int, str, bytes]:
    """Post like an exporter, unless told otherwise; return what is answered."""
    host, port = collector.endpoint.removeprefix("http://").split(":")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection(host, int(port), timeout=AT_LAST)
    with contextlib.closing(connection):
        connection.request("POST", path, body, {"Content-Type": PROTOBUF, **named})
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()


def in_thread(collector: Collector, answers: list[Any]) -> threading.Thread:
    """Post in the background; what comes of it is appended."""

    def ask() -> None:
        try:
            answers.append(post(collector)[0])
        except (OSError, http.client.HTTPException) as error:
            answers.append(type(error))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
def test_spans_are_those_of_a_trace_file(tmp_path, compression):
    """What arrives is what the same process wrote to a file, field by field."""
    file = tmp_path / "trace.jsonl"
    with Collector() as collector:
        told = {"OTEL_EXPORTER_OTLP_COMPRESSION": compression}
        send(collector, "orders.7.1", TPC_TRACE_FILE=str(file), **told)
    by_id = {span["span_id"]: span for span in read_trace_file(file)}
    assert {span["span_id"]: span for span in collector.spans()} == by_id
    assert len(by_id) == 3
    assert span_tree(collector.spans()) == [
        "tpc.transaction",
        "  POST /commit",
        "  tpc.decide",
    ]


def test_links_and_lists_are_read():
    """A link is the ids of what it points to; an attribute may be a list."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    request = trace_service_pb2.ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(name="n")
    span.links.add(trace_id=b"\1" * 16, span_id=b"\2" * 8)
    values = span.attributes.add(key="sizes").value.array_value.values
    values.add(int_value=1)
    values.add(double_value=0.5)
    with Collector() as collector:
        assert post(collector, request.SerializeToString()) == (200, PROTOBUF, b"")
    (read,) = collector.spans()
    assert read["links"] == [{"trace_id": "01" * 16, "span_id": "02" * 8}]
    assert read["attributes"] == {"sizes": [1, 0.5]}
    assert (read["service"], read["parent_id"]) == (None, None)


def test_a_trace_is_found_by_its_transaction():
    """All its spans, also those that don't name it, and no other's."""
    with Collector() as collector:
        send(collector, "orders.7.1")
        send(collector, "orders.8.1")
    assert len(collector.spans()) == 6
    assert len(collector.trace_of("orders.7.1")) == 3
    assert len({span["trace_id"] for span in collector.trace_of("orders.7.1")}) == 1
    assert collector.trace_of("orders.9.1") == []


def test_a_refused_sender_tries_again():
    """503 means later: what was refused comes when it is accepted, once."""
    with Collector() as collector:
        collector.refuse()
        sender = threading.Thread(
            target=send,
            args=(collector, "orders.7.1"),
            kwargs={"OTEL_EXPORTER_OTLP_TIMEOUT": f"{PATIENT}"},
        )
        sender.start()
        collector.wait_for(lambda _: collector.connections)
        assert collector.spans() == []
        collector.accept()
        collector.wait_for(lambda spans: len(spans) == 3)
        sender.join()
    assert len(collector.spans()) == 3


def test_what_hangs_is_answered_when_it_accepts_again():
    answers: list[Any] = []
    with Collector() as collector:
        collector.hang()
        thread = in_thread(collector, answers)
        collector.wait_for(lambda _: collector.connections == 1)
        assert answers == []
        collector.accept()
        thread.join()
    assert answers == [200]


@pytest.mark.parametrize("pause", [None, PATIENT])
def test_the_end_holds_nobody_up(pause):
    """What waits for its answer then gets none, and no thread is left."""
    before = threading.active_count()
    answers: list[Any] = []
    with Collector() as collector:
        collector.hang() if pause is None else collector.answer_after(pause)
        thread = in_thread(collector, answers)
        collector.wait_for(lambda _: collector.connections == 1)
    thread.join()
    assert answers == [http.client.RemoteDisconnected]
    assert threading.active_count() == before
    with pytest.raises(ConnectionRefusedError):
        post(collector)


def test_an_idle_connection_does_not_hold_up_the_end():
    with Collector() as collector:
        host, port = collector.endpoint.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=AT_LAST)
        for _ in range(2):
            connection.request("POST", "/v1/traces", b"", {"Content-Type": PROTOBUF})
            assert connection.getresponse().read() == b""
        assert collector.connections == 1
    connection.close()


def test_a_slow_answer_is_an_answer():
    with Collector() as collector:
        collector.answer_after(AT_ONCE)
        started = time.monotonic()
        assert post(collector)[0] == 200
    assert time.monotonic() - started >= AT_ONCE


REFUSED: list[tuple[int, dict[str, Any]]] = [
    (400, {"body": b"\xff"}),
    (400, {"Content_Encoding": "gzip"}),
    (404, {"path": "/v1/metrics"}),
    (411, {"Content_Length": "many"}),
    (415, {"Content_Type": "application/json"}),
    (415, {"Content_Encoding": "br"}),
]


@pytest.mark.parametrize(("status", "request_"), REFUSED)
def test_what_it_does_not_take(status, request_):
    """The status says why, and the body is the message that OTLP asks for."""
    from google.rpc.status_pb2 import Status

    with Collector() as collector:
        answered, kind, body = post(collector, **request_)
    assert (answered, kind) == (status, PROTOBUF)
    assert Status.FromString(body).message == http.client.responses[status]
    assert collector.spans() == []


def test_a_wait_in_vain_says_what_there_is():
    with Collector() as collector:
        send(collector, "orders.7.1")
        with pytest.raises(TimeoutError, match=texts("process")["a wait in vain"]):
            collector.wait_for(lambda spans: len(spans) > 3, 0)


def test_it_comes_back_where_it_was():
    """On a port of the test's choice: a collector that died and was started again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for _ in range(2):
        with Collector(port) as collector:
            assert collector.endpoint == f"http://127.0.0.1:{port}"
            assert post(collector)[0] == 200


def test_importing_it_does_not_import_protobuf():
    """Who tests without traces needs no extra."""
    program = "import sys, tracing_2pc.testing; print('google.protobuf' in sys.modules)"
    done = ran([sys.executable, "-c", program])
    assert (done.returncode, done.stdout) == (0, "False\n")
