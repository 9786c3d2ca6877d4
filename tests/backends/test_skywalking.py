"""What a real SkyWalking shows of a transaction, beside its own agents."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from sysconfig import get_path

import pytest
from opentelemetry import trace
from support.skywalking import World
from support.telemetry import PATH
from support.waiting import AT_LAST, until

from backends.backend import Loopback
from backends.backend import trace_of as otlp_trace_of
from backends.conftest import ASKS_OAP, JARS
from backends.demo_path import DemoPath, demo_path, run
from backends.oap import Oap, oap, ready, tree
from participants.processes import Process, free_ports, stopping
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.trace_sources import read_trace
from tracing_2pc.skywalking import in_use, parse_sw8, propagator
from tracing_2pc.skywalking import segments as skywalking_segments
from tracing_2pc.testing import Collector, FaultProxy

AGENT = "TPC_STOCK_AGENT"
HERE = Path(__file__).parent
MANUAL = (HERE.parents[1] / "docs" / "skywalking.md").read_text()
PYTHON = {"PYTHONPATH": PATH}
pytestmark = ASKS_OAP


@pytest.fixture(scope="module")
def path(collector, tmp_path_factory) -> Iterator[DemoPath]:
    """The demo's services; both backends are on."""
    told = {
        "OTEL_PROPAGATORS": "tracecontext,baggage,skywalking",
        "OTEL_TRACES_EXPORTER": "otlp,skywalking",
        "TPC_SKYWALKING_ENDPOINT": collector.url,
    }
    with Collector() as loopback, _environment(told):
        folder = tmp_path_factory.mktemp("services")
        with demo_path(folder, loopback.endpoint) as running:
            running.loopback = Loopback(loopback)  # type: ignore[attr-defined]
            yield running


