"""What an earlier release has written is read, and finished, by this one."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import urllib3
from manual import ROOT

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.participant import TaggedRows
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


@pytest.fixture(params=RELEASES, ids=lambda folder: folder.name)
def release(request, tmp_path, monkeypatch) -> Iterator[Path]:
    """The files of a release; its databases are in the current folder."""
    monkeypatch.chdir(tmp_path)
    for dump in request.param.glob("*.sql"):
        with contextlib.closing(sqlite3.connect(f"{dump.stem}.db")) as database:
            database.executescript(dump.read_text(encoding="utf-8"))
    return request.param


def rows() -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect("ledger.db")) as database:
        return database.execute("SELECT id, amount FROM orders ORDER BY id").fetchall()


def test_there_is_a_release():
    assert RELEASES


def test_its_transactions_are_read_and_finished(release):
    """Each record, by its checksum; what it had decided, its successor's job delivers;
    what it had committed is a replay, and is confirmed."""
    with (
        contextlib.closing(open_log("sqlite:///log.db")) as log,
        served(TaggedRows("sqlite:///ledger.db", table="orders"), "ledger") as url,
    ):
        for name, state in STATES.items():
            record = log.read(TransactionId.parse(name))
            assert record is not None
            assert record.state is state, name
        assert rows() == [(0, 0.5), (1, 1.5)]
        settings = Settings(log="sqlite:///log.db")
        sink = ParticipantSink({"ledger": url}, token=None)
        job = Job.of(sink, "orders", settings)
        coordinator = job.coordinator(log, OpenTelemetryTracing(), lambda: False)
        assert coordinator.open(2, "a-later-run", None).replay
        assert rows() == [(0, 0.5), (1, 1.5), (2, 2.5)]
        assert not coordinator.open(3, "a-later-run", None).replay
        (going_on,) = log.unfinished("orders")
        assert going_on.id == TransactionId("orders", 3, 1)


def test_its_answers_are_answered(release):
    """Every field of then is there, with the same value; there may be more."""
    answers = json.loads((release / "answers.json").read_text(encoding="utf-8"))
    assert len(answers) == len(STATES) + 1
    with served(TaggedRows("sqlite:///ledger.db", table="orders"), "ledger") as url:
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
