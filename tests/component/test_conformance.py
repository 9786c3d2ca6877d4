"""What a run left, held against the protocol: a real one is explained, and no other.

Log and journals are those of two batches that were committed. What is changed in them
is what a wrong program, or a database that was put back, would have left.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tracing_2pc import ParticipantSink
from tracing_2pc.cli import main
from tracing_2pc.conformance import check_run
from tracing_2pc.participant import TaggedRows
from tracing_2pc.store import open_log
from tracing_2pc.testing import run_one_batch, served

NAMES = ("ledger", "notifier")
APPLICATION = "test"
OLD, NEW = f"{APPLICATION}.0.1", f"{APPLICATION}.1.1"
OF_NEW = "batch = 1"


class Left:
    """What two batches left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = f"sqlite:///{folder}/log.db"
        self.journals = [(name, f"sqlite:///{folder}/{name}.db") for name in NAMES]

    def changed(self, where: str, *statements: str) -> None:
        with contextlib.closing(sqlite3.connect(self.folder / f"{where}.db")) as file:
            for statement in statements:
                assert file.execute(statement).rowcount
            file.commit()

    def checked(self, journal: str) -> int:
        """Run `check --deep`, without settings; return how it ends."""
        command = ["check", "--log", self.log, "--deep", "--journal"]
        return main([*command, f"{NAMES[0]}={journal}"])

    def found(self, spans: Any = ()) -> list[str]:
        return [str(one) for one in check_run(self.log, self.journals, spans)]


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Left:
    monkeypatch.setenv("TPC_TOKEN", "not-looked-at")
    of = Left(tmp_path)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(contextlib.closing(open_log(of.log)))
        resources = {n: TaggedRows(url, table=f"of_{n}") for n, url in of.journals}
        urls = {n: stack.enter_context(served(one)) for n, one in resources.items()}
        sink = ParticipantSink(urls)
        for batch in (0, 1):
            run_one_batch(sink, [{"id": batch}], [{"id": 7}], log=log, batch=batch)
    return of


def test_what_is_left_of_a_run_is_explained(left: Left) -> None:
    assert left.found() == []


SEAL = "UPDATE of_ledger_tpc_transaction SET seal = {} WHERE " + OF_NEW
BRANCH = "UPDATE of_ledger_tpc_branch SET {} WHERE " + OF_NEW
NO_SEAL = "DELETE FROM of_ledger_tpc_transaction WHERE " + OF_NEW
NO_BRANCH = "DELETE FROM of_ledger_tpc_branch WHERE " + OF_NEW
RUNS_ON = (
    "INSERT INTO of_ledger_tpc_transaction SELECT application, batch + {}, "
    "attempt + {}, seal, resolved_because, carrier FROM of_ledger_tpc_transaction "
    f"WHERE {OF_NEW}"
)


@pytest.mark.parametrize(
    ("statements", "line"),
    [
        ([SEAL.format("'aborted'"), BRANCH.format("state = 'aborted'")],
         f"{NEW}: ledger: sealed aborted, and decided is commit (rule 8)"),
        ([NO_SEAL, NO_BRANCH], f"{NEW}: ledger: it has acknowledged commit, and its "
         "journal has no seal (rule 5)"),
        ([NO_SEAL, NO_BRANCH], f"{NEW}: ledger: branch 0.0 has voted commit, and is "
         "not there (rule 13)"),
        ([SEAL.format("NULL")], f"{NEW}: ledger: a branch is committed, and the "
         "transaction is not sealed (rule 16)"),
        ([BRANCH.format("state = 'prepared'")], f"{NEW}: ledger: a branch is prepared, "
         "and the transaction is sealed committed (rule 20)"),
        ([BRANCH.format("digest = 'other'")], f"{NEW}: ledger: branch 0.0 has other "
         "content than its vote (rule 4)"),
        ([BRANCH.format("task_attempt = 9") + " AND partition = 0"],
         f"{NEW}: ledger: branch 0.9 is committed, and was not chosen (rule 4)"),
        ([RUNS_ON.format(1, 0)], f"{APPLICATION}.2.1: ledger: sealed committed, and "
         "the log has no record of it (rule 2)"),
        ([RUNS_ON.format(0, 1)], f"{APPLICATION}.1.2: ledger: committed, and so is "
         f"{NEW} of its batch (rule 18)"),
        (["UPDATE of_ledger_tpc_application SET forgotten_through = 0"],
         f"{APPLICATION}: ledger: its forgotten_through is 0, the log's -1 (rule 19)"),
    ],
)  # fmt: skip
def test_a_journal_that_contradicts_the_log_is_told(
    left: Left, statements: list[str], line: str
) -> None:
    left.changed("ledger", *statements)
    assert line in left.found()


def test_what_a_person_has_ended_there_is_not_accused(left: Left) -> None:
    """It is on record there, with the reason."""
    by_hand = "UPDATE of_ledger_tpc_transaction SET resolved_because = 'gone'"
    left.changed("ledger", SEAL.format("'aborted'"), by_hand)
    assert left.found() == []


