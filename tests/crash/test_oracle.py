"""The oracle sees each fault that it is there for: planted, and counted."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from support.spark import serving

from crash import databases, oracle, report, source
from crash.oracle import Places, Record, Verdict
from crash.points import HERE, SCENARIOS, Scenario
from crash.runs import Result, points
from participants.partner import Store, create_app
from tracing_2pc.core.ports import Opening
from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.outbox import Outbox
from tracing_2pc.participant import TaggedRows
from tracing_2pc.store import open_log

APPLICATION = "crash"
ONE = (APPLICATION, 1, 8, 0)
"""A record of the middle batch."""

A_BATCH, TWICE = source.PARTITIONS * source.ROWS, Verdict(duplicated=2)


@pytest.fixture
def places(tmp_path) -> Iterator[Places]:
    """A source, and participants that hold it."""
    source.write(tmp_path, [APPLICATION])
    urls = databases.sqlite(tmp_path)
    open_log(urls["log"]).close()
    records = sorted(oracle.expected(tmp_path / "source"))
    with sqlite3.connect(tmp_path / "ledger.db") as ledger:
        ledger.execute("CREATE TABLE numbers (application, batch, value, text)")
        ledger.executemany("INSERT INTO numbers VALUES (?, ?, ?, zeroblob(?))", records)
    ledger.close()
    partner = tmp_path / "partner.db"
    with serving(create_app(str(partner))) as url:
        for record in records:
            tell(tmp_path, record)
        told = f"{url}/notifications"
        held = {name: urls[name] for name in ("ledger", "notifier")}
        yield Places(tmp_path / "source", urls["log"], held, "numbers", told)


def tell(folder: Path, record: Record, key: str | None = None) -> None:
    application, batch, value, length = record
    body = {"application": application, "batch": batch, "value": value}
    text = json.dumps({**body, "text": "x" * length})
    Store(str(folder / "partner.db")).add(key or str(record), text)


def change(places: Places, where: str, *statements: str) -> None:
    url = {**places.databases, "log": places.log}[where]
    with contextlib.closing(sqlite3.connect(sa.make_url(url).database or "")) as file:
        for statement in statements:
            file.execute(statement)
        file.commit()


def test_all_is_well(places):
    """Where everybody holds the source, once, all is zero but drivers not finished."""
    assert oracle.judge(places, 0) == Verdict()
    assert oracle.judge(places, 2) == Verdict(stuck=2)
    assert oracle.expected(places.source).total() == source.BATCHES * A_BATCH


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("DELETE FROM numbers WHERE value = 8", Verdict(lost=1)),
        ("INSERT INTO numbers VALUES ('crash', 1, 8, ''), ('crash', 1, 8, '')", TWICE),
        ("INSERT INTO numbers VALUES ('crash', 1, 4711, '')", Verdict(duplicated=1)),
        ("DELETE FROM numbers WHERE batch = 1", Verdict(lost=A_BATCH, split=1)),
        (
            "UPDATE numbers SET text = 'x' WHERE value = 8",
            Verdict(lost=1, duplicated=1),
        ),
    ],
    ids=["lost", "there twice", "never in the source", "split", "altered"],
)
def test_rows_of_one_participant_are_counted(places, statement, wrong):
    """Lost, or there more often than the source says; a batch that is not shown."""
    change(places, "ledger", statement)
    assert oracle.judge(places, 0) == wrong


def test_a_lost_notification_is_counted(places, tmp_path):
    """What the partner was never told is lost."""
    with sqlite3.connect(tmp_path / "partner.db") as partner:
        partner.execute("DELETE FROM notification WHERE key = ?", (str(ONE),))
    partner.close()
    assert oracle.judge(places, 0) == Verdict(lost=1)


def test_a_notification_under_two_keys_is_counted(places, tmp_path):
    """The same record twice at the partner; the same key twice is one."""
    tell(tmp_path, ONE)
    assert oracle.judge(places, 0) == Verdict()
    tell(tmp_path, ONE, "another key")
    assert oracle.judge(places, 0) == Verdict(duplicated=1)


def test_files_are_judged_too(places, tmp_path):
    """Lost, doubled, split; also what lies aside under a name that readers take; and
    what was left aside under no such name is stuck."""
    out = tmp_path / "out"
    where = dataclasses.replace(places, files=out)
    for batch in range(source.BATCHES):
        write_file(out / f"batch={batch}" / "all.parquet", batch)
    assert oracle.judge(where, 0) == Verdict()
    write_file(out / ".tpc" / "t" / "batch=1" / "again.parquet", 1)
    assert oracle.judge(where, 0) == Verdict(duplicated=A_BATCH, stuck=1)
    shutil.rmtree(out / ".tpc")
    shutil.rmtree(out / "batch=1")
    assert oracle.judge(where, 0) == Verdict(lost=A_BATCH, split=1)


def test_a_rejected_row_is_right_in_one_place_only(places, tmp_path):
    """In the table of rejected rows, once; at any other it is one too many."""
    url = databases.sqlite(tmp_path)["rejected"]
    where = dataclasses.replace(
        places, databases={**places.databases, "rejected": url}, refused=2
    )
    records = [r for r in oracle.expected(places.source) if r[2] % 4 == 2]
    number = len(records)
    assert oracle.judge(where, 0) == Verdict(lost=number, duplicated=2 * number)
    oracle.write(url, "CREATE TABLE rejected (record)")
    for application, batch, value, _ in records:
        row = {"application": application, "batch": batch, "value": value, "text": ""}
        oracle.write(url, f"INSERT INTO rejected VALUES ('{json.dumps(row)}')")
    change(places, "ledger", "DELETE FROM numbers WHERE value % 4 = 2")
    assert oracle.judge(where, 0) == Verdict(duplicated=number)
    partner = tmp_path / "partner.db"
    oracle.write(
        f"sqlite:///{partner}",
        "DELETE FROM notification WHERE json_extract(body, '$.value') % 4 = 2",
    )
    assert oracle.judge(where, 0) == Verdict()
    oracle.write(url, "INSERT INTO rejected SELECT * FROM rejected LIMIT 1")
    assert oracle.judge(where, 0) == Verdict(duplicated=1)


def write_file(path: Path, batch: int) -> None:
    path.parent.mkdir(parents=True)
    values = list(range(batch * A_BATCH, (batch + 1) * A_BATCH))
    same = {"application": [APPLICATION] * A_BATCH, "text": [""] * A_BATCH}
    columns = {**same, "value": values}
    pq.write_table(pa.table(columns), path)


def test_a_batch_that_nobody_shows_is_lost_and_not_split():
    """Split means that they differ."""
    wanted = Counter([ONE])
    held = {"ledger": Counter[Record](), "notifier": Counter[Record]()}
    assert oracle.compare(wanted, held) == Verdict(lost=2)


def test_an_unfinished_transaction_is_stuck(places):
    """Whatever its state."""
    log = open_log(places.log)
    log.begin(
        APPLICATION,
        0,
        Opening(run="r", query=None, participants=["ledger"], carrier={}),
    )
    log.close()
    assert oracle.judge(places, 0) == Verdict(stuck=1)


def test_a_branch_in_doubt_is_stuck(places):
    """At either participant."""
    rows = TaggedRows(places.databases["ledger"], "others")
    rows.open()
    rows.close()
    change(
        places,
        "ledger",
        "INSERT INTO others_tpc_branch (application, batch, attempt, partition, "
        "task_attempt, state, rows, digest, checksum, since) "
        "VALUES ('crash', 1, 1, 0, 0, 'prepared', 1, 'x', 0, 0)",
    )
    assert oracle.judge(places, 0) == Verdict(stuck=1)


def test_a_request_that_was_not_sent_is_stuck(places):
    """It waits in the queue, or for a person; a prepared one waits for its branch."""
    requests = Outbox(places.databases["notifier"], HttpPartner(places.partner))
    requests.open()
    requests.close()
    change(places, "notifier", "INSERT INTO outbox_tpc VALUES (1, 0, '{}')")
    assert oracle.judge(places, 0) == Verdict()
    row = "('crash', 1, 0, 0, 1, 1, '{}', 0, 1, 0)"
    queued = f"INSERT INTO outbox_tpc_queue VALUES {row}"
    change(places, "notifier", queued)
    assert oracle.judge(places, 0) == Verdict(stuck=1)
    row = "('key', 'refused', 422, 0, NULL, '{}')"
    aside = f"INSERT INTO outbox_tpc_quarantine VALUES {row}"
    change(places, "notifier", aside)
    assert oracle.judge(places, 0) == Verdict(stuck=2)


def test_every_failpoint_has_a_scenario():
    """And a row of the table, so that a new one cannot be forgotten."""
    assert {s.point for s in SCENARIOS} >= HERE
    assert set(points()) >= HERE


def test_what_is_not_clean():
    """Any count, any remark, such as a point that never fired, and no run at all."""
    assert report.row("p", [Result(Verdict())]).clean
    assert not report.row("p", []).clean
    assert not report.row("p", [Result(Verdict()), Result(Verdict(split=1))]).clean
    assert not report.row("p", [Result(Verdict(), remark="never fired: p")]).clean


def test_runs_are_varied():
    """Every kind, victim and time comes up; the kinds first."""
    scenario = Scenario("participant.x", ("a", "b"), (1, 2), kinds=("k", "l"))
    assert [v.kind for v in scenario.variants(2)] == ["k", "l"]
    assert len(set(scenario.variants(8))) == 8
    assert len(scenario.variants(30)) == 30
