"""The call to the partner belongs to its transaction's trace, whenever it is made."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from support.branches import ONE, TRACE
from support.elsewhere import elsewhere
from support.kinds import outbox_to, sqlite_url
from support.participant import PartnerApi, World
from support.tracing import read_trace_file, span_tree
from support.waiting import PATIENT, until

from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.outbox import Outbox
from tracing_2pc.outbox.requests import Requests
from tracing_2pc.outbox.sender import Sender
from tracing_2pc.participant.journal.open_database import open_database
from tracing_2pc.participant.journal.schema import Tables

T = "orders.7.1"
Headers = dict[str, str | None] | None
LATER = 600.0
LIMITS: dict[str, Any] = {"timeout": PATIENT, "lease": 3 * PATIENT}


@pytest.fixture
def world(tmp_path, partner) -> Iterator[World]:
    """A participant that commits and whose own sender never starts."""
    resource = Outbox(sqlite_url(tmp_path), HttpPartner(partner.url))
    resource.start = lambda: None  # type: ignore[method-assign]
    yield World(resource, lambda: 0)
    resource.close()


def commit(world: World, prepared: Headers = None, committed: Headers = None) -> None:
    """Prepare and commit, with these headers."""
    about = {"headers": prepared} if prepared else {}
    assert world.prepare(T, **about).status_code == 200
    about = {"headers": committed} if committed else {}
    assert world.commit(T, ONE, **about).status_code == 200


def send(folder: Path, partner: PartnerApi, **environment: str) -> list[dict[str, Any]]:
    """Send what waits, from a process of its own, and return the spans it exported."""
    file = folder / "trace.jsonl"
    environment["TPC_TRACE_FILE"] = str(file)
    about = (sqlite_url(folder), partner.url, environment)
    assert elsewhere(folder, send_all, *about) == "ended"
    return read_trace_file(file)


def send_all(url: str, partner: str, environment: dict[str, str]) -> None:
    """Send until nothing waits; the main program of a process."""
    os.environ.update(environment)
    warnings.simplefilter("error")
    outbox = outbox_to(partner, url, clock=lambda: time.time() + LATER, **LIMITS)
    outbox.open()
    outbox.start()
    until(lambda: not outbox.gauges()["tpc.outbox.backlog"])
    outbox.close()


def heard(partner: PartnerApi) -> list[tuple[str, str]]:
    """Trace and parent, as each request to the partner named them."""
    headers = [{k.lower(): v for k, v in sent.items()} for _, sent, _ in partner.got]
    return [tuple(h["traceparent"].split("-")[1:3]) for h in headers]  # type: ignore[misc]


def test_another_process_sends_it_later_in_the_same_trace(
    world, partner, tmp_path, exported
):
    """Ten minutes later by its clock, below the request that brought the rows."""
    commit(world)
    assert partner.got == []
    spans = send(tmp_path, partner)
    _, ours, prepared, _ = TRACE["traceparent"].split("-")
    assert span_tree(spans) == ["tpc.outbox.send", "  POST"] * ONE.rows
    assert {span["trace_id"] for span in spans} == {ours}
    sends = [span for span in spans if span["name"] == "tpc.outbox.send"]
    assert {span["parent_id"] for span in sends} == {prepared}
    about = {
        (span["attributes"]["tpc.transaction.id"], span["service"]) for span in sends
    }
    assert about == {(T, "outbox")}
    posts = [span["span_id"] for span in spans if span["name"] == "POST"]
    assert heard(partner) == [(ours, post) for post in posts]
    prepare = next(span for span in exported() if span.name == "POST /prepare")
    assert trace.format_trace_id(prepare.context.trace_id) == ours


def test_what_is_sent_is_below_the_commit(world, partner, tmp_path, exported):
    """Not below the prepare: in a list of spans it stands after the decision."""
    _, ours, _, _ = TRACE["traceparent"].split("-")
    commit(world, committed={"traceparent": f"00-{ours}-{'c' * 16}-01"})
    (committed,) = [span for span in exported() if span.name == "POST /commit"]
    spans = send(tmp_path, partner)
    sends = [span for span in spans if span["name"] == "tpc.outbox.send"]
    below = {(span["trace_id"], span["parent_id"]) for span in sends}
    assert below == {(ours, trace.format_span_id(committed.context.span_id))}


def test_a_commit_that_is_not_sampled_leaves_it_below_the_prepare(
    world, partner, tmp_path
):
    """As after a long outage, of which most tries are not in the trace."""
    _, ours, prepared, _ = TRACE["traceparent"].split("-")
    commit(world, committed={"traceparent": f"00-{ours}-{'c' * 16}-00"})
    spans = send(tmp_path, partner)
    sends = [span for span in spans if span["name"] == "tpc.outbox.send"]
    assert {span["parent_id"] for span in sends} == {prepared}
    assert len(sends) == ONE.rows


def test_a_transaction_that_brought_no_trace_has_the_participants(
    world, partner, tmp_path, exported
):
    """What began here at the prepare is gone on with by whoever sends."""
    commit(world, {"traceparent": None, "tracestate": None})
    spans = send(tmp_path, partner, OTEL_SERVICE_NAME="notifier")
    prepare = next(span for span in exported() if span.name == "POST /prepare")
    ours = trace.format_trace_id(prepare.context.trace_id)
    assert {span["trace_id"] for span in spans} == {ours}
    assert {span["service"] for span in spans} == {"notifier"}
    assert {trace_id for trace_id, _ in heard(partner)} == {ours}


def test_a_request_that_is_sent_again_is_in_that_trace_each_time(
    world, partner, tmp_path, exported
):
    """A try that failed is a span as well."""
    commit(world)
    partner.answers = [503]
    spans = send(tmp_path, partner)
    assert span_tree(spans) == ["tpc.outbox.send", "  POST"] * (ONE.rows + 1)
    assert {trace_id for trace_id, _ in heard(partner)} == {"a" * 32}


def test_a_partner_that_is_down_for_long_does_not_fill_the_trace(
    world, partner, tmp_path, exported, monkeypatch
):
    """The first ten tries leave spans, then the 16th and the 32nd: no pause is waited.

    The request behind it is tried, too, from the tenth on.
    """
    commit(world)
    partner.answers = [503] * 100
    now = [0.0]
    clock = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: clock() + now[0])
    database = open_database(sqlite_url(tmp_path))
    queue = Requests(Tables("outbox", "outbox"), database, time.time)
    asked = HttpPartner(partner.url, timeout=PATIENT)
    sender = Sender(queue, asked, LIMITS["lease"])
    tries = []
    for number in range(1, 41):
        before = len(exported())
        now[0] += 100.0  # no pause is left
        sender.turn()
        if any(s.name == "tpc.outbox.send" for s in exported()[before:]):
            tries.append(number)
    database.engine.dispose()
    assert len(partner.got) == 40 + 31
    assert tries == [*range(1, 11), 16, 32]
