"""A transaction in SkyWalking's segments, what a span says there, hostile headers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry.instrumentation.requests import RequestsInstrumentor
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import make_url
from support.skywalking import Oap, World
from support.transaction import traced_tasks
from support.waiting import until

from bench.driver import apply, coordinator
from bench.records import numbers
from tracing_2pc.skywalking import in_use
from tracing_2pc.skywalking.propagator import SkyWalkingPropagator
from tracing_2pc.store.engines.urls import describe_place
from tracing_2pc.tracing import propagation
from tracing_2pc.tracing.decorator import requests_headers

Tags = dict[str, str]


@pytest.fixture
def global_world(bridge, monkeypatch) -> Iterator[World]:
    """The bridge's provider as the process's own, and `sw8` in its headers.

    `requests` keeps the provider that it was instrumented with: it is let go again.
    """
    both = CompositePropagator([SkyWalkingPropagator()])
    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", both)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", bridge.provider)
    yield bridge
    if requests_headers.carried:
        RequestsInstrumentor().uninstrument()
        requests_headers.carried = False


def tags(span: dict[str, Any]) -> Tags:
    return {tag["key"]: tag["value"] for tag in span["tags"]}


def test_a_transaction_is_few_segments(global_world, log, sink):
    """The driver two, though its tasks run in it here; each request one."""
    driver = coordinator(log, sink.participants)
    apply(driver, 0, traced_tasks(sink, [numbers(3), numbers(3)]))
    tree = global_world.tree()
    assert [line for line in tree if not line.startswith(" ")] == [tree[0]]
    assert tree[0] == "Local tpc.transaction"
    firsts = Counter(g["spans"][0]["operationName"] for g in global_world.oap.segments)
    assert firsts == {
        "tpc.transaction": 1,
        "POST /prepare": 4,
        "tpc.deliver": 1,
        "tpc.finish": 1,
        "POST /commit": 2,
    }
    ids = {g["traceId"] for g in global_world.oap.segments}
    assert len(ids) == 1


def test_what_a_span_says(bridge):
    """By the names that SkyWalking's pages look for."""
    about = {
        "http.request.method": "POST",
        "http.response.status_code": 503,
        "url.full": "http://user@ledger:8081/commit?x=1",
        "tpc.replay": False,
        "tpc.transaction.id": "orders.7.1",
    }
    with (
        contextlib.suppress(ValueError),
        bridge.tracer.start_as_current_span(
            "n" * 200, kind=SpanKind.CLIENT, attributes=about
        ) as span,
    ):
        span.set_status(StatusCode.ERROR)
        raise ValueError("no")
    bridge.tree()
    (found,) = bridge.oap.spans()
    assert found["operationName"] == "n" * 150
    assert (found["spanType"], found["spanLayer"]) == ("Exit", "Http")
    assert found["peer"] == "ledger:8081"
    assert found["isError"] is True
    said = tags(found)
    assert said["http.method"] == "POST"
    assert said["http.status_code"] == "503"
    assert said["tpc.replay"] == "false"
    assert said["otel.trace_id"] == f"{span.get_span_context().trace_id:032x}"
    (log,) = found["logs"]
    data = {item["key"]: item["value"] for item in log["data"]}
    assert (data["event"], data["error.kind"], data["message"]) == (
        "error",
        "ValueError",
        "no",
    )


def test_a_phase_is_an_endpoint_of_the_job(bridge):
    """Its page has latency and rate of each phase. Other local spans are none."""
    about = {"tpc.phase": "commit"}
    with (
        bridge.tracer.start_as_current_span("Sink.commit", attributes=about),
        bridge.tracer.start_as_current_span("other"),
        bridge.tracer.start_as_current_span(
            "call", kind=SpanKind.CLIENT, attributes=about
        ),
    ):
        pass
    bridge.tree()
    marked = {s["operationName"]: tags(s).get("x-le") for s in bridge.oap.spans()}
    assert marked == {
        "Sink.commit": '{"logic-span":true}',
        "other": None,
        "call": None,
    }


def test_a_link_to_another_trace_is_a_tag(bridge):
    """Its page shows only its own trace: each other one is named, once, if it fits."""
    with bridge.tracer.start_as_current_span("before") as before:
        pass
    links = [trace.Link(before.get_span_context())] * 2
    bridge.tracer.start_span("linked", links=links).end()
    made = (trace.SpanContext(n, 1, is_remote=True) for n in range(1, 20))
    bridge.tracer.start_span("many", links=[trace.Link(c) for c in made]).end()
    bridge.tree()
    said = {s["operationName"]: tags(s) for s in bridge.oap.spans()}
    assert "otel.link" not in said["before"]
    assert said["linked"]["otel.link"] == f"{before.get_span_context().trace_id:032x}"
    assert said["many"]["otel.link"] == ",".join(f"{n:032x}" for n in range(1, 8))
    assert [s["refs"] for s in bridge.oap.spans()] == [[], [], []]


