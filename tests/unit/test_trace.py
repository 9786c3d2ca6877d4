"""The spans of a trace as a tree, with words, and what is missing from it."""

from __future__ import annotations

from typing import Any

import pytest
from support.texts import texts

from tracing_2pc.core import names
from tracing_2pc.inspection.trace import TraceSpan, find_gaps, trace_tree

TEXTS = texts("unit")


def span(
    id_: str, parent: str | None = None, name: str = "tpc.begin", **more: Any
) -> TraceSpan:
    start = int(more.pop("start", int(id_, 36))) * 10**9
    kind = more.pop("kind", "internal")
    about = {"trace_id": "t", "error": False, **more.pop("about", {})}
    return TraceSpan(
        about["trace_id"],
        id_,
        parent,
        name,
        kind,
        start,
        start + 10**9,
        more.pop("service", "orders"),
        "here",
        more,
        about["error"],
        about.get("links", ()),
    )


ROOT = span("1", name=names.TRANSACTION)


def shown(*spans: TraceSpan) -> list[str]:
    return [
        " " * row.depth + row.span.span_id + "!" * row.orphaned + "~" * row.linked
        for row in trace_tree(spans, "t")
    ]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([span("3", "1"), span("4", "2"), span("2", "1"), ROOT, ROOT], "1, 2,  4, 3"),
        ([ROOT, span("3", "gone"), span("2", "1")], "1, 2,3!"),
        ([ROOT, span("3", "4"), span("4", "3"), span("5", "5")], "1,3, 4,5"),
        (
            [
                span("1", about={"trace_id": "u", "links": ("t",)}),
                span("2", "1", about={"trace_id": "u", "links": ("t",)}),
                span("3"),
            ],
            "3,1~, 2~",
        ),
        ([], ""),
    ],
    ids=["in order, once", "no parent", "circles", "other traces last", "nothing"],
)
def test_each_span_is_below_its_parent(spans, expected):
    """Once, in the order of time; what has no parent here stands by itself."""
    assert ",".join(shown(*spans)) == expected
    assert all(row.offset >= 0 for row in trace_tree(spans, "t") if not row.linked)


def test_every_span_of_the_registry_is_told_in_words():
    """By the names that classes, mounted services and statements really have."""
    for name, about in names.SPANS.items():
        real = name.replace("<prefix>", "/of/ours").replace("<STATEMENT>", "COPY")
        real = real.replace("<Sink>", "MySink").replace("<Writer>", "MyWriter")
        phase = real.partition(".")[2] if real.startswith("My") else ""
        known: dict[str, object] = {"tpc.phase": phase} if phase != "batch" else {}
        known |= {"db.operation.name": "COPY"} if real == "COPY" else {}
        parent = about.parent.replace("<Writer>", "MyWriter")
        told = names.describe_span(real, about.kind, known, parent)
        assert told == about.meaning, name
    assert names.describe_span("GET /foreign", "client", {}) == ""


ANSWERED = {"http.response.status_code": 200}


def test_what_is_missing_is_named():
    """The root; who kept no span of a request; parents, as far as others show it.

    Of a request that had no answer nobody knows whether it was received.
    """
    asked = {"name": "POST /prepare", "kind": "client"}
    rows = trace_tree(
        [
            span("2", "1", **asked, **{"tpc.participant": "ledger"}),
            span("3", "2", "POST /prepare", kind="server", service="ledger"),
            span("4", "1", **asked, **ANSWERED, **{"tpc.participant": "ledger"}),
            span("5", "1", **asked, **{"tpc.participant": "ledger"}),
        ],
        "t",
    )
    gaps = "\n".join(find_gaps(rows, ["ledger", "notifier"]))
    assert gaps == TEXTS["gaps of a trace"].strip()
    whole = trace_tree([ROOT, *(row.span for row in rows[:2])], "t")
    assert find_gaps(whole, ["ledger"]) == []
    table = {"tpc.participant": "table", "tpc.state": "prepared"}
    without_a_service = trace_tree([ROOT, span("6", "1", **asked, **table)], "t")
    assert find_gaps(without_a_service, ["table"]) == []
