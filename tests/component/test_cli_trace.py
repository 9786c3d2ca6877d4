"""`trace`: where the time of a transaction went, for people and for programs."""

from __future__ import annotations

import json
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask import Flask
from support.cli import Operator
from support.endless import BODY, drip, flood
from support.served import StandIn, served
from support.spark import serving
from support.texts import texts
from support.waiting import SOON

from tracing_2pc.core.names import SPANS
from tracing_2pc.inspection import trace_sources
from tracing_2pc.inspection.trace import NO_PROOF, NO_RECORD
from tracing_2pc.tracing import ring

TEXTS = texts("component")
TRACE = "a" * 32
"""Of each transaction of a site."""


@pytest.fixture
def spans(tmp_path, monkeypatch) -> Path:
    """A ring that `trace` reads; nothing in this process keeps spans."""
    folder = tmp_path / "ring"
    folder.mkdir()
    monkeypatch.setattr(ring, "folders", lambda: [folder])
    return folder


def keep(folder: Path, number: int, name: str, **more: Any) -> None:
    parent = "0" if number else None
    attributes = {"tpc.transaction.id": "orders.7.1", **more.pop("attributes", {})}
    span = {
        "trace_id": TRACE,
        "span_id": str(number),
        "parent_id": parent,
        "name": name,
        "kind": "INTERNAL",
        "service": "orders",
        "host": "here",
        "start": number * 10**6,
        "end": 10**9,
        "status": "UNSET",
        "links": [],
        "attributes": attributes,
        **more,
    }
    ring.append(folder, json.dumps(span).encode() + b"\n")


def known(operator: Operator) -> None:
    operator.at.committing(7)


def test_the_tree_is_printed_in_words(operator, spans):
    """By the id, without the attempt, or by the trace's id, which needs no log."""
    known(operator)
    keep(spans, 0, "tpc.transaction", attributes={"tpc.rows": 3})
    failed = {"tpc.participant": "ledger\x1b[31m", "http.response.status_code": 503}
    keep(spans, 1, "POST /commit", kind="CLIENT", attributes=failed, status="ERROR")
    keep(spans, 2, "their own", start=-1)
    whole = operator.out(0, "trace", "orders.7.1")
    assert TEXTS["a span with its words"].strip() in whole
    assert TEXTS["a span that failed"].strip() in whole
    assert "their own" not in whole
    assert "\x1b" not in whole
    assert "no request to notifier" in whole
    assert operator.out(0, "trace", "orders.7") == whole
    operator.at.log.close()
    operator._set("TPC_LOG", "sqlite:////nowhere/at/all.db")
    by_trace = json.loads(operator.out(0, "trace", TRACE, "--json"))
    assert [(row["name"], row["depth"]) for row in by_trace["spans"]] == [
        ("tpc.transaction", 0),
        ("POST /commit", 1),
    ]
    assert by_trace["spans"][0]["meaning"] == SPANS["tpc.transaction"].meaning


def test_what_nobody_has_is_said(operator, spans):
    """1 for a transaction without spans, 2 for one that nobody knows."""
    known(operator)
    said = " ".join(operator.out(1, "trace", "orders.7.1").split())
    assert NO_PROOF in said
    assert "nobody knows of it" in operator.out(2, "trace", "orders.9")
    assert "nobody knows of it" in operator.out(2, "trace", "b" * 32)
    operator.err(2, "trace", "orders")
    spans.joinpath("spans-1.jsonl").symlink_to(spans)
    assert "cannot be read" in operator.out(1, "trace", "orders.9.1")


def test_spans_without_a_record_may_be_another_logs(operator, spans):
    """Of the same name: found on this machine, with a line that this log lacks it."""
    keep(spans, 0, "tpc.transaction")
    said = " ".join(operator.out(0, "trace", "orders.7.1").split())
    assert NO_RECORD in said
    known(operator)
    assert NO_RECORD not in " ".join(operator.out(0, "trace", "orders.7.1").split())


