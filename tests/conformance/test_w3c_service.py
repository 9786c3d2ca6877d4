"""The service that the harness asks does what the harness expects of a service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance.w3c_service import service
from support.participant import PartnerApi
from support.tracing import span_tree
from werkzeug.datastructures import Headers

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def harness() -> Iterator[PartnerApi]:
    made = PartnerApi()
    yield made
    made.close()


def heard(harness: PartnerApi, *headers: tuple[str, str]) -> list[dict[str, str]]:
    """Ask the service to call back twice, and return the headers of both calls."""
    asked = [{"url": f"{harness.url}/{n}", "arguments": [n]} for n in range(2)]
    answer = service().test_client().post("/", json=asked, headers=Headers(headers))
    assert answer.status_code == 200
    assert [(path, body) for path, _, body in harness.got] == [("/0", [0]), ("/1", [1])]
    return [{k.lower(): v for k, v in got.items()} for _, got, _ in harness.got]


def test_calls_are_spans_of_the_callers_trace(harness, exported):
    """A span for the request and one for each call, and each call names its own."""
    calls = heard(
        harness, ("TraceParent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")
    )
    assert span_tree(exported()) == ["POST", "  POST", "  POST"]
    assert {call["traceparent"].split("-")[1] for call in calls} == {TRACE}
    assert len({call["traceparent"] for call in calls} | {PARENT}) == 3
    assert [call["tracestate"] for call in calls] == ["a=1,b=2"] * 2


@pytest.mark.usefixtures("exported")
def test_two_callers_are_none(harness):
    """With two traceparents a trace begins here."""
    other = f"00-{TRACE[::-1]}-{SPAN}-01"
    calls = heard(
        harness, ("traceparent", PARENT), ("traceparent", other), ("tracestate", "a=1")
    )
    (trace,) = {call["traceparent"].split("-")[1] for call in calls}
    assert trace not in (TRACE, TRACE[::-1])
    assert not any("tracestate" in call for call in calls)


def test_it_calls_nobody_else():
    """Whoever finds it must not be able to reach others through it."""
    asked = [{"url": "http://example.invalid/", "arguments": []}]
    assert service().test_client().post("/", json=asked).status_code == 400
