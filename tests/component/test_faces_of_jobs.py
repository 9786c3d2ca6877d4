"""A job that is down is said to be down, by every face, and whose fault it is."""

from __future__ import annotations

import html
import re
import time

import pytest
from support.cli import Operator
from support.console import VIEWER, console_of, visitor
from support.waiting import until
from support.watch import Site

from tracing_2pc.inspection.findings import LATELY
from tracing_2pc.inspection.jobs import MISSED, UNSEEN

TABLE_ALTERED = "batch 6: ledger votes abort: the table has no column region"


@pytest.fixture(autouse=True)
def now(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the site's clocks be the machine's, and two looks be close together."""
    monkeypatch.setenv("TPC_PAUSE", "100ms")
    operator.at.time.time = time.time()


def report(at: Site, run: str = "r1", seen: float = 0.0, process: int = 7) -> None:
    """Let the driver of orders report so many seconds ago."""
    before, at.time.time = at.time.time, time.time() - seen
    at.log.report_presence("orders", run, host="host-3", process=process)
    at.time.time = before


def faces(operator: Operator) -> dict[str, tuple[int, str]]:
    """Return the exit code and the text of each face."""
    said = {
        name: operator.says(name, *more)[:2]
        for name, more in {"check": (), "ls": (), "watch": ("--once",)}.items()
    }
    person = visitor(console_of(operator.at), VIEWER)
    page = until(lambda: "were asked" in (text := person.get("/")) and text)
    said["console"] = (0, re.sub(r"<[^>]*>", "", html.unescape(page)))
    return {name: (code, " ".join(text.split())) for name, (code, text) in said.items()}


@pytest.mark.parametrize(
    ("seen", "severity"), [(UNSEEN, "warning"), (MISSED, "critical")]
)
def test_a_driver_that_was_killed_is_missed(
    operator: Operator, seen: float, severity: str
) -> None:
    """Where it ran, and when it was seen last; critical after two minutes."""
    report(operator.at, seen=seen)
    for name, (_, text) in faces(operator).items():
        assert "orders: its driver, process 7 on host-3, was last seen" in text, name
    _, (checked,) = operator.json("check")
    (finding,) = checked["findings"]
    assert (finding["kind"], finding["severity"]) == ("job_gone", severity)
    assert finding["age"] >= seen


def test_a_stream_that_waits_or_was_stopped_is_well(operator: Operator) -> None:
    """Green: a driver that reports though no batch comes, and one that was stopped."""
    report(operator.at, seen=UNSEEN / 2)
    assert {code for code, _ in faces(operator).values()} == {0}
    assert "its driver, process 7 on host-3, was seen" in operator.out(0, "check")
    operator.at.log.report_end("orders", "r1")
    assert {code for code, _ in faces(operator).values()} == {0}
    assert "its job was stopped" in operator.out(0, "check")


def test_two_drivers_of_one_application_are_named(operator: Operator) -> None:
    """The earlier run is to be ended; its batches are refused."""
    report(operator.at, "r1", seen=UNSEEN / 2)
    report(operator.at, "r2", process=8, seen=UNSEEN / 3)
    operator.out(0, "check")  # the first one may have been killed before that
    report(operator.at, "r1", seen=UNSEEN / 4)
    _, (checked,) = operator.json("check")
    (finding,) = checked["findings"]
    assert finding["kind"] == "two_drivers"
    assert "process 7 on host-3, beside process 8 on host-3" in finding["why"]


def test_rows_that_were_rejected_are_named_for_an_hour(operator: Operator) -> None:
    """Of the newest batch that had some: how many, when, and where they are kept."""
    with operator.at.time.earlier(LATELY):
        operator.at.rejecting(6)
    assert {code for code, _ in faces(operator).values()} == {0}
    with operator.at.time.earlier(LATELY / 2):
        operator.at.rejecting(7)
    for name, (code, text) in faces(operator).items():
        assert code == (name != "console"), name
        assert "orders: 3 rows of orders.7.1 were refused at" in text, name
        assert "and kept at notifier" in text, name
    _, (checked,) = operator.json("check")
    (finding,) = checked["findings"]
    assert (finding["kind"], finding["severity"]) == ("rows_rejected", "warning")
    assert "look at them there" in finding["cure"]


def test_a_decision_that_nobody_delivers_is_no_fault_of_participants(
    operator: Operator,
) -> None:
    """They were never asked: the job is to be started, and nobody is given up."""
    operator.at.time.time -= 2 * MISSED
    record = operator.at.log.read(operator.at.committing(7))
    assert record is not None
    operator.at.time.time += 2 * MISSED
    report(operator.at, record.run, seen=2 * MISSED)
    said = faces(operator)
    assert "4 min 3 its driver held_back" in said.pop("ls")[1]
    for name, (_, text) in said.items():
        assert "nobody delivers it: its driver, process 7 on host-3, was last seen" in (
            text
        ), name
    text = " ".join(operator.out(1, "explain", "orders.7.1").split())
    assert "its driver, process 7 on host-3, was last seen" in text
    assert "start the job of orders" in text
    assert "commit again" not in text
    assert "--give-up" not in text


def test_what_is_acknowledged_waits_for_nobody(operator: Operator) -> None:
    """Also where the job that wrote it was stopped, or is gone."""
    id_ = operator.at.committing(7)
    record = operator.at.log.read(id_)
    assert record is not None
    for name in record.participants:
        operator.at.commit(id_, name)
    operator.at.finish(id_)
    report(operator.at, record.run)
    operator.at.log.report_end("orders", record.run)
    assert "its driver" not in operator.out(0, "ls")
    assert "nobody delivers it" not in operator.out(0, "explain", str(id_))


def test_an_application_that_is_retired_is_missed_no_more(operator: Operator) -> None:
    """A person says why, once its driver is not seen; a running job is not retired."""
    retire = ("retire", "--application", "orders", "--reason", "it has moved", "--yes")
    report(operator.at, seen=2 * MISSED)
    report(operator.at)
    assert "was seen 0 s ago. Stop its query" in operator.err(2, *retire)
    operator.at.log.report_end("orders", "r1", TABLE_ALTERED)
    assert "no driver of it is missed" in operator.out(0, *retire)
    operator.out(0, "check")
    report(operator.at, "r2", seen=UNSEEN)
    operator.out(1, "check")


def test_a_log_that_cannot_be_read_says_nothing_of_jobs(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not known is not gone."""
    report(operator.at, seen=MISSED)
    monkeypatch.setenv("TPC_LOG", "postgresql://me@127.0.0.1:9/log")
    assert "its driver" not in operator.out(1, "check")


def test_a_log_without_a_table_of_drivers_shows_the_rest(operator: Operator) -> None:
    """As to a role without a right on it: that nothing is known of jobs is said."""
    operator.at.committing(7)
    with operator.at.base.write() as connection:
        connection.exec_driver_sql("DROP TABLE tpc_presence")
    said = faces(operator)
    assert "orders.7.1 committing" in said["ls"][1]
    for name, (_, text) in said.items():
        assert "jobs" in text, name
        assert "tpc_presence" in text, name
