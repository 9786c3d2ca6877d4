"""What an earlier release has written is read, and finished, by this one."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import urllib3
from manual import ROOT
from support.participant import select
from support.waiting import until

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.model import RequestKey, TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.inbox.event import NewEvent
from tracing_2pc.inbox.inbox import Inbox
from tracing_2pc.outbox import Outbox
from tracing_2pc.outbox.partner import PartnerAnswer
from tracing_2pc.outbox.requests import Request
from tracing_2pc.participant import TaggedRows
from tracing_2pc.participant.requests import RequestOrder
from tracing_2pc.sinks.job import Job
from tracing_2pc.store import open_log
from tracing_2pc.testing import served
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

RELEASES: Final = sorted(p for p in (ROOT / "tests" / "golden").glob("*.*.*"))
STATES: Final = {
    "orders.0.1": TransactionState.COMMITTED,
    "orders.1.1": TransactionState.ABORTED,
    "orders.1.2": TransactionState.COMMITTED,
    "orders.2.1": TransactionState.COMMITTING,
}


QUARANTINED: Final = ("orders.0.1.0.0.0", '{"id": 0, "amount": 0.5}')
QUEUED: Final = [
    ("orders.1.2.0.0.0", '{"id": 1, "amount": 1.5}'),
    ("orders.2.1.0.0.0", '{"id": 2, "amount": 2.5}'),
]
Urls = Callable[[str], str]


class Taking:
    """A partner that takes everything."""

    checks, request, bulk, longest = False, None, 1, 1.0

    def __init__(self) -> None:
        self.taken: list[tuple[str, str]] = []

    def check(self, records: Sequence[str]) -> None:
        pass

    def send(self, requests: Sequence[Request]) -> Sequence[PartnerAnswer]:
        self.taken.extend((request.key, request.body) for request in requests)
        return [PartnerAnswer(200, is_taken=True)]


@pytest.fixture(params=RELEASES, ids=lambda folder: folder.name)
def release(request, tmp_path, monkeypatch) -> Path:
    """The files of a release; a folder of the test's own is the current one."""
    monkeypatch.chdir(tmp_path)
    return request.param


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.ci)])
def urls(request, release) -> Urls:
    """The URL of a release's log, ledger, notifier or inbox, restored."""
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_database")
        with psycopg.connect(url) as connection:
            connection.execute((release / "postgresql.sql").read_bytes())
        return lambda _: url
    for dump in release.glob("*.sql"):
        if dump.stem != "postgresql":
            with contextlib.closing(sqlite3.connect(f"{dump.stem}.db")) as database:
                database.executescript(dump.read_text(encoding="utf-8"))
    return lambda name: f"sqlite:///{name}.db"


def test_there_is_a_release():
    assert RELEASES


def test_its_transactions_are_read_and_finished(urls):
    """Each record, by its checksum; what it had decided, its successor's job delivers;
    what it had committed is a replay, and is confirmed. An outbox goes on where it was,
    with the same keys, and with what a person has sent again."""
    ledger, partner = TaggedRows(urls("ledger"), table="orders"), Taking()
    outbox = Outbox(urls("notifier"), partner)

    def rows() -> list[tuple[Any, ...]]:
        return select(ledger, "SELECT id, amount FROM orders ORDER BY id")

    with (
        contextlib.closing(open_log(urls("log"))) as log,
        served(ledger, "ledger") as one,
        served(outbox, "notifier") as other,
    ):
        for name, state in STATES.items():
            record = log.read(TransactionId.parse(name))
            assert record is not None
            assert record.state is state, name
        assert rows() == [(0, 0.5), (1, 1.5)]
        settings = Settings(log=urls("log"))
        sink = ParticipantSink({"ledger": one, "notifier": other}, token=None)
        job = Job.of(sink, "orders", settings)
        coordinator = job.coordinator(log, OpenTelemetryTracing(), lambda: False)
        assert coordinator.open(2, "a-later-run", None).replay
        assert rows() == [(0, 0.5), (1, 1.5), (2, 2.5)]
        until(lambda: len(partner.taken) == 2)
        key = RequestKey.parse(QUARANTINED[0])
        outbox.send_again(RequestOrder(key, "notifier", "a person", "it is valid now"))
        until(lambda: len(partner.taken) == 3)
        assert partner.taken == [*QUEUED, QUARANTINED]
        assert not coordinator.open(3, "a-later-run", None).replay
        (going_on,) = log.unfinished("orders")
        assert going_on.id == TransactionId("orders", 3, 1)


def test_its_inbox_is_read_on(urls):
    """Its reader goes on where it was; an id is known; positions go on."""
    with contextlib.closing(Inbox(urls("inbox"), must_exist=True)) as inbox:
        here = inbox.begin("orders", newest=True)
        assert [event.id for event in inbox.read(here, inbox.end())] == ["e2"]
        again, new = (NewEvent(f"e{n}", f'{{"id": {n}}}') for n in (1, 3))
        assert inbox.store("shop", [again, new]) == [("e1", 1, False), ("e3", 3, True)]
        with pytest.raises(RefusalError):
            inbox.store("shop", [NewEvent("e1", '{"id": 7}')])
        read = [(e.position, e.body) for e in inbox.read(here, inbox.end())]
        assert read == [(2, '{"id": 2}'), (3, '{"id": 3}')]


@pytest.mark.parametrize("urls", ["sqlite"], indirect=True)
def test_its_answers_are_answered(release, urls):
    """Every field of then is there, with the same value; there may be more."""
    answers = json.loads((release / "answers.json").read_text(encoding="utf-8"))
    assert len(answers) == len(STATES) + 1
    with served(TaggedRows(urls("ledger"), table="orders"), "ledger") as url:
        for route, then in answers.items():
            now = urllib3.request("GET", url + route)
            assert now.status == then["status"], route
            assert lacking(then["body"], json.loads(now.data)) == [], route


def lacking(then: Any, now: Any, at: str = "") -> list[str]:
    """Name what is not there, or has another value; the time of asking is always."""
    if at.rpartition(".")[2] in {"now", "age"}:
        return []
    if isinstance(then, dict) and isinstance(now, dict):
        return [
            path
            for name in then
            for path in lacking(then[name], now.get(name), f"{at}.{name}")
        ]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = zip(then, now, strict=True)
        return [
            p for n, (a, b) in enumerate(pairs) for p in lacking(a, b, f"{at}[{n}]")
        ]
    return [] if then == now else [at]


def test_a_field_that_is_gone_is_named():
    """The comparison itself can fail."""
    then = {"now": 1, "state": "committed", "branches": [{"rows": 1, "branch": "0.0"}]}
    now = {"now": 2, "state": "committed", "branches": [{"rows": 2}], "new": True}
    assert lacking(then, now) == [".branches[0].rows", ".branches[0].branch"]
    assert lacking(then, {**then, "new": True}) == []