def test_what_is_too_much_to_read_is_said(operator, spans, monkeypatch):
    """A folder holds nobody up; what was read in time is shown."""
    known(operator)
    keep(spans, 0, "tpc.transaction")
    monkeypatch.setattr(trace_sources, "_HERE", 0.0)
    said = " ".join(operator.out(1, "trace", TRACE).split())
    assert "some are left out" in said


def test_a_tool_is_asked_where_this_process_reaches_it(operator, spans):
    """A link is for a browser: from a container it may lead nowhere."""
    known(operator)
    jaeger = Flask("jaeger")
    span = {
        "traceID": TRACE,
        "spanID": "1",
        "operationName": "tpc.transaction",
        "references": [],
        "startTime": 1,
        "duration": 2,
        "processID": "p",
    }
    found = {
        "traceID": TRACE,
        "spans": [span],
        "processes": {"p": {"serviceName": "o"}},
    }
    jaeger.get(f"/api/traces/{TRACE}")(lambda: {"data": [found]})
    link = "http://127.0.0.1:9/trace/{trace}"
    operator._set("TPC_LINKS", f"jaeger={link}")
    _, (vain,) = operator.json("trace", "orders.7.1")
    assert "jaeger at 127.0.0.1:9 was asked in vain" in " ".join(vain["notes"])
    with serving(jaeger) as url:
        operator._set("TPC_TRACE_APIS", f"jaeger={url}")
        _, (seen,) = operator.json("trace", "orders.7.1")
        assert seen["source"] == f"jaeger at {urlsplit(url).netloc}"
        assert [row["name"] for row in seen["spans"]] == ["tpc.transaction"]
        _, (view,) = operator.json("explain", "orders.7.1")
        assert view["links"] == {"jaeger": link.format(trace=TRACE)}
    operator._set("TPC_TRACE_APIS", "jaeger=http://jaeger/{trace}")
    assert "nothing in braces" in operator.err(2, "trace", "orders.7.1")


@pytest.mark.parametrize("speaks", [drip, flood])
def test_an_answer_without_end_is_given_up(operator, spans, monkeypatch, speaks):
    """In bytes and in time: the spans of this machine are shown."""

    class Endless(StandIn):
        def do_GET(self) -> None:  # noqa: N802 - as http.server has it
            speaks(self, BODY)
            self.close_connection = True

    known(operator)
    keep(spans, 0, "tpc.transaction")
    monkeypatch.setattr(trace_sources, "_SECONDS", SOON)
    monkeypatch.setattr(trace_sources, "_LARGEST", 1 << 20)
    with served(ThreadingHTTPServer(("127.0.0.1", 0), Endless)) as server:
        url = f"http://127.0.0.1:{server.server_port}/trace/{{trace}}"
        operator._set("TPC_LINKS", f"jaeger={url}")
        _, (seen,) = operator.json("trace", "orders.7.1")
    assert [row["name"] for row in seen["spans"]] == ["tpc.transaction"]
    assert TEXTS["too long an answer"] in " ".join(seen["notes"])


def test_skywalkings_name_of_a_status_is_known(operator, spans):
    """An answered request of its trace is none that had no answer."""
    known(operator)
    skywalking = Flask("skywalking")
    tags = {"tpc.participant": "ledger", "http.status_code": "503"}
    span = {
        "segmentId": "s",
        "spanId": 0,
        "parentSpanId": -1,
        "endpointName": "POST /commit",
        "type": "Exit",
        "startTime": 1,
        "endTime": 2,
        "serviceCode": "orders",
        "isError": True,
        "tags": [{"key": key, "value": value} for key, value in tags.items()],
    }
    answer = {"data": {"queryTrace": {"spans": [span]}}}
    skywalking.post("/graphql")(lambda: answer)
    with serving(skywalking) as url:
        operator._set("TPC_LINKS", f"skywalking={url}/{{trace}}")
        _, (seen,) = operator.json("trace", "orders.7.1")
    gaps = [gap for gap in seen["gaps"] if "ledger" in gap]
    assert gaps == [TEXTS["a span that was not kept"]]
    assert "status 503" in seen["spans"][0]["detail"]
