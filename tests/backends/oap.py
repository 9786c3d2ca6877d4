"""A real SkyWalking collector, for as long as a test: on free ports, over HTTP."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from support.waiting import AT_LAST

from participants.processes import Process, free_ports, stopping

CONFIGURATION = Path(__file__).parents[2] / "tools" / "oap" / "conf"
MAIN = "org.apache.skywalking.oap.server.starter.OAPServerStartUp"
JVM = [
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dcom.linecorp.armeria.warnNettyVersions=false",
]

SEARCH = """query($c: TraceQueryCondition){ queryBasicTraces(condition: $c){
    traces{ segmentId endpointNames isError traceIds } } }"""
TRACE = """query($i: ID!){ queryTrace(traceId: $i){ spans{
    segmentId spanId parentSpanId serviceCode endpointName type layer peer isError
    startTime endTime refs{ traceId parentSegmentId parentSpanId type }
    tags{ key value } } } }"""
EXPRESSION = """query($x: String!, $e: Entity!, $d: Duration!){
    execExpression(expression: $x, entity: $e, duration: $d){ type error results{
        metric{ labels{ key value } } values{ id value } } } }"""
ENDPOINTS = """query($s: ID!, $k: String!){
    findEndpoint(serviceId: $s, keyword: $k, limit: 100){ name } }"""
TEMPLATES = "{ getAllTemplates{ id configuration } }"
TOPOLOGY = """query($d: Duration!){ getGlobalTopology(duration: $d){
    nodes{ id name isReal } calls{ source target detectPoints } } }"""

Span = dict[str, Any]


class Oap:
    """What it holds, by the queries that its own pages send.

    Args:
        http: port for segments and queries.
        grpc: port for agents, and for metrics.
        process: it.
    """

    def __init__(self, http: int, grpc: int, process: Process) -> None:
        self.url = f"http://127.0.0.1:{http}"
        self.grpc = f"127.0.0.1:{grpc}"
        self.process = process

    def traces_of(self, **tags: str) -> set[str]:
        """Return ids of the traces in which a segment has all these tags."""
        condition = {
            "queryDuration": _lately(),
            "traceState": "ALL",
            "queryOrder": "BY_START_TIME",
            "paging": {"pageNum": 1, "pageSize": 100},
            "tags": [{"key": k.replace("_", "."), "value": v} for k, v in tags.items()],
        }
        found = self._ask(SEARCH, c=condition)["queryBasicTraces"]["traces"]
        return {trace for segment in found for trace in segment["traceIds"]}

    def trace(self, trace_id: str) -> list[Span]:
        """Return all spans of a trace."""
        return list(self._ask(TRACE, i=trace_id)["queryTrace"]["spans"])

    def edges(self) -> set[tuple[str, str]]:
        """Return who calls whom, by name; both ends were seen."""
        found = self._ask(TOPOLOGY, d=_lately())["getGlobalTopology"]
        names = {node["id"]: node["name"] for node in found["nodes"]}
        return {
            (names[call["source"]], names[call["target"]])
            for call in found["calls"]
            if call["source"] in names
            and call["target"] in names
            and set(call["detectPoints"]) >= {"SERVER"}
        }

    def databases(self) -> set[tuple[str, str]]:
        """Return which service keeps its data in which database."""
        found = self._ask(TOPOLOGY, d=_lately())["getGlobalTopology"]
        names = {node["id"]: node["name"] for node in found["nodes"]}
        unreal = {node["id"] for node in found["nodes"] if not node["isReal"]}
        return {
            (names[call["source"]], names[call["target"]])
            for call in found["calls"]
            if call["target"] in unreal
        }

    def expression(self, text: str, service: str) -> dict[str, Any]:
        """Return what an expression of its dashboards is for a service, lately."""
        entity = {"scope": "Service", "serviceName": service, "normal": True}
        asked = self._ask(EXPRESSION, x=text, e=entity, d=_lately())
        return dict(asked["execExpression"])

    def endpoints(self, service: str, keyword: str) -> set[str]:
        """Return names of a service's endpoints that have a word in them."""
        named = base64.b64encode(service.encode()).decode()
        found = self._ask(ENDPOINTS, s=f"{named}.1", k=keyword)
        return {one["name"] for one in found["findEndpoint"]}

    def post(self, segments: list[dict[str, Any]]) -> None:
        """Send segments, as an agent does."""
        request = urllib.request.Request(
            f"{self.url}/v3/segments",
            json.dumps(segments).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=AT_LAST).close()

    def templates(self) -> dict[str, Any]:
        """Return its dashboards, by id."""
        found = self._ask(TEMPLATES)["getAllTemplates"]
        return {one["id"]: json.loads(one["configuration"]) for one in found}

    def _ask(self, query: str, **variables: Any) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"{self.url}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=AT_LAST) as answer:
            told = json.load(answer)
        assert not told.get("errors"), told["errors"]
        return dict(told["data"])


@contextlib.contextmanager
def oap(jars: Path, folder: Path, over: Path | None = None) -> Iterator[Oap]:
    """Run one with nothing in it; files in `over` replace its own."""
    http, grpc = free_ports(2)
    path = [*filter(None, [over]), CONFIGURATION, f"{jars}/*"]
    process = Process(
        "oap",
        [_java(), *JVM, "-cp", ":".join(map(str, path)), MAIN],
        folder / "oap.log",
        {"OAP_HTTP": str(http), "OAP_GRPC": str(grpc)},
    )
    running = Oap(http, grpc, process)
    with stopping(process):
        process.start()
        ready(running)
        yield running


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def ready(running: Oap) -> None:
    """Wait until it answers; stop waiting if it has ended."""
    running.process.until_answers(f"{running.url}/healthcheck", AT_LAST)


def tree(spans: list[Span]) -> list[str]:
    """Show spans as service, type and name, below what they follow from."""
    by = {(s["segmentId"], s["spanId"]): s for s in spans}

    def above(span: Span) -> tuple[str, int] | None:
        if span["parentSpanId"] >= 0:
            return span["segmentId"], span["parentSpanId"]
        refs = [(r["parentSegmentId"], r["parentSpanId"]) for r in span["refs"]]
        return refs[0] if refs else None

    def order(span: Span) -> tuple[int, int, str]:
        # It keeps milliseconds: what began in the same one has no order there.
        return span["startTime"], span["spanId"], span["endpointName"]

    lines: list[str] = []

    def show(span: Span, depth: int) -> None:
        name = f"{span['serviceCode']} {span['type']} {span['endpointName']}"
        lines.append("  " * depth + name)
        for child in sorted(spans, key=order):
            if above(child) == (span["segmentId"], span["spanId"]):
                show(child, depth + 1)

    for span in sorted(spans, key=order):
        place = above(span)
        if place is None:
            show(span, 0)
        elif place not in by:
            lines.append(f"DANGLING {span['serviceCode']} {span['endpointName']}")
    return lines


def _lately() -> dict[str, str]:
    now = datetime.now(timezone.utc)
    return {
        "start": (now - timedelta(minutes=20)).strftime("%Y-%m-%d %H%M"),
        "end": (now + timedelta(minutes=2)).strftime("%Y-%m-%d %H%M"),
        "step": "MINUTE",
    }
