"""What the demo shows of the batch that was hit."""

from __future__ import annotations

from typing import Any

from participants.demo_report import Kill, crashed_trace


def span(
    name: str, trace: str, number: int, parent: int | None, **more: Any
) -> dict[str, Any]:
    shown = {"name": name, "trace_id": trace, "span_id": f"{trace}{number}"}
    above = None if parent is None else f"{trace}{parent}"
    rest = {"parent_id": above, "start": number, "attributes": {}, "links": []}
    return {**shown, **rest, **more}


def root(trace: str, transaction: str, decision: str, *linked: str) -> dict[str, Any]:
    about = {"tpc.transaction.id": transaction, "tpc.decision": decision}
    links = [{"trace_id": other, "span_id": f"{other}0"} for other in linked]
    return span("tpc.transaction", trace, 0, None, attributes=about, links=links)


def kill(transaction: str) -> Kill:
    return Kill("driver", "driver.after_votes", transaction, "active", {})


def test_an_attempt_that_was_aborted_and_the_one_after_it() -> None:
    """Two trees; the second one says which it is linked to."""
    spans = [
        root("z", "flights.6.1", "commit"),
        span("tpc.begin", "a", 1, 0),
        span("POST /prepare", "a", 3, 2),
        root("b", "flights.7.2", "commit", "a"),
        span("tpc.deliver", "b", 1, 0),
        span("tpc.deliver", "b", 2, 0),
        root("a", "flights.7.1", "abort"),
        root("a", "flights.7.1", "abort"),
    ]
    assert crashed_trace(spans, [kill("flights.7.1"), kill("flights.6.1")]) == [
        "",
        "the trace of flights.7.1: abort",
        "  tpc.transaction",
        "    tpc.begin",
        "  POST /prepare  (its caller was killed)",
        "",
        "the trace of flights.7.2: commit, linked to flights.7.1",
        "  tpc.transaction",
        "    tpc.deliver  (2 times)",
    ]


def test_without_a_kill_it_is_the_last_batch() -> None:
    spans = [root("a", "flights.0.1", "commit"), root("b", "flights.1.1", "commit")]
    assert crashed_trace(spans, []) == [
        "",
        "the trace of flights.1.1: commit",
        "  tpc.transaction",
    ]
    assert crashed_trace([], []) == []
