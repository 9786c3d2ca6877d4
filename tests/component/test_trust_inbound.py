"""A participant that strangers can ask: `trust_inbound=False`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import ReadableSpan
from support.branches import ONE
from support.kinds import sqlite_url
from support.participant import PartnerApi, World
from support.tracing import Exported, span_tree
from support.waiting import PATIENT, until

from tracing_2pc.core.model import BranchId, TransactionId
from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.outbox import Outbox
from tracing_2pc.outbox.requests import Request
from tracing_2pc.participant import TaggedRows

T = "orders.7.1"
Make = Callable[..., World]
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STRANGER = {
    "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01",
    "tracestate": "vendor=x",
    "baggage": "tenant=evil",
    "x-foreign": "mark",
}


class Foreign(TextMapPropagator):
    """Another vendor's header, which goes with the context."""

    fields = frozenset({"x-foreign"})

    def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Any:
        mark = carrier.get("x-foreign")
        return contexts.set_value("foreign", mark, context)

    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        if mark := contexts.get_value("foreign", context):
            carrier["x-foreign"] = mark


@pytest.fixture(autouse=True)
def foreign(monkeypatch) -> None:
    several = CompositePropagator([W3CBaggagePropagator(), Foreign()])
    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", several)


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def make(tmp_path, clock) -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def ledger(**options: Any) -> World:
            url = sqlite_url(tmp_path)
            rows = TaggedRows(url, "orders", clock=lambda: clock[0])
            stack.callback(rows.close)
            return World(rows, lambda: 0, insecure=True, **options)

        yield ledger


def trace_of(span: ReadableSpan | trace.Link) -> str:
    return trace.format_trace_id(span.context.trace_id)


def named(exported: Exported, name: str) -> list[ReadableSpan]:
    return [span for span in exported() if span.name == name]


def kept(world: World) -> dict[str, str]:
    (branch,) = world.client.get("/transactions").get_json()["transactions"]
    return branch["carrier"]


def test_a_trusted_caller_is_gone_on_with(make, exported):
    """By default: its trace is kept with the branch, in each header but baggage.

    That is a user's own text, and is told to whoever works on the request only.
    """
    world = make()
    assert world.prepare(T, headers=STRANGER).status_code == 200
    assert kept(world) == {k: v for k, v in STRANGER.items() if k != "baggage"}
    (prepare,) = named(exported, "POST /prepare")
    assert (trace_of(prepare), prepare.links) == (TRACE, ())


def test_a_stranger_is_linked_and_not_gone_on_with(make, exported):
    """The request begins a trace, and nothing of what was sent is kept but the link."""
    world = make(trust_inbound=False)
    assert world.prepare(T, headers=STRANGER).status_code == 200
    (prepare,) = named(exported, "POST /prepare")
    assert prepare.parent is None
    assert trace_of(prepare) != TRACE
    (link,) = prepare.links
    assert (trace_of(link), f"{link.context.span_id:016x}") == (TRACE, SPAN)
    assert link.context.trace_state.to_header() == ""
    assert prepare.attributes["tpc.transaction.id"] == T
    carrier = kept(world)
    assert carrier.keys() == {"traceparent"}
    assert trace_of(prepare) in carrier["traceparent"]


def test_a_wait_belongs_to_the_new_trace(make, exported, clock):
    """What is told later is told of the trace that was begun here."""
    world = make(trust_inbound=False)
    assert world.prepare(T, headers=STRANGER).status_code == 200
    clock[0] += 60
    assert world.commit(T, ONE).status_code == 200
    (prepare,), (wait,) = (
        named(exported, n) for n in ("POST /prepare", "tpc.in_doubt")
    )
    assert trace_of(wait) == trace_of(prepare)
    assert wait.parent.span_id == prepare.context.span_id


def heard_by(partner: PartnerApi) -> list[dict[str, str]]:
    return [{k.lower(): v for k, v in sent.items()} for _, sent, _ in partner.got]


def checked_and_sent(
    folder: Path, partner: PartnerApi, exported: Exported, *, trust_inbound: bool
) -> None:
    """Prepare and commit as a stranger; the partner is asked first and called later."""
    resource = Outbox(sqlite_url(folder), HttpPartner(partner.url, check=partner.url))
    world = World(resource, lambda: 0, insecure=True, trust_inbound=trust_inbound)
    with contextlib.closing(resource):
        assert world.prepare(T, headers=STRANGER).status_code == 200
        assert world.commit(T, ONE).status_code == 200
        until(lambda: len(named(exported, "tpc.outbox.send")) == 3)


def test_a_partner_hears_no_baggage(tmp_path, partner, exported):
    """The trace of a trusted caller, at prepare and later; a user's own text never."""
    checked_and_sent(tmp_path, partner, exported, trust_inbound=True)
    heard = heard_by(partner)
    assert len(heard) == 4
    assert {h["traceparent"].split("-")[1] for h in heard} == {TRACE}
    assert {(h["tracestate"], h["x-foreign"]) for h in heard} == {("vendor=x", "mark")}
    assert not any("baggage" in h for h in heard)


