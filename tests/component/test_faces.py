"""Each command, the console, a metric and the exit codes say one list."""

from __future__ import annotations

import html
import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from support.branches import ONE, records
from support.cli import Operator
from support.console import GATE, VIEWER, visitor
from support.kinds import outbox_to, refusing_outbox, sqlite_url
from support.participant import World, database_of, end, keep, outgoing_of, turns_of
from support.protocol import FakeClock
from support.protocol import World as Protocol
from support.relay import Topic, TopicRelay, publisher, relay_world
from support.spark import serving
from support.waiting import AT_ONCE, PATIENT, until

from tracing_2pc.console.app import console
from tracing_2pc.console.state import ConsoleSources
from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.model import BranchId, Receipt, TransactionRecord, branch_receipts
from tracing_2pc.core.ports import SystemClock
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Vote
from tracing_2pc.operations.recover import deliver
from tracing_2pc.operations.wiring import open_participants
from tracing_2pc.outbox.relay import Position
from tracing_2pc.protocol.decisions import LONGEST_DETAIL

WRONG = {
    ("orders.7.1", "decided_not_applied"),
    ("orders.8.1", "quarantined"),
    ("bookings.3.1", "orphaned"),
    ("notifier", "unreadable"),
    ("mailer", "refused_requests"),
    ("totals", "relay_stopped"),
    ("ledger", "clock_differs"),
}
"""What is wrong at this site."""


