"""A real Jaeger, for as long as a test: started on free ports, asked over HTTP."""

from __future__ import annotations

import contextlib
import json
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from backends.backend import Span
from participants.processes import Process, free_ports, stopping

CONFIG = Path(__file__).parents[2] / "tools" / "jaeger" / "config.yaml"
LIMIT = 1000


class Jaeger:
    """What it holds, by the API that its own pages use.

    Args:
        otlp: port for spans.
        query: port of the API.
    """

    def __init__(self, otlp: int, query: int) -> None:
        self.endpoint = f"http://127.0.0.1:{otlp}"
        self._api = f"http://127.0.0.1:{query}/api"

    def services(self) -> set[str]:
        return set(self._get("services"))

    def search(self, service: str, tags: Mapping[str, str]) -> set[str]:
        found = self._get(
            "traces", service=service, tags=json.dumps(dict(tags)), limit=LIMIT
        )
        return {trace["traceID"] for trace in found}

    def trace(self, trace_id: str) -> list[Span]:
        (found,) = self._get(f"traces/{trace_id}")
        return [_span(span, found["processes"]) for span in found["spans"]]

    def _get(self, path: str, **query: Any) -> list[Any]:
        url = f"{self._api}/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            # A path that it does not know is answered 200, with a page.
            assert answer.headers.get_content_type() == "application/json", url
            return json.load(answer)["data"] or []


@contextlib.contextmanager
def jaeger(binary: Path, folder: Path) -> Iterator[Jaeger]:
    """Run one with nothing in it; it keeps its spans in memory."""
    otlp, grpc, query, query_grpc, health = free_ports(5)
    process = Process(
        "jaeger",
        [str(binary), "--config", str(CONFIG)],
        folder / "jaeger.log",
        {
            "JAEGER_OTLP_HTTP": str(otlp),
            "JAEGER_OTLP_GRPC": str(grpc),
            "JAEGER_QUERY_HTTP": str(query),
            "JAEGER_QUERY_GRPC": str(query_grpc),
            "JAEGER_HEALTH": str(health),
        },
    )
    with stopping(process):
        process.start()
        process.until_answers(f"http://127.0.0.1:{health}/status", 30)
        yield Jaeger(otlp, query)


def _span(span: Mapping[str, Any], processes: Mapping[str, Any]) -> Span:
    tags = {tag["key"]: tag["value"] for tag in span["tags"]}
    parents = [r["spanID"] for r in span["references"] if r["refType"] == "CHILD_OF"]
    links = [r for r in span["references"] if r["refType"] != "CHILD_OF"]
    start = span["startTime"] * 1000  # microseconds
    return {
        "name": span["operationName"],
        "trace_id": span["traceID"],
        "span_id": span["spanID"],
        "parent_id": parents[0] if parents else None,
        "kind": tags.pop("span.kind", "internal").upper(),
        "start": start,
        "end": start + span["duration"] * 1000,
        "service": processes[span["processID"]]["serviceName"],
        "attributes": tags,
        "links": [{"trace_id": r["traceID"], "span_id": r["spanID"]} for r in links],
        "status": tags.pop("otel.status_code", "UNSET"),
    }
