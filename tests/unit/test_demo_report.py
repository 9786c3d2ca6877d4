"""The demo: its data, what it shows of the batch that was hit, its webhook."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import gzip
import os
import pty
import re
import sqlite3

import pytest
from support.texts import texts

from participants import flights
from participants.demo_report import Kill, Summary
from participants.demo_screen import Flight, show_batch, why_slow
from participants.oracle import Verdict, expected
from participants.webhook import create_app

TEXTS = texts("unit")

VERDICT = Verdict(31, 27_004, 975, 1_133, 1_150, 0, 0, 0, 0, ())
HIT = Kill("notifier", "participant.before_commit", "flights.5.1", "committing", {})


def test_what_was_found_is_said_in_words():
    """A sentence for each promise; a broken one is a number, and asks for a report."""
    good = [*Summary(VERDICT, [HIT], 31, 1, 0, ["the trace"], 97.0).lines()]
    text = "\n".join(good)
    assert good[0] == "the trace"
    for name in (
        "demo: 0 lost",
        "demo: 0 duplicated",
        "demo: 0 wrong",
        "demo: 0 split",
        "demo: 0 unfinished",
    ):
        assert TEXTS[name] in text
    assert TEXTS["demo: good"] in text
    some = dataclasses.replace(VERDICT, ledger_rows=624, rejected=351)
    text = "\n".join(Summary(some, [HIT], 31, 1, 0, [], 97.0).lines())
    assert TEXTS["demo: rejected"] in text
    bad = dataclasses.replace(VERDICT, lost=2, notes=("2013-01-05 AA 33",))
    lines = [*Summary(bad, [], 30, 0, 1, [], 97.0).lines()]
    assert "  2 lost" in lines
    assert "  1 unfinished" in lines
    assert "  2013-01-05 AA 33" in lines
    assert TEXTS["demo: good"] not in "\n".join(lines)


def test_a_flight_is_shown_at_one_place_and_at_both():
    """What the driver's end leaves behind, and what the next one makes of it."""
    flight = Flight.of_day(3)
    at_one, at_both = (
        [line for line, _ in flight.lines(places)] for places in ((1, 0), (1, 1))
    )
    assert at_one[0].strip() == at_both[0].strip() == str(flight)
    shown = [
        [line.split("  ")[-1].strip() for line in s[1:]] for s in (at_one, at_both)
    ]
    assert shown == [["there, once", "NOT THERE"], ["there, once", "there, once"]]


@pytest.mark.parametrize(("load", "busy"), [(9.0, True), (0.5, False)])
def test_a_demo_that_does_not_move_says_whether_the_machine_is_slow(
    monkeypatch, load, busy
):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert (TEXTS["demo: busy"] in why_slow()) is busy
    assert f"load {load}" in why_slow()


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(capsys):
    """Whoever pipes it gets neither colours nor a cursor that moves."""
    show_batch(3, 6)
    assert capsys.readouterr().err == "batch  3 of 6 is committed in both\n"
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal, contextlib.redirect_stderr(terminal):
        show_batch(3, 6)
    shown = ""
    while " days" not in shown:  # a terminal gives what has come so far
        shown += os.read(ours, 4096).decode()
    os.close(ours)
    assert "] 3 of 6 days" in shown
    assert shown.count("#") == shown.count(".") - 1
    assert "\n" not in shown


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
