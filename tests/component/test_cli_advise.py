"""`advise`: which trigger interval the records of a real log speak for."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator

import pytest
from support.cli import ROOT
from support.texts import texts
from support.watch import Time

from tracing_2pc.cli import main
from tracing_2pc.core.model import BranchId, branch_receipts
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision, Vote
from tracing_2pc.store import SqlDecisionLog, open_log

TEXTS = texts("component")

NAMES = ("ledger", "notifier")
ON_RECORD = 600.0
"""The transaction timeout of the job."""


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def log(tmp_path, monkeypatch, time) -> Iterator[SqlDecisionLog]:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/decisions.db"
    monkeypatch.setenv("TPC_LOG", url)
    with contextlib.closing(open_log(url, now=time)) as log:
        yield log


def write(log: SqlDecisionLog, time: Time, batch: int, rows: int) -> None:
    """One batch of a stream: 2 s, a millisecond for each row, half a second to tell."""
    record = log.begin(
        "orders",
        batch,
        Opening(
            run="run",
            query="query",
            participants=NAMES,
            carrier={},
            timeout=ON_RECORD,
        ),
    ).record
    time.time += 1.5 + 0.001 * rows
    vote = Vote.COMMIT if rows else Vote.READ_ONLY
    receipts = branch_receipts(BranchId(0, 1), rows, "", dict.fromkeys(NAMES, vote))
    log.decide(record.id, Decision.COMMIT, receipts)
    time.time += 0.5
    for name in NAMES:
        log.acknowledge(record.id, name)
    log.finish(record.id)


def stream(log: SqlDecisionLog, time: Time, batches: int, every: float = 10.0) -> None:
    """500 to 2,500 rows in a batch, then one without rows."""
    for batch in range(batches):
        at = time.now()
        write(log, time, batch, 500 * (1 + batch % 5) if batch < batches - 1 else 0)
        time.time = max(time.time, at + every)


def test_it_says_what_was_measured_and_what_follows(log, time, capsys):
    """As the manual shows it; the timeout in force is what the job put on record."""
    stream(log, time, 41)
    assert main(["advise", "--application", "orders"]) == 0
    out = capsys.readouterr().out.replace("2023-11-14 22:13:20", "2026-11-23 10:00:00")
    page = (ROOT / "docs" / "trigger.md").read_text(encoding="utf-8")
    assert f"$ tracing-2pc advise --application orders\n{out}```" in page
    assert TEXTS["in force"].format(advised="15 min", given="10 min") in out


def test_a_program_gets_one_object(log, time, capsys):
    """Durations in seconds; the bounds are for the options that were given."""
    stream(log, time, 41)
    asked = ("--recover-within", "2m", "--spark-overhead", "1s", "--json")
    assert main(["advise", "--application", "orders", *asked]) == 0
    item = json.loads(capsys.readouterr().out)
    assert item["application"] == "orders"
    assert item["measured"]["cost"] == {
        "fixed": pytest.approx(2.0, abs=1e-5),
        "per_row": pytest.approx(0.001, abs=1e-8),
        "separated": True,
    }
    assert item["measured"]["begin_to_decision"]["median"] == pytest.approx(3.0)
    assert item["shortest"] == pytest.approx(30.0, abs=1e-4)
    assert item["longest"] == pytest.approx(117 / 1.15, abs=1e-4)
    assert (item["timeout"], item["timeout_in_force"]) == (900.0, ON_RECORD)
    assert item["findings"] == []


def test_too_few_records_end_with_1_and_say_how_many_are_needed(log, time, capsys):
    """No number is made of them."""
    stream(log, time, 20)
    assert main(["advise", "--application", "orders"]) == 1
    out = capsys.readouterr().out
    assert "19 batches" in out
    assert TEXTS["batches needed"].format(n=20) in out
    assert "interval" not in out


def test_what_stands_in_the_way_ends_with_1(log, time, capsys):
    """Each with what to do: bounds that contradict, batches without a pause."""
    stream(log, time, 41, every=1.0)
    asked = ("advise", "--application", "orders", "--recover-within", "10s")
    assert main(asked) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert TEXTS["without a pause"] in text
    assert re.search(r"They meet at --recover-within 3[23]s\. ", text)
    assert main([*asked, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert found == ["back to back", "contradiction"]


def test_a_bound_that_does_not_exist_is_called_none(log, time, capsys):
    """A recovery shorter than one batch leaves no interval at all."""
    stream(log, time, 41)
    asked = ("advise", "--application", "orders", "--recover-within", "1s")
    assert main(asked) == 1
    assert re.search(r"^  longest interval +none$", capsys.readouterr().out, re.M)


def test_an_unknown_application_is_refused(log, capsys):
    """With those that the log knows; and a recovery in no time is no wish."""
    log.initialise("orders", 0)
    assert main(["advise", "--application", "order"]) == 2
    assert TEXTS["known applications"].format(names="orders") in capsys.readouterr().err
    asked = ("--recover-within", "0")
    assert main(["advise", "--application", "orders", *asked]) == 2
    assert TEXTS["more than 0"] in capsys.readouterr().err