def test_a_participant_that_was_not_asked_is_told(left: Left) -> None:
    """It has committed, and is not in the record's list, which has no checksum now."""
    left.changed("ledger", "UPDATE of_ledger_tpc_application SET participant = 'spy'")
    found = [str(one) for one in check_run(left.log, [("", left.journals[0][1])])]
    line = f"{OLD}: spy: it has a branch, and is not on record as a participant"
    assert f"{line} (rule 1)" in found


def span(name: str, start: int, end: int, **attributes: str) -> dict[str, Any]:
    about = {"tpc.transaction.id": NEW} | {
        key.replace("_", "."): value for key, value in attributes.items()
    }
    kind = "CLIENT" if "tpc_request" in attributes else "INTERNAL"
    times = {"start": start, "end": end, "instance": "one"}
    return {"name": name, "kind": kind, **times, "attributes": about}


@pytest.mark.parametrize(
    ("spans", "lines"),
    [
        ([span("tpc.decide", 1, 3), span("POST /commit", 4, 5, tpc_request="commit")],
         []),
        ([span("tpc.decide", 1, 3), span("POST /commit", 2, 5, tpc_request="commit")],
         [f"{NEW}: a span commit began before tpc.decide had ended (rule 2)"]),
        ([span("POST /commit", 2, 5, tpc_request="commit")], []),
        ([span("tpc.decide", 1, 3, tpc_decision="abort")],
         [f"{NEW}: spans and log have both decisions, commit and abort (rule 15)"]),
    ],
)  # fmt: skip
def test_spans_are_held_against_each_other(
    left: Left, spans: list[dict[str, Any]], lines: list[str]
) -> None:
    """One that is missing proves nothing."""
    assert left.found(spans) == lines


def test_a_person_asks_for_it(
    left: Left, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check --deep`: each finding in a line with its cure, and 1."""
    monkeypatch.chdir(left.folder)
    monkeypatch.setenv("LEDGER", left.journals[0][1])
    assert left.checked("env:LEDGER") == 1
    assert "\n1 problem: " in capsys.readouterr().out  # no participants are set
    left.changed("ledger", SEAL.format("'aborted'"))
    assert left.checked("env:LEDGER") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert f"{NEW}: ledger: sealed aborted, and decided is commit (rule 8)." in out
    # A journal that is not there is refused, and so is an edited record.
    assert left.checked("sqlite:///gone.db") == 1
    assert "there is no file gone.db" in capsys.readouterr().out
    left.changed("log", "UPDATE tpc_transaction SET run = 'other'")
    assert left.checked("env:LEDGER") == 1
    assert "does not match its checksum" in capsys.readouterr().out
    assert not (left.folder / "gone.db").exists()


@pytest.mark.parametrize("option", ["table=orders", "url_file", "python"])
def test_an_address_names_the_journal_of_its_table(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another table's journal has the same names: it is not held against it."""
    database = f"sqlite:///{tmp_path}/shop.db"
    log, other = (f"sqlite:///{tmp_path}/{name}.db" for name in ("log", "other"))
    for table, decisions in (("orders", log), ("others", other)):
        sink = ParticipantSink({"orders": f"{database}?table={table}"})
        sink.check(APPLICATION)
        with contextlib.closing(open_log(decisions)) as one:
            for batch in range(1 if table == "orders" else 2):
                assert run_one_batch(sink, [{"id": 1}], batch=batch, log=one)
    (tmp_path / "url").write_text(database)
    (tmp_path / "shop.py").write_text(
        "from tracing_2pc.participant import TaggedRows\n"
        f"orders = TaggedRows('{database}', 'orders')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    url = {
        "url_file": f"sqlite:///?url_file={tmp_path}/url&table=orders",
        "python": "python:shop:orders",
    }.get(option, f"{database}?{option}")
    assert check_run(log, [("orders", url)]) == []
    assert check_run(log, [("orders", database)]) != []
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as file:
        file.execute("UPDATE orders_tpc_transaction SET seal = 'aborted'")
        file.commit()
    assert check_run(log, [("orders", url)]) != []
    command = ["check", "--log", log, "--deep", "--journal", f"orders={url}"]
    assert main(command) == 1


def test_a_damaged_index_is_found(
    left: Left, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `check --deep`, in the log and in a journal: no record by itself tells it."""
    monkeypatch.chdir(left.folder)
    journal = left.journals[0][1]
    for url in (left.log, journal):
        drop_index_entries(Path(url.removeprefix("sqlite:///")))
    assert left.checked(journal) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("wrong # of entries in index") >= 2
    assert "keep a copy of the file" in out


def drop_index_entries(file: Path) -> None:
    """Let each index of a file be an empty one's root, as a lost page leaves it."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        size = database.execute("PRAGMA page_size").fetchone()[0]
        roots = database.execute(
            "SELECT rootpage FROM sqlite_schema WHERE type = 'index'"
        ).fetchall()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(file.read_bytes())
    for (root,) in roots:
        start = (root - 1) * size
        data[start : start + 8] = b"\x0a\0\0\0\0" + size.to_bytes(2, "big") + b"\0"
    file.write_bytes(data)
