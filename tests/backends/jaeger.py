"""A real Jaeger, for as long as a test: started on free ports, asked over HTTP."""

from __future__ import annotations

import contextlib
import json
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support.waiting import AT_LAST

from backends.backend import Span
from participants.processes import Process, free_ports, stopping

CONFIG = Path(__file__).parents[2] / "dashboards" / "jaeger" / "config.yaml"
BESIDE = CONFIG.with_name("with-skywalking.yaml")
UI = CONFIG.with_name("ui-config.json")
LIMIT = 1000


class Jaeger:
    """What it holds, by the API that its own pages use.

    Args:
        otlp: port for spans and metrics.
        query: port of the API.
        metrics: port that Prometheus scrapes.
    """

    def __init__(self, otlp: int, query: int, metrics: int) -> None:
        self.endpoint = f"http://127.0.0.1:{otlp}"
        self.page = f"http://127.0.0.1:{query}"
        self.metrics = f"127.0.0.1:{metrics}"
        self._api = f"{self.page}/api"

    def services(self) -> set[str]:
        return set(self._get("services"))

    def search(self, service: str, tags: Mapping[str, str]) -> set[str]:
        said = json.dumps(dict(tags))
        return self.found(service=service, tags=said, limit=str(LIMIT))

    def found(self, **query: str) -> set[str]:
        """Return ids of the traces that a search of its page finds."""
        return {trace["traceID"] for trace in self._get("traces", **query)}

    def trace(self, trace_id: str) -> list[Span]:
        (found,) = self._get(f"traces/{trace_id}")
        return [_span(span, found["processes"]) for span in found["spans"]]

    def _get(self, path: str, **query: Any) -> list[Any]:
        url = f"{self._api}/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=AT_LAST) as answer:
            # A path that it does not know is answered 200, with a page.
            assert answer.headers.get_content_type() == "application/json", url
            return json.load(answer)["data"] or []


@contextlib.contextmanager
def jaeger(
    binary: Path, folder: Path, skywalking: str = "", page: str = ""
) -> Iterator[Jaeger]:
    """Run one with nothing in it; it keeps its spans in memory.

    With the address of a SkyWalking it sends all metrics there, too. `page` is a
    folder with the files of its page, if not those in the binary.
    """
    otlp, grpc, query, query_grpc, health, metrics = free_ports(6)
    configuration = [CONFIG, BESIDE] if skywalking else [CONFIG]
    shown = [f"--set=extensions.jaeger_query.ui.assets_path={page}"] if page else []
    process = Process(
        "jaeger",
        [str(binary), *(f"--config={one}" for one in configuration), *shown],
        folder / "jaeger.log",
        {
            "JAEGER_OTLP_HTTP": str(otlp),
            "JAEGER_OTLP_GRPC": str(grpc),
            "JAEGER_QUERY_HTTP": str(query),
            "JAEGER_QUERY_GRPC": str(query_grpc),
            "JAEGER_HEALTH": str(health),
            "JAEGER_METRICS": str(metrics),
            "JAEGER_UI_CONFIG": str(UI),
            "SKYWALKING": skywalking,
        },
    )
    with stopping(process):
        process.start()
        process.until_answers(f"http://127.0.0.1:{health}/status", AT_LAST)
        yield Jaeger(otlp, query, metrics)


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
        "warnings": span["warnings"] or [],
    }
