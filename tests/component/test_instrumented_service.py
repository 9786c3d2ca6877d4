"""A service that opentelemetry-instrumentation-flask traces already."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.flask import FlaskInstrumentor
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind
from support.branches import ONE, TRACE
from support.kinds import sqlite_url, tagged_rows
from support.participant import World
from support.tracing import Exported, span_tree

T = "orders.7.1"


@pytest.fixture
def world(tmp_path, exported) -> Iterator[World]:
    made = tagged_rows(sqlite_url(tmp_path))
    FlaskInstrumentor().instrument_app(made.app)
    yield made
    FlaskInstrumentor().uninstrument_app(made.app)
    made.resource.close()


def server_spans(exported: Exported) -> list[ReadableSpan]:
    return [span for span in exported() if span.kind is SpanKind.SERVER]


def test_there_is_one_server_span_for_each_request(world, exported):
    """It is the service's own, in the caller's trace, and says what ours would say."""
    assert world.prepare(T).status_code == 200
    (prepare,) = server_spans(exported)
    assert prepare.name == "POST /prepare"
    assert prepare.instrumentation_scope.name == "opentelemetry.instrumentation.flask"
    assert trace.format_span_id(prepare.parent.span_id) in TRACE["traceparent"]
    ours = {k: v for k, v in prepare.attributes.items() if k.startswith("tpc.")}
    assert ours == {
        "tpc.request": "prepare",
        "tpc.participant": "participant",
        "tpc.transaction.id": T,
        "tpc.application": "orders",
        "tpc.batch": 7,
        "tpc.attempt": 1,
        "tpc.branch": "0.1",
        "tpc.rows": 3,
        "tpc.bytes": len(ONE.body),
        "tpc.state": "prepared",
        "tpc.vote": "commit",
    }


def test_what_a_request_does_is_below_it(world, exported):
    """The database's statements are its children, whatever the request."""
    asked = [
        world.prepare(T),
        world.commit(T, ONE),
        world.abort(T),
        world.show(T),
        world.client.get("/transactions"),
    ]
    assert [answer.status_code for answer in asked] == [200, 200, 409, 200, 200]
    assert len(server_spans(exported)) == len(asked)
    tree = span_tree(exported())
    assert [line for line in tree if not line.startswith(" ")] == [
        "POST /prepare",
        "POST /commit",
        "POST /abort",
        "GET /transactions/<transaction_id>",
        "GET /transactions",
    ]
    assert tree[1] == "  INSERT"
