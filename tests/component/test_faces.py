"""Each command, the console, a metric and the exit codes say one list."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.branches import ONE, records
from support.cli import Operator
from support.console import GATE, VIEWER, visitor
from support.kinds import refusing_outbox, sqlite_url
from support.participant import World, end, keep
from support.relay import Topic, TopicRelay, publisher, relay_world
from support.spark import serving
from support.waiting import PATIENT, until

from tracing_2pc.console.app import console
from tracing_2pc.console.state import ConsoleSources
from tracing_2pc.core.ports import SystemClock
from tracing_2pc.core.settings import Settings
from tracing_2pc.operations.recover import deliver
from tracing_2pc.operations.wiring import open_participants
from tracing_2pc.outbox.relay import Position

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
    settings, log = Settings.load(), operator.at.log
    reach = (log, open_participants(settings), settings)
    tell = lambda record: deliver(log, settings, record)  # noqa: E731
    app = console(ConsoleSources(*reach, tell, SystemClock()), GATE)
    person = visitor(app, VIEWER)
    page = until(lambda: "mailer" in (text := person.get("/")) and text)
    assert {where for where, _ in WRONG if where not in page} == set()
    assert "3 transactions need you" in page


def said(findings: list[dict[str, str]]) -> set[tuple[str, str]]:
    return {(one["where"], one["kind"]) for one in findings}