@pytest.fixture
def mailer(
    operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """One not applied, one quarantined, an orphan; one is down, one clock is fast."""
    at = operator.at
    at.committing(7)
    at.log.quarantine(at.committing(8), "ledger answered 409 aborted")
    at.prepare("bookings.3.1", "ledger")
    at.time.time = time.time()
    url = sqlite_url(tmp_path, "mailer")
    world = refusing_outbox(url, records(text=["a"]), "mailer")
    at.clocks["ledger"].read = lambda: time.time() + 90
    monkeypatch.setenv("TPC_PAUSE", "100ms")
    topic = Topic()
    totals = relay_world(sqlite_url(tmp_path, "totals"), topic)
    totals.name = "totals"
    keep(totals, "orders.6.1", ONE)
    topic.position = Position(9, "orders.5.1", "of another store")
    publisher(totals, TopicRelay(topic), PATIENT).turn()
    with serving(world.app) as served, serving(totals.app) as at_relay:
        operator.reach(mailer=served, totals=at_relay, notifier="http://127.0.0.1:9")
        yield world
    end(totals.resource)
    end(world.resource)


def test_all_faces_say_one_list(operator: Operator, mailer: World) -> None:
    """By kind and by what it is about; and each ends with 1."""
    code, (checked,) = operator.json("check")
    assert (code, said(checked["findings"])) == (1, WRONG)
    code, listed = operator.json("ls")
    rows = {
        (row["transaction"], kind) for row in listed for kind in row.get("findings", ())
    }
    beside = {
        (one["where"], one["finding"]) for one in listed if one["kind"] == "finding"
    }
    assert (code, rows | beside) == (1, WRONG)
    code, watched = operator.json("watch", "--once")
    assert (code, said(watched)) == (1, WRONG)
    for where, kind in WRONG:
        if where[-1] == "1":
            code, (view,) = operator.json("explain", where)
            assert (code, kind) == (1, view["findings"][0]["kind"])
    page = first_page(operator, "mailer")
    assert {where for where, _ in WRONG if where not in page} == set()
    assert "3 transactions need you" in page
    _, text, _ = operator.says("check")
    last = re.escape(text.splitlines()[-1].partition("; ")[0])
    assert re.search(last, operator.says("watch", "--once")[1])
    assert re.search(last, html.unescape(page)), "one sentence, wherever it stands"


def first_page(operator: Operator, word: str, *paths: str) -> str:
    """Return the console's first page once it has this word; and other pages."""
    settings, log = Settings.load(), operator.at.log
    reach = (log, open_participants(settings), settings)
    tell = lambda record: deliver(log, settings, record)  # noqa: E731
    app = console(ConsoleSources(*reach, tell, SystemClock()), GATE)
    person = visitor(app, VIEWER)
    page = until(lambda: word in (text := person.get("/")) and text)
    return page + "".join(map(person.get, paths))


@pytest.mark.parametrize("dies", ["before its relay starts", "later"])
def test_a_broker_that_does_not_answer_is_named_though_nothing_waits(
    operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    """With its address, the cause and what to do, before a batch needs it."""
    operator.at.time.time = time.time()
    monkeypatch.setattr("tracing_2pc.outbox.publisher.IDLE_LOOK", 0.0)
    topic = Topic()
    totals = relay_world(sqlite_url(tmp_path, "totals"), topic)
    totals.name = "totals"
    relay = TopicRelay(topic)
    relay.address = "kafka-1:9092"  # type: ignore[attr-defined]
    sender = publisher(totals, relay, PATIENT)
    if dies == "later":
        sender.turn()
    topic.is_readable = False
    sender.turn()
    sender.turn()  # one look may fail
    with serving(totals.app) as served:
        operator.reach(totals=served)
        for command in (("check",), ("ls",), ("watch", "--once"), ("outbox", "ls")):
            text = " ".join(operator.out(1, *command).split())
            assert "nothing is published: the broker at kafka-1:9092" in text, command
            assert "TimeoutError: no answer" in text, command
            assert "start it, or correct its address" in text, command
        page = first_page(operator, "kafka-1:9092")
        assert "start it, or correct its address" in page
        topic.is_readable = True
        until(lambda: (sender.turn(), operator.says("check")[0])[1] == 0)
    end(totals.resource)


def test_what_a_partner_answered_is_shown_from_the_first_try_on(
    operator: Operator, tmp_path: Path
) -> None:
    """Its address and its answer; a finding after `stuck_after`; gone when it takes."""
    operator.at.time.time = time.time()
    partner, answers = Flask("partner"), [("", 500), ("", 503)]
    partner.post("/orders")(lambda: answers[0] if answers else ("", 200))
    with serving(partner) as at_partner:
        world = sending_by_hand(at_partner, sqlite_url(tmp_path, "mailer"), PATIENT)
        keep(world, TAKEN_IN, records(text=["a", "b"]))
        with serving(world.app) as served:
            operator.reach(mailer=served)
            for status in (500, 503):
                turns_of(world).turn()
                turns_of(world)._waiting["orders"].resume = 0.0
                for command in (("check",), ("outbox", "ls")):
                    text = " ".join(operator.out(0, *command).split())
                    assert "mailer: orders waits for its partner" in text, command
                    assert at_partner in text
                    assert str(status) in text
                answers.pop(0)
            with database_of(world.resource).setup() as connection:
                branch = outgoing_of(world).queue.branch
                old = branch.update().values(committed=time.time() - 600)
                connection.execute(old)
            for command in (("check",), ("ls",), ("outbox", "ls"), ("watch", "--once")):
                assert at_partner in operator.out(1, *command), command
            turns_of(world).turn()
            assert "waits for its partner" not in operator.out(0, "check")
    end(world.resource)


TAKEN_IN = "orders.7.1"
"""Committed everywhere, and its partner has not got all of it."""


def sending_by_hand(
    partner: str, url: str, timeout: float, path: str = "orders"
) -> World:
    """An outbox whose turns the test takes itself."""
    resource = outbox_to(f"{partner}/{path}", url, timeout=timeout)
    resource.start = lambda: None  # type: ignore[method-assign]
    world = World(resource, int)
    world.name = "mailer"
    return world


def down(url: str) -> World:
    """Nothing listens where the partner was, for ten minutes."""
    world = sending_by_hand("http://127.0.0.1:9", url, AT_ONCE)
    keep(world, TAKEN_IN, records(text=["a", "b"]))
    turns_of(world).turn()
    queue = outgoing_of(world)
    with database_of(world.resource).setup() as connection:
        connection.execute(
            queue.queue.branch.update().values(committed=time.time() - 600)
        )
    return world


def stopped(url: str) -> World:
    """The partner refuses all: ten are set aside, the others wait."""
    partner = Flask("partner")
    partner.post("/orders")(lambda: ("no", 422))
    with serving(partner) as served:
        world = sending_by_hand(served, url, PATIENT)
        keep(world, TAKEN_IN, records(text=list("abcdefghijkl")))
        turns_of(world).turn()
    return world


def relay_stopped(url: str) -> World:
    """The broker has a position of another store."""
    topic = Topic()
    world = relay_world(url, topic)
    world.name = "mailer"
    keep(world, TAKEN_IN, ONE)
    topic.position = Position(9, "orders.5.1", "of another store")
    publisher(world, TopicRelay(topic), PATIENT).turn()
    return world


AT_OUTBOX = {
    "backlog": (
        down,
        "2 requests wait",
        "its partner",
        "tpc_outbox_oldest_age_seconds",
    ),
    "refused_requests": (
        lambda url: refusing_outbox(url, records(text=["a"]), "mailer"),
        "1 refused request of orders",
        "its partner",
        "tpc_outbox_quarantined",
    ),
    "outbox_stopped": (stopped, "2 requests wait", "its partner", "tpc_outbox_stopped"),
    "relay_stopped": (
        relay_stopped,
        "1 transaction of orders",
        "its relay",
        "tpc_outbox_stopped",
    ),
}
"""What makes each, how many, whose fault it is, and the metric that is alerted on."""


@pytest.mark.parametrize("kind", AT_OUTBOX)
def test_all_faces_say_what_waits_at_an_outbox(
    operator: Operator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """How many, since when, whose fault, what is safe; and each ends with 1.

    The transaction itself is committed and finished, as is one before it, of which
    nothing is left to send.
    """
    make, many, whose, metric = AT_OUTBOX[kind]
    monkeypatch.setenv("TPC_PAUSE", "100ms")
    at = operator.at
    at.time.time = time.time() - 900
    before = at.committed(6, "mailer")
    at.time.time = time.time()
    world = make(sqlite_url(tmp_path, "mailer"))
    at.committed(7, "mailer")
    with serving(world.app) as served:
        operator.reach(mailer=served)
        found = {}
        for face in ("check", "watch --once", "ls --unfinished", "outbox ls"):
            code, out = operator.json(*face.split())
            assert code == 1, face
            every = out[0]["findings"] if face == "check" else out
            found[face] = [f for f in every if kind in (f["kind"], f.get("finding"))]
        is_listed = kind in ("refused_requests", "relay_stopped")
        assert [len(f) for f in found.values()] == [1, 1, 1, not is_listed]
        code, (view,) = operator.json("explain", TAKEN_IN)
        explained = [f for f in view["findings"] if f["kind"] == kind]
        assert (code, len(explained)) == (1, 1)
        _, (sent,) = operator.json("explain", str(before))
        assert kind not in {f["kind"] for f in sent["findings"]}
        for finding in itertools.chain(*found.values(), explained):
            texts = (many, whose, "since ")
            assert [text for text in texts if text not in finding["why"]] == []
            assert (finding["since"] > 0, finding["cure"] != "") == (True, True)
        said = {len(f["why"].split("no such card")) for f in explained}
        assert said == {1 + (kind == "refused_requests")}
        assert "no such card" not in str(found)  # what is logged has no records
        cure = explained[0]["cure"].partition("`")[0]
        pages = first_page(operator, many, f"/transactions/{TAKEN_IN}")
        assert (pages.count(many), pages.count(cure)) == (2, 2)
        for face in ("explain", "show"):
            assert many in operator.out(1, face, TAKEN_IN)
        metrics = world.client.get("/metrics").get_data(as_text=True)
        assert f"\n{metric} 0\n" not in metrics
    end(world.resource)


def refuses(world: Protocol, record: TransactionRecord) -> list[Receipt]:
    why = f"participant 'b': answered 409 to {record.id}: column amount: no"
    branch = BranchId(0, 1)
    vote = Receipt(branch, "b", 5, "sha-256=:x:", Vote.ABORT, reason=why)
    return [*branch_receipts(branch, 5, "sha-256=:x:", {"a": Vote.COMMIT}), vote]


def raises(world: Protocol, record: TransactionRecord) -> list[Receipt]:
    url = "http://anna:hunter2@partner/cards"
    raise KeyError(f"no card at {url}\n{'x' * 1000}")


def is_paused(world: Protocol, record: TransactionRecord) -> list[Receipt]:
    world.coordinator().begin(record.id.batch, "run-2", "query")
    raise KeyError("gone")


@pytest.mark.parametrize(
    ("write", "cause", "failed"),
    [
        (refuses, "vote", "at prepare: participant 'b': answered 409"),
        (raises, "error", "while it was written: KeyError: "),
        (is_paused, "superseded", "run run-2 has begun batch 5"),
    ],
)
def test_all_faces_say_why_a_transaction_was_aborted(
    operator: Operator, write: Any, cause: str, failed: str
) -> None:
    """Who answered or raised what at which step, in a line; and which attempt follows.

    A password in a URL is cut.
    """
    at = operator.at
    world = Protocol(at.log, FakeClock())
    with pytest.raises((TwoPhaseError, KeyError)):
        world.run_batch(5, write=lambda record: write(world, record))
    if write is not is_paused:
        assert world.run_batch(5, run="run-3")
    _, listed = operator.json("ls", "--log-only")
    row = next(one for one in listed if one.get("transaction") == "orders.5.1")
    _, (shown,) = operator.json("show", "orders.5.1")
    _, (explained,) = operator.json("explain", "orders.5.1")
    for face in (row, shown, explained):
        assert (face["cause"], failed in face["detail"]) == (cause, True)
        assert len(face["detail"]) <= LONGEST_DETAIL
    other = {"transaction": "orders.5.2", "state": shown["near"][0]["state"]}
    assert shown["near"] == explained["near"] == [other]
    pages = first_page(operator, "orders.5.1", "/transactions/orders.5.1")
    texts = [pages, operator.out(1, "ls"), json.dumps(row)]
    texts += [operator.says(face, "orders.5.1")[1] for face in ("explain", "show")]
    for text in (" ".join(html.unescape(text).split()) for text in texts):
        assert failed in text
        assert "hunter2" not in text
    assert "attempt 2 follows" in " ".join(texts[-1].split())
    assert 'href="/transactions/orders.5.2"' in pages


def test_an_outbox_logs_once_why_its_partner_does_not_take_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the address, until the reason changes; and when it takes them again."""
    caplog.set_level("INFO", "tracing_2pc.outbox")
    answers, partner = [503, 503, 503, 200], Flask("partner")
    partner.post("/secret")(lambda: ("", answers.pop(0)))
    with serving(partner) as served:
        world = sending_by_hand(served, sqlite_url(tmp_path), PATIENT, "secret")
        keep(world, TAKEN_IN, records(text=["a"]))
        while answers:
            turns_of(world).turn()
            turns_of(world)._waiting["orders"].resume = 0.0
    end(world.resource)
    lines = [r.message for r in caplog.records if r.name == "tracing_2pc.outbox.sender"]
    assert [served in line for line in lines] == [True, False]
    assert ("answered 503" in lines[0], "3 tries" in lines[1]) == (True, True)
    assert "secret" not in caplog.text.replace("POST /secret", "")


def said(findings: list[dict[str, str]]) -> set[tuple[str, str]]:
    return {(one["where"], one["kind"]) for one in findings}
