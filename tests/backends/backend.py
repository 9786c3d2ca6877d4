"""What a test asks a tracing backend, and what the answers are checked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from support.waiting import until

from tracing_2pc.testing import Collector

Span = dict[str, Any]
"""As `read_trace_file` returns it."""

Trace = Sequence[Span]


class Backend(Protocol):
    """Somewhere that spans are sent to and searched."""

    @property
    def endpoint(self) -> str:
        """The value for `OTEL_EXPORTER_OTLP_ENDPOINT`."""

    def services(self) -> set[str]:
        """Return the names of the services that it knows."""

    def search(self, service: str, tags: Mapping[str, str]) -> set[str]:
        """Return ids of the traces in which a span of a service has all these tags."""

    def trace(self, trace_id: str) -> list[Span]:
        """Return all spans of a trace."""


class Loopback:
    """The collector in this process, asked as a backend is."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    @property
    def endpoint(self) -> str:
        return self._collector.endpoint

    def services(self) -> set[str]:
        return {span["service"] for span in self._collector.spans()}

    def search(self, service: str, tags: Mapping[str, str]) -> set[str]:
        return {
            span["trace_id"]
            for span in self._collector.spans()
            if span["service"] == service and tags.items() <= span["attributes"].items()
        }

    def trace(self, trace_id: str) -> list[Span]:
        return [s for s in self._collector.spans() if s["trace_id"] == trace_id]


def find(backend: Backend, transaction: str) -> dict[str, set[str]]:
    """Search every service for a transaction; return the ids of the traces found."""
    tags = {"tpc.transaction.id": transaction}
    return {name: backend.search(name, tags) for name in sorted(backend.services())}


def trace_of(backend: Backend, transaction: str) -> Trace:
    """Return the spans of a transaction; it is in one trace, or not there yet."""
    ids = set[str]().union(*find(backend, transaction).values())
    assert len(ids) <= 1, ids
    return backend.trace(ids.pop()) if ids else []


def wait_for(
    backend: Backend, transaction: str, predicate: Callable[[Trace], object]
) -> Trace:
    """Return a transaction's spans as soon as the predicate is true of them."""

    def tell(trace: Trace) -> str:
        there = sorted(f"{span['service']} {span['name']}" for span in trace)
        return f"there is {there}, without parent {without_parent(trace)}"

    return until(lambda: trace_of(backend, transaction), predicate, tell=tell)


def count(trace: Trace, name: str, service: str = "") -> int:
    """Return how many spans have a name; of one service, or of any."""
    return sum(s["name"] == name and service in ("", s["service"]) for s in trace)


def warnings(trace: Trace) -> list[str]:
    """Return what the backend finds strange about times and ids; ours finds nothing."""
    return [f"{s['name']}: {w}" for s in trace for w in s.get("warnings", ())]


def without_parent(trace: Trace) -> list[str]:
    """Return service and name of each span that has a parent which is not there."""
    there = {span["span_id"] for span in trace}
    return sorted(
        f"{span['service']} {span['name']}"
        for span in trace
        if span["parent_id"] and span["parent_id"] not in there
    )