@contextlib.contextmanager
def _environment(told: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def agent(name: str, oap: Oap) -> tuple[list[str], dict[str, str]]:
    """Return what starts Python under SkyWalking's own agent: command, environment."""
    python = Path(os.environ[AGENT])
    return [str(python / "sw-python"), "run", "python"], {
        "PATH": f"{python}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": "",
        "SW_AGENT_NAME": name,
        "SW_AGENT_COLLECTOR_BACKEND_SERVICES": oap.grpc,
        "SW_AGENT_LOG_REPORTER_ACTIVE": "False",
        "SW_AGENT_METER_REPORTER_ACTIVE": "False",
        "SW_AGENT_PROFILE_ACTIVE": "False",
    }


@contextlib.contextmanager
def stock(name: str, oap: Oap, folder: Path, to: str = "") -> Iterator[str]:
    """Run a service under SkyWalking's own agent; yield its URL."""
    (port,) = free_ports(1)
    command, told = agent(name, oap)
    process = Process(
        name,
        [*command, str(HERE / "stock_service.py")],
        folder / f"{name}.log",
        {**told, "STOCK_PORT": str(port), "STOCK_TO": to},
    )
    url = f"http://127.0.0.1:{port}"
    with stopping(process):
        process.start()
        process.until_answers(f"{url}/health/ready", AT_LAST)
        yield url


def ours_too(name: str, oap: Oap) -> tuple[list[str], dict[str, str]]:
    """As `agent`, for a driver: told what the manual says, with our packages."""
    command, told = agent(name, oap)
    told["PYTHONPATH"] = f"{PYTHON['PYTHONPATH']}{os.pathsep}{get_path('purelib')}"
    return command, {**told, **dict(re.findall(r"(SW_AGENT_\w+)=([\w,]+)", MANUAL))}


def traces_named(proxy: FaultProxy) -> list[list[str]]:
    """Return the trace that each `sw8` names, for each request that came to a proxy."""
    requests = [exchange.request.headers for exchange in proxy._exchanges]
    came = [headers.get_all("sw8", []) for headers in requests]
    read = [[parse_sw8(value) for value in values] for values in came]
    return [[sw8.trace_id for sw8 in found if sw8] for found in read]


def shown(oap: Oap, transaction: str, *lines: str) -> list[str]:
    """Return a transaction's tree once it has these lines: one trace, one root."""

    def look() -> list[str]:
        ids = oap.traces_of(tpc_transaction_id=transaction)
        found = tree(oap.trace(next(iter(ids)))) if len(ids) == 1 else []
        stripped = [line.strip() for line in found]
        return found if all(line in stripped for line in lines) else []

    found = until(look)
    assert [line for line in found if not line.startswith(" ")] == [found[0]], found
    return found


def segments(oap: Oap, trace_id: str) -> Counter[tuple[str, str]]:
    """Count segments by service and first span; the outbox's come when they come."""
    firsts = [s for s in oap.trace(trace_id) if s["spanId"] == 0]
    named = Counter((s["serviceCode"], s["endpointName"]) for s in firsts)
    return Counter({k: n for k, n in named.items() if k[1] != "tpc.outbox.send"})


def test_a_transaction_is_one_trace_in_both(collector, path, tmp_path):
    """Found by its id in SkyWalking, with topology and phases; by OTLP, the same trace.

    The second batch is looked at: a cold start may outlast the age of a segment.
    """
    assert run(path.job(tmp_path, "both", 2)) == 0
    found = shown(
        collector,
        "both.1.1",
        "both Local tpc.finish",
        "ledger Entry POST /commit",
        "notifier Entry POST /commit",
        "notifier Local tpc.outbox.send",
    )
    assert found[0] == "both Local tpc.transaction"
    (one,) = collector.traces_of(tpc_transaction_id="both.1.1")
    assert segments(collector, one) == {
        ("both", "tpc.transaction"): 1,  # with begin and decide
        ("both", "tpc.branch"): 2,
        ("both", "tpc.deliver"): 1,
        ("both", "tpc.finish"): 1,
        ("ledger", "POST /prepare"): 2,
        ("ledger", "POST /commit"): 1,
        ("notifier", "POST /prepare"): 2,
        ("notifier", "POST /commit"): 1,
    }
    until(lambda: {("both", "ledger"), ("both", "notifier")} <= collector.edges())
    kept = {("ledger", "ledger.db"), ("notifier", "notifier.db")}
    until(lambda: kept <= collector.databases())
    phases = {"ParticipantSink.pre_commit", "ParticipantSink.commit"}
    until(lambda: phases <= collector.endpoints("both", "ParticipantSink"))
    told = read_trace(Settings(links={"skywalking": f"{collector.url}/"}), one)
    assert told.source.startswith("skywalking at ")
    assert {r.span.service for r in told.rows} == {"both", "ledger", "notifier"}
    assert (told.gaps, sum(not row.depth for row in told.rows)) == ((), 1)
    assert all(row.meaning for row in told.rows)
    (ours,) = collector.traces_of(tpc_transaction_id="both.1.1")
    spans = otlp_trace_of(path.loopback, "both.1.1")  # type: ignore[attr-defined]
    assert {span["trace_id"] for span in spans} == {ours}


def test_a_participant_under_the_stock_agent(collector, path, tmp_path):
    """It joins by `sw8` alone."""
    with stock("stock-participant", collector, tmp_path) as url:
        assert run(path.job(tmp_path, "to-stock", 1, notifier=url)) == 0
        found = shown(
            collector,
            "to-stock.0.1",
            "to-stock Local tpc.finish",
            "stock-participant Entry /prepare",
            "stock-participant Entry /commit",
            "ledger Entry POST /commit",
        )
        at = next(n for n, line in enumerate(found) if "stock-participant" in line)
        assert found[at - 1].strip() == "to-stock Exit POST /prepare"
        edge = ("to-stock", "stock-participant")
        until(lambda: edge in collector.edges())


def test_the_stock_agent_between_two_of_ours(collector, path, tmp_path):
    """Ours, its, ours: one trace, the hop in the middle included."""
    with stock("between", collector, tmp_path, to=path.notifier.url) as url:
        assert run(path.job(tmp_path, "through", 1, notifier=url)) == 0
        found = shown(
            collector,
            "through.0.1",
            "through Local tpc.finish",
            "between Entry /commit",
            "notifier Entry POST /commit",
        )
        at = next(n for n, line in enumerate(found) if "between Entry /commit" in line)
        indent = len(found[at]) - len(found[at].lstrip())
        assert found[at + 1] == f"{' ' * indent}  between Exit /commit"
        assert found[at + 2] == f"{' ' * indent}    notifier Entry POST /commit"
        edges = {("through", "between"), ("between", "notifier")}
        until(lambda: edges <= collector.edges())


def test_the_stock_agent_asks_one_of_ours(collector, path, tmp_path):
    """The trace is its own; what our participant does is in it."""
    assert run(path.job(tmp_path, "asked", 1)) == 0
    with stock("asking", collector, tmp_path, to=path.ledger.url) as url:
        request = urllib.request.Request(
            f"{url}/transactions/asked.0.1",
            headers={"Authorization": f"Bearer {path.token}"},
        )
        with urllib.request.urlopen(request, timeout=AT_LAST) as answer:
            assert json.load(answer)["state"] == "committed"

        def joined() -> list[str]:
            ids = collector.traces_of(tpc_transaction_id="asked.0.1")
            trees = [tree(collector.trace(one)) for one in ids]
            return next((t for t in trees if t[0].startswith("asking")), [])

        found = until(joined, lambda lines: len(lines) > 2)
        assert found == [
            "asking Entry /transactions/asked.0.1",
            "  asking Exit /transactions/asked.0.1",
            "    ledger Entry GET /transactions/<transaction_id>",
        ]
        until(lambda: ("asking", "ledger") in collector.edges())


def test_the_stock_agent_in_the_driver(collector, path, tmp_path):
    """One whole trace; a participant is told once where a request comes from."""
    command, told = ours_too("driven", collector)
    with FaultProxy(path.notifier.url) as proxy:  # keeps the requests
        job = path.job(tmp_path, "driven", 1, notifier=proxy.url, python=command)
        assert run(job, **told) == 0, job.tail()
    found = shown(
        collector,
        "driven.0.1",
        "driven Local tpc.finish",
        "ledger Entry POST /commit",
        "notifier Entry POST /commit",
    )
    assert found[0] == "driven Local tpc.transaction"
    assert "running sitecustomize.py" in job.log.read_text()  # the agent
    (one,) = collector.traces_of(tpc_transaction_id="driven.0.1")
    # It is asked who it is before there is a transaction.
    assert traces_named(proxy) == [[], *[[one]] * 3]


def test_the_stock_agent_in_a_driver_that_calls_by_itself(collector, path, tmp_path):
    """Told as the manual says, the agent leaves the header alone."""
    assert run(path.job(tmp_path, "called", 1)) == 0
    command, told = ours_too("calling", collector)
    with FaultProxy(path.ledger.url) as proxy:
        asked = [f"{proxy.url}/transactions/called.0.1"]
        command += ["-m", "backends.stock_driver", "calling", *asked]
        process = Process("calling", command, tmp_path / "log", told)
        assert run(process, TPC_TOKEN=path.token) == 0, process.tail()
    found = until(lambda: collector.traces_of(tpc_application="calling"))
    one = found.pop()
    assert until(lambda: tree(collector.trace(one)), lambda t: len(t) > 2) == [
        "calling Local tpc.begin",
        "  ledger Entry GET /transactions/<transaction_id>",
        "  ledger Entry GET /transactions/<transaction_id>",
    ]
    assert traces_named(proxy) == [[one]] * 2


def test_a_span_that_joins_others_is_shown_with_all_of_them(collector, monkeypatch):
    """Links of its trace are references there; its parent says where it stands."""
    monkeypatch.setattr(skywalking_segments, "SPLIT", 0.0)  # a segment for each span
    monkeypatch.setattr(in_use, "_processor", None)
    world = World(collector)  # type: ignore[arg-type] - only its URL is asked for
    opened = world.tracer.start_as_current_span
    with opened("batch", attributes={"tpc.application": "joined"}):
        branches = [world.tracer.start_span(f"branch {n}") for n in range(2)]
        for branch in branches:
            branch.end()
        links = [trace.Link(branch.get_span_context()) for branch in branches]
        with opened("decide", links=links):
            pass
    world.close()
    (one,) = until(lambda: collector.traces_of(tpc_application="joined"))
    found = until(lambda: collector.trace(one), lambda spans: len(spans) == 4)
    assert tree(found) == [
        "orders Local batch",
        "  orders Local branch 0",
        "  orders Local branch 1",
        "  orders Local decide",
    ]
    by = {span["segmentId"]: span["endpointName"] for span in found}
    (decide,) = (s for s in found if s["endpointName"] == "decide")
    joined = [by[reference["parentSegmentId"]] for reference in decide["refs"]]
    assert joined == ["batch", "branch 0", "branch 1"]


def test_a_transaction_leads_to_the_producer_of_a_message(collector, monkeypatch):
    """By its `sw8`, with `links=`: it refers to a span of another trace."""
    monkeypatch.setattr(in_use, "_processor", None)
    world = World(collector)  # type: ignore[arg-type] - only its URL is asked for
    message: dict[str, str] = {}
    sale, opened = {"tpc.application": "sale"}, world.tracer.start_as_current_span
    with opened("sale", kind=trace.SpanKind.PRODUCER, attributes=sale) as span:
        propagator.SkyWalkingPropagator().inject(message)
        link = trace.Link(span.get_span_context(), message)
    with opened("batch", attributes={"tpc.application": "of-sales"}, links=[link]):
        pass
    world.close()
    (producer,) = until(lambda: collector.traces_of(tpc_application="sale"))
    (one,) = until(lambda: collector.traces_of(tpc_application="of-sales"))
    (sold,) = until(lambda: collector.trace(producer))
    (batch,) = until(lambda: collector.trace(one))
    (reference,) = batch["refs"]
    assert (reference["traceId"], reference["parentSegmentId"]) == (
        producer,
        sold["segmentId"],
    )


def test_an_outage_loses_nothing(tmp_path_factory, tmp_path):
    """What was made while it was dead, and after, is there: each of it, once.

    What this collector had before died with it: it keeps everything in memory.
    """
    with oap(Path(os.environ[JARS]), tmp_path_factory.mktemp("outage")) as running:
        told = {
            "OTEL_PROPAGATORS": "tracecontext,skywalking",
            "OTEL_TRACES_EXPORTER": "skywalking",
            "TPC_SKYWALKING_ENDPOINT": running.url,
        }
        command = [sys.executable, "-m", "backends.steady_spans", "500", "0.1"]
        process = Process("spans", command, tmp_path / "spans.log", {**told, **PYTHON})
        with stopping(process):
            process.start()
            until(lambda: running.traces_of(tpc_application="steady"))
            running.process.kill()
            killed, before = time.time(), made(process)
            until(lambda: made(process) >= before + OUTAGE)
            running.process.start()
            ready(running)
            assert process.wait(AT_LAST) == 0, process.tail()
        said = json.loads(process.log.read_text().splitlines()[-1])
        assert (said["sent"], said["dropped"]) == (True, 0)
        after = [trace_id for trace_id, made in said["made"] if made > killed]
        assert len(after) > OUTAGE
        until(lambda: running.trace(after[-1]))
        assert {len(running.trace(trace_id)) for trace_id in after} == {1}


OUTAGE = 100
"""Traces that are made while the collector is dead: ten seconds long, and more."""


def made(spans: Process) -> int:
    """Return how many traces it has made."""
    return spans.log.read_text().count(".\n")