@pytest.mark.parametrize(
    ("attributes", "layer"),
    [
        ({"db.system.name": "postgresql"}, "Database"),
        ({"messaging.system": "kafka"}, "Unknown"),
        ({"messaging.system": "kafka", "server.address": "b"}, "MQ"),
        ({"rpc.system": "grpc"}, "RPCFramework"),
        ({}, "Unknown"),
    ],
)
def test_layers(bridge, attributes, layer):
    bridge.tracer.start_span("x", kind=SpanKind.CLIENT, attributes=attributes).end()
    bridge.tree()
    assert bridge.oap.spans()[0]["spanLayer"] == layer


def test_a_database_without_an_address_is_called_by_its_name(bridge):
    """SkyWalking's topology then shows it; without a peer it would not."""
    place = describe_place(make_url("sqlite:////srv/data/ledger.db"))
    bridge.tracer.start_span("INSERT", kind=SpanKind.CLIENT, attributes=place).end()
    bridge.tree()
    (found,) = bridge.oap.spans()
    assert (found["spanLayer"], found["peer"]) == ("Database", "ledger.db")


def test_a_call_around_a_call_is_counted_once(bridge):
    opened = bridge.tracer.start_as_current_span
    with opened("prepare", kind=SpanKind.CLIENT), opened("POST", kind=SpanKind.CLIENT):
        pass
    assert bridge.tree() == ["Local prepare", "  Exit POST"]


def test_the_process_says_who_it_is(bridge):
    bridge.tracer.start_span("x").end()
    until(lambda: len(bridge.oap.posts) == 2)
    told = {path: body for path, _, body in bridge.oap.posts}
    about = told["/v3/management/reportProperties"]
    assert about["service"] == "orders"
    assert about["serviceInstance"].startswith(f"{os.getpid()}@")
    assert {"key": "language", "value": "python"} in about["properties"]


def test_a_header_that_cannot_be_read_is_counted(bridge):
    before = propagation.rejected()["sw8"]
    for value in ("1-a", "", "x" * 5000):
        context = SkyWalkingPropagator().extract({"sw8": value}, trace.Context())
        assert not trace.get_current_span(context).get_span_context().is_valid
    assert propagation.rejected()["sw8"] == before + 2


def test_correlation_is_baggage(bridge):
    context = baggage.set_baggage("sw.tenant", "a", baggage.set_baggage("mine", "b"))
    headers: dict[str, str] = {}
    with bridge.tracer.start_as_current_span("x", context) as span:
        inside = trace.set_span_in_context(span, context)
        SkyWalkingPropagator().inject(headers, inside)
    received = SkyWalkingPropagator().extract(headers, trace.Context())
    assert baggage.get_all(received) == {"sw.tenant": "a"}
    del headers["sw8"]  # else it would go on with one of ours
    assert not baggage.get_all(SkyWalkingPropagator().extract(headers, trace.Context()))


PROGRAM = """
import os, sys
from opentelemetry import trace
tracer = trace.get_tracer("program")
with tracer.start_as_current_span("before"):
    pass
if sys.argv[1] == "fork":
    with tracer.start_as_current_span("parent"):
        if os.fork() == 0:
            with tracer.start_as_current_span("child"):
                pass
            trace.get_tracer_provider().force_flush(10000)
            os._exit(0)
        os.wait()
trace.get_tracer_provider().force_flush(10000)
"""


@contextlib.contextmanager
def _told(oap: Oap, tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    yield (
        program,
        {
            **os.environ,
            "OTEL_SERVICE_NAME": "told",
            "OTEL_TRACES_EXPORTER": "skywalking",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_PROPAGATORS": "tracecontext,skywalking",
            "TPC_SKYWALKING_ENDPOINT": oap.url,
        },
    )


@pytest.mark.parametrize("how", ["plain", "fork"])
def test_the_environment_alone_turns_it_on(oap, tmp_path, how):
    """Through OpenTelemetry's own start; a forked child sends its own, once."""
    instrument = Path(sys.executable).parent / "opentelemetry-instrument"
    with _told(oap, tmp_path) as (program, environment):
        command = [str(instrument), sys.executable, str(program), how]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    made = ["before"] if how == "plain" else ["before", "child", "parent"]
    until(lambda: len(oap.spans()) >= len(made))
    assert sorted(s["operationName"] for s in oap.spans()) == made
    assert {g["service"] for g in oap.segments} == {"told"}
    assert len({g["serviceInstance"] for g in oap.segments}) == (
        2 if how == "fork" else 1
    )


def test_importing_the_package_imports_no_sdk():
    """Who only parses headers needs none."""
    code = (
        "import sys; from tracing_2pc.skywalking import parse_sw8; "
        "assert parse_sw8('') is None; "
        "sys.exit(any(m.startswith('opentelemetry.sdk') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_processor_in_use_is_the_last_one(bridge):
    """Its places are what headers speak of."""
    assert in_use.processor() is bridge.processor