def test_a_partner_hears_no_baggage_that_was_kept_once(partner, exported):
    """Of a journal that an earlier version wrote."""
    request = Request(1, 1, "{}", TransactionId("a", 1, 1), BranchId(0, 0), STRANGER)
    assert HttpPartner(partner.url, timeout=PATIENT).send([request])[0].is_taken
    (heard,) = heard_by(partner)
    assert heard["traceparent"].split("-")[1] == TRACE
    assert "baggage" not in heard


def test_a_partner_hears_nothing_of_a_stranger(tmp_path, partner, exported):
    """Neither the check at prepare nor the later call carries what was sent to us."""
    checked_and_sent(tmp_path, partner, exported, trust_inbound=False)
    (prepare,) = named(exported, "POST /prepare")
    heard = heard_by(partner)
    assert len(heard) == 4
    assert {h["traceparent"].split("-")[1] for h in heard} == {trace_of(prepare)}
    assert not any(h.keys() & (STRANGER.keys() - {"traceparent"}) for h in heard)
    assert {trace_of(s) for s in named(exported, "tpc.outbox.send")} == {
        trace_of(prepare)
    }


def test_nobody_to_link_to(make, exported):
    """Who sends no context, or none that can be read, gets a trace without a link."""
    world = make(trust_inbound=False)
    for batch, sent in enumerate((None, "x")):
        headers = {"traceparent": sent, "tracestate": None}
        assert world.prepare(f"orders.{batch}.1", headers=headers).status_code == 200
    assert [(s.parent, s.links) for s in named(exported, "POST /prepare")] == [
        (None, ())
    ] * 2
    assert len({trace_of(s) for s in named(exported, "POST /prepare")}) == 2


def test_a_service_that_is_instrumented_keeps_its_own_span(exported):
    """It went on with a stranger's trace; what we do is apart, linked to both."""
    from tracing_2pc.tracing import propagation, spans

    caller = propagation.extract(STRANGER)
    tracer = trace.get_tracer("flask")
    with (
        tracer.start_as_current_span("POST", caller, trace.SpanKind.SERVER) as theirs,
        spans.server_span("POST /prepare", STRANGER, {"tpc.rows": 1}, trusted=False),
    ):
        carrier = spans.current_carrier()
    assert carrier.keys() == {"traceparent"}
    assert span_tree(exported()) == ["POST", "POST /prepare"]
    (ours,) = named(exported, "POST /prepare")
    assert trace_of(ours) != TRACE
    linked = [trace.format_span_id(link.context.span_id) for link in ours.links]
    assert [link.context.trace_state.to_header() for link in ours.links] == ["", ""]
    span_id = trace.format_span_id(theirs.get_span_context().span_id)
    assert linked == ["00f067aa0ba902b7", span_id]


class Failing(TextMapPropagator):
    """Says what it was sent when it fails."""

    fields = frozenset()

    def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Any:
        raise ValueError(repr(dict(carrier)))

    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        pass


MARK = "WRITTEN-BY-A-STRANGER"


BAGGAGE = {
    "no pair": MARK,
    "no key": f"{MARK} =",
    "no ASCII": f"ok=1,{MARK}=\u00e9",
    "a long member": f"{MARK}={'x' * 5000}",
    "too long": f"{MARK}={'x' * 9000}",
    "too many": ",".join(f"{MARK}{n}=1" for n in range(200)),
}


@pytest.mark.parametrize(
    ("baggage", "trusting", "failing"),
    [
        *((text, True, False) for text in BAGGAGE.values()),
        (MARK, False, False),
        (MARK, True, True),
        (MARK, False, True),
    ],
    ids=[*BAGGAGE, "distrusting", "failing", "distrusting, failing"],
)
def test_nothing_of_a_stranger_reaches_a_log(
    tmp_path, exported, caplog, monkeypatch, baggage, trusting, failing
):
    """Who has no token is refused, and nobody reads its words there, at any level."""
    if failing:
        monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", Failing())
    tokens = tmp_path / "tokens"
    tokens.write_text("job 0123456789abcdef0123\n")
    rows = TaggedRows(sqlite_url(tmp_path), "orders")
    world = World(rows, lambda: 0, tokens=tokens, trust_inbound=trusting)
    caplog.set_level(0)
    headers = {
        "baggage": baggage,
        "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01{MARK}",
        "tracestate": MARK,
    }
    assert world.prepare(T, headers=headers).status_code == 401
    formatter = logging.Formatter()
    said = [formatter.format(r) + repr(vars(r)) for r in caplog.records]
    assert not any(MARK in line for line in said)
    assert not any(MARK in span.to_json() for span in exported())


@pytest.mark.parametrize("sent", [{"baggage": "tenant=a"}, {"traceparent": "x"}])
def test_a_caller_without_a_trace_gets_ours(make, exported, sent):
    """Trusted, and with baggage alone: a branch is kept with a trace all the same."""
    world = make()
    headers = {"traceparent": None, "tracestate": None, **sent}
    assert world.prepare(T, headers=headers).status_code == 200
    (prepare,) = named(exported, "POST /prepare")
    carrier = kept(world)
    assert trace_of(prepare) in carrier.pop("traceparent")
    assert carrier == {}
