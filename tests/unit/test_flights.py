"""The demo's data is what its README says, and the job's rules are what they say."""

import csv
import gzip
import os
import re
import sqlite3

import pytest

from participants import flights
from participants.oracle import expected


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
