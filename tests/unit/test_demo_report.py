"""The demo: its data, what it shows of the batch that was hit, its webhook."""

from __future__ import annotations

import csv
import gzip
import os
import re
import sqlite3
from typing import Any

import pytest

from participants import flights
from participants.demo_report import Kill, crashed_trace
from participants.oracle import expected
from participants.webhook import create_app


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


def test_an_attempt_that_was_aborted_and_the_one_after_it():
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


def test_without_a_kill_it_is_the_last_batch():
    spans = [root("a", "flights.0.1", "commit"), root("b", "flights.1.1", "commit")]
    assert crashed_trace(spans, []) == [
        "",
        "the trace of flights.1.1: commit",
        "  tpc.transaction",
    ]
    assert crashed_trace([], []) == []


@pytest.fixture(scope="module")
def rows():
    """All flights, as the files hold them."""
    found = []
    for day in flights.DAYS:
        with gzip.open(flights.file_of(day), "rt", newline="") as file:
            found += csv.DictReader(file)
    return found


@pytest.fixture
def table(rows):
    """The flights in SQLite: a second reader of the job's SQL."""
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE flights ({flights.SCHEMA})")
    marks = ", ".join("?" * len(rows[0]))
    connection.executemany(
        f"INSERT INTO flights VALUES ({marks})",
        ([cell or None for cell in row.values()] for row in rows),
    )
    yield connection
    connection.close()


def test_the_month_is_whole(rows):
    """27,004 real flights: counts and sums are those of the source."""
    assert len(rows) == 27_004
    assert sum(row["dep_time"] == "" for row in rows) == 521
    assert sum(int(row["dep_delay"] or 0) for row in rows) == 265_801
    assert sum(int(row["arr_delay"] or 0) for row in rows) == 161_819


def test_a_flight_is_identified_by_day_carrier_and_number(rows):
    """No two rows share the identity that the oracle judges by."""
    assert len({(r["day"], r["carrier"], r["flight"]) for r in rows}) == len(rows)


def test_each_file_holds_its_own_day_only(rows):
    """A batch of one file is one day."""
    for day in flights.DAYS:
        with gzip.open(flights.file_of(day), "rt", newline="") as file:
            dates = {(r["year"], r["month"], r["day"]) for r in csv.DictReader(file)}
        assert dates == {("2013", "1", str(day))}


def test_the_files_can_be_made_again_byte_for_byte():
    """No time and no name of a machine is in a file; all are small."""
    sizes = 0
    for day in flights.DAYS:
        content = flights.file_of(day).read_bytes()
        assert content[3:8] == bytes(5), "flags (no name) and time"
        sizes += len(content)
    assert sizes < 500_000


def test_the_schema_names_the_columns_in_order(rows):
    """Spark reads the columns by the schema that the job gives."""
    assert re.findall(r"(\w+) (?:int|string)", flights.SCHEMA) == list(rows[0])


def test_the_job_and_the_oracle_agree_on_the_ledger(table):
    """Two implementations, one in SQL and one in Python, give the same sums."""
    columns = [*flights.GROUP.items(), *flights.MEASURES.items()]
    select = ", ".join(f"{text} AS {name}" for name, text in columns)
    group = ", ".join(flights.GROUP.values())
    found = table.execute(f"SELECT {select} FROM flights GROUP BY {group}").fetchall()
    assert {row[:3]: row[3:] for row in found} == expected.expected_sums(_source())
    assert len(found) == 975


def test_the_job_and_the_oracle_agree_on_whom_to_notify(table):
    """Cancelled, or arrived more than two hours late: 521 and 612 flights."""
    select = ", ".join(flights.NOTICE.values())
    found = table.execute(
        f"SELECT {select} FROM flights WHERE {flights.NOTIFIED}"
    ).fetchall()
    told = {(row[0], row[1], str(row[2])): row[3:] for row in found}
    assert told == expected.expected_notices(_source())
    assert sorted(row[6] for row in found).index("late") == 521
    assert len(found) == len(told) == 521 + 612


def test_a_stream_sees_whole_files_oldest_day_first(tmp_path):
    """`feed` leaves files under their names only, in order of their days."""
    flights.feed(tmp_path, (3, 1, 2))
    found = sorted(tmp_path.iterdir(), key=os.path.getmtime)
    assert [path.name for path in found] == [
        f"flights-2013-01-0{day}.csv.gz" for day in (1, 2, 3)
    ]


def _source():
    return [
        flight
        for day in flights.DAYS
        for flight in expected.read_day(f"2013-01-{day:02}")
    ]


def test_each_alert_is_a_line(capsys):
    """Who is called, about what and whom, and whether it is over."""
    alert = {
        "status": "resolved",
        "labels": {"alertname": "TpcTransactionStuck", "participant": "ledger"},
        "annotations": {"summary": "stuck\nfor long"},
    }
    posted = {"alerts": [alert, {**alert, "labels": {"alertname": "TpcOrphaned"}}]}
    answer = create_app().test_client().post("/alerts/critical", json=posted)
    assert answer.get_json() == {"printed": 2}
    assert capsys.readouterr().out.splitlines() == [
        "critical resolved TpcTransactionStuck ledger: stuck for long",
        "critical resolved TpcOrphaned: stuck for long",
    ]


def test_each_alarm_of_skywalking_is_a_line(capsys):
    """With the text that its rule has."""
    alarm = {"ruleName": "tpc_stuck_rule", "alarmMessage": "watch: stuck"}
    assert (
        create_app().test_client().post("/skywalking", json=[alarm]).status_code == 200
    )
    assert capsys.readouterr().out == "skywalking firing tpc_stuck_rule: watch: stuck\n"


@pytest.mark.parametrize("path", ["/alerts/warning", "/skywalking"])
def test_what_is_no_alert_is_refused(path):
    """A test of the route with anything else is not printed."""
    assert create_app().test_client().post(path, json="hello").status_code == 400
