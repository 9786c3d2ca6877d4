"""The command line: what it writes, what it prints, how it ends."""

from __future__ import annotations

import contextlib
import getpass
import itertools
import json
import os
import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli import ROOT, Operator, on_a_terminal
from support.protocol import raising
from support.texts import texts
from support.transports import TRANSPORTS

from tracing_2pc.cli import main
from tracing_2pc.cli.arguments import EXAMPLES, parser
from tracing_2pc.core.access import Role, TokenGate
from tracing_2pc.core.model import BranchId, TransactionId, branch_receipts
from tracing_2pc.core.ports import DecisionLog, Opening
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision, Vote
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.operations.resolve import resolve
from tracing_2pc.participant import TaggedRows
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.testing import temporary_log

TEXTS = texts("component")

ID = TransactionId("orders", 0, 1)
RESOLVE = ("resolve", str(ID), "--yes")
ABOUT: Any = {"run": "r", "query": "q", "participants": ["ledger"], "carrier": {}}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def log(folder, capsys) -> Iterator[SqlDecisionLog]:
    """The log that `init` has made."""
    assert main(["init"]) == 0
    capsys.readouterr()
    with contextlib.closing(open_log("sqlite:///state/decisions.db")) as log:
        yield log


def begin(log: DecisionLog, participants: list[str], *, decided: bool) -> None:
    log.begin("orders", 0, Opening(**{**ABOUT, "participants": participants}))
    if decided:
        votes = dict.fromkeys(participants, Vote.READ_ONLY)
        log.decide(ID, Decision.COMMIT, branch_receipts(BranchId(0, 1), 0, "", votes))


def test_init_writes_what_is_missing_and_nothing_else(folder, capsys):
    """Settings, tokens only the owner reads, a schema; a second time all is kept."""
    assert main(["init"]) == 0
    said = capsys.readouterr().out
    assert "wrote tpc.toml" in said
    assert "wrote tokens" in said
    assert stat.S_IMODE((folder / "tokens").stat().st_mode) == 0o600
    assert Settings.load(environ={}).log == "sqlite:///state/decisions.db"
    assert (folder / "state" / "decisions.db").exists()
    before = (folder / "tokens").read_text()
    job = before.splitlines()[1].split()[1]
    assert job not in said
    assert main(["init"]) == 0
    assert "kept tokens" in capsys.readouterr().out
    assert (folder / "tokens").read_text() == before
    gate = TokenGate.read(folder / "tokens")
    assert gate.admit(job, None).role is Role.JOB


def test_init_writes_the_addresses_that_it_is_given(folder, capsys):
    """What was asked for is in force; a URL that is none is refused, without a file."""
    assert main(["init", "--participants", "ledger=ftp://127.0.0.1"]) == 2
    assert "participants" in capsys.readouterr().err
    assert not (folder / "tpc.toml").exists()
    at = {"ledger": "http://127.0.0.1:8081", "mail": "http://127.0.0.1:8082"}
    given = ",".join(f"{name}={url}" for name, url in at.items())
    assert main(["init", "--participants", given]) == 0
    assert dict(Settings.load(environ={}).participants) == at


def test_init_on_a_full_disk_leaves_nothing_that_the_next_one_would_keep(
    folder, monkeypatch, capsys
):
    """An empty file of tokens was kept for ever, and called fine."""

    def full(file: int, *args: Any, **named: Any) -> Any:
        os.close(file)
        return Path("/dev/full").open("w")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fdopen", full)
        assert main(["init"]) == 2
    assert "tpc.toml: No space left on device" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["state"]
    assert main(["init"]) == 0
    assert "wrote tpc.toml" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ("postgresql://me:s3cret@127.0.0.1:9/log", 2),
        ("postgresql://me@127.0.0.1:9/log?password=s3cret", 2),
        ("mysql://me@127.0.0.1/log", 2),
        ("postgresql://me@127.0.0.1:9/log", 1),
    ],
)
def test_init_writes_nothing_about_a_log_that_it_cannot_use(folder, log, code, capsys):
    """A password above all: it would be in a file that everybody may read."""
    assert main(["init", "--log", log]) == code
    assert "s3cret" not in "".join(capsys.readouterr())
    assert list(folder.iterdir()) == []


def test_init_lets_a_running_query_begin_later(log):
    """A query that already ran without us begins where it is, once."""
    assert main(["init", "--application", "orders", "--from-batch", "7"]) == 0
    begun = log.begin("orders", 7, Opening(**ABOUT))
    assert str(begun.record.id) == "orders.7.1"
    assert main(["init", "--application", "orders", "--from-batch", "9"]) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["init", "--application", "orders"],
        ["init", "--application", "Orders!", "--from-batch", "1"],
        ["recover", "--config", "nowhere.toml"],
        ["recover"],
        ["ls", "--limit", "0"],
        ["ls", "--older-than", "soon"],
        ["forget", "--application", "orders"],
        ["resolve", "not-an-id", "--abort", "--reason", "x", "--log", "sqlite:///x.db"],
    ],
)
def test_a_wrong_call_ends_with_2(folder, arguments, capsys):
    """And one line that says what to change."""
    try:
        code = main(arguments)
    except SystemExit as end:  # argparse says it itself
        code = int(str(end.code))
    assert code == 2
    assert capsys.readouterr() != ("", "")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_recover_finishes_at_the_participants_of_the_settings(
    folder, log, monkeypatch, capsys, transport
):
    """Decided, and the driver is gone: one command finishes it, without Spark."""
    from support.service import create_app

    begin(log, ["ledger"], decided=True)
    assert main(["recover"]) == 1
    assert TEXTS["no address"] in capsys.readouterr().out
    app = create_app(f"sqlite:///{folder}/ledger.db")
    serve = TRANSPORTS[transport].serve
    with serve(app) as url, contextlib.closing(app.extensions["resource"]):
        monkeypatch.setenv("TPC_PARTICIPANTS", f"ledger={url}")
        monkeypatch.setenv("TPC_TOKEN", "anything")
        assert main(["recover", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "transaction_id": "orders.0.1",
            "state": "committing",
            "decision": "commit",
            "pending": ["ledger"],
            "done": True,
            "under_way": False,
            "remark": "committed",
        }
        assert main(["recover"]) == 0
        assert capsys.readouterr().out == "nothing unfinished\n"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_recover_says_what_it_was_answered(folder, log, monkeypatch, capsys, transport):
    """A token that is not for this: the answer and its reason, in a line."""
    from flask import Flask

    tokens = folder / "of_ledger"
    tokens.write_text("viewer 0123456789abcdef\n")
    begin(log, ["ledger"], decided=True)
    resource = TaggedRows(f"sqlite:///{folder}/ledger.db", "orders")
    app = Flask("ledger")
    app.register_blueprint(participant_blueprint(resource, tokens=tokens))
    serve = TRANSPORTS[transport].serve
    with serve(app) as url, contextlib.closing(resource):
        monkeypatch.setenv("TPC_PARTICIPANTS", f"ledger={url}")
        for token, why in (
            ("0123456789abcdef", "(role viewer: this needs the role job or operator)"),
            ("no-such-token", "(this token is not known here)"),
        ):
            monkeypatch.setenv("TPC_TOKEN", token)
            assert main(["recover"]) == 1
            said = capsys.readouterr().out
            assert f"to POST /commit of orders.0.1 at {url} {why}, which is no" in said
            assert TEXTS["what to set as a token"].format(variable="TPC_TOKEN") in said
            assert "no answer" not in said


def test_recover_leaves_a_batch_in_progress_to_its_driver_and_ends_with_0(log, capsys):
    """Nothing is wrong with it: a script that calls `recover` is not alarmed."""
    begin(log, ["ledger"], decided=False)
    assert main(["recover"]) == 0
    said = capsys.readouterr().out
    assert TEXTS["left to its driver"] in said
    assert said.endswith("0 finished, 1 under way, 0 left\n")
    assert main(["recover", "--json"]) == 0
    (item,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (item["done"], item["under_way"]) == (False, True)


def test_resolve_keeps_the_reason_whatever_it_does():
    """Who, what, why, before and after: in the audit."""
    log = temporary_log()
    begin(log, ["ledger"], decided=False)
    assert resolve(log, ID, wanted=Decision.ABORT, reason="no driver").pending
    log.quarantine(ID, "for a test")
    resolve(log, ID, wanted=Decision.ABORT, reason="it is there again")
    log.quarantine(ID, "for a test")
    resolve(log, ID, wanted="hazard", reason="it is gone")
    assert [entry[2:] for entry in log.audit(ID)] == [
        ("abort", "orders.0.1", "no driver", "active", "aborting"),
        ("resume", "orders.0.1", "it is there again", "quarantined", "aborting"),
        ("conclude", "orders.0.1", "it is gone", "quarantined", "concluded hazard"),
    ]
    assert all("@" in entry.who for entry in log.audit(ID))


def test_a_user_without_a_name_signs_with_a_number(monkeypatch):
    """As in a container that runs under any user id."""
    nameless = raising(KeyError("getpwuid(): uid not found"))
    monkeypatch.setattr(getpass, "getuser", nameless)
    log = temporary_log()
    begin(log, ["ledger"], decided=False)
    resolve(log, ID, wanted=Decision.ABORT, reason="no driver")
    assert log.audit(ID)[0].who.startswith(f"{os.getuid()}@")


def test_conclude_names_who_may_still_hold_something(log, capsys):
    """Who has not acknowledged: nobody will ever tell it again."""
    begin(log, ["ledger", "notifier", "archive"], decided=True)
    log.acknowledge(ID, "notifier")
    log.quarantine(ID, "for a test")
    arguments = [*RESOLVE, "--conclude", "mixed", "--reason", "lost"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == (
        "orders.0.1 is concluded; not acknowledged by ledger, archive: what they "
        "prepared for it may still be there\n"
    )


@pytest.mark.parametrize("command", [["ls"], ["explain", "orders.0.1"], ["recover"]])
def test_a_log_that_is_down_is_said_with_what_to_do(
    folder, monkeypatch, capsys, command
):
    """One line: which log, what its driver said, the cure; and never its password."""
    monkeypatch.setenv("TPC_LOG", "postgresql://me:s3cret@127.0.0.1:9/log")
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "s3cret" not in said
    assert "password" not in said
    assert said.startswith("tracing-2pc: the decision log cannot be reached: ")
    assert "127.0.0.1:9/log" in said
    assert said.endswith(": start its database, or mend `log` in the settings\n")
    assert len(said.splitlines()) == 1


def test_a_watch_that_begins_without_the_log_says_so_and_goes_on_looking(
    folder, monkeypatch, capsys
):
    """It is started beside the database, and must not be ended by its restart."""
    monkeypatch.setenv("TPC_LOG", "postgresql://me@127.0.0.1:9/log")
    monkeypatch.setenv("TPC_PAUSE", "100ms")
    assert main(["watch", "--once"]) == 1
    out, err = capsys.readouterr()
    assert "unreadable log" in out
    assert err == ""


@pytest.mark.parametrize(
    "command",
    [
        ["recover"],
        ["resolve", "orders.0.1", "--abort"],
        ["ls"],
        ["show", "orders.0.1"],
        ["explain", "orders.0.1"],
        ["forget", "--application", "orders", "--before", "1d"],
    ],
)
def test_no_log_is_not_good_news(folder, command, capsys):
    """A log that is not there is said to be missing, and is not made."""
    more = ["--reason", "x"] if command[0] == "resolve" else []
    assert main([*command, *more, "--log", "sqlite:///nowhere/x.db"]) == 2
    assert TEXTS["no log"].format(path="nowhere/x.db") in capsys.readouterr().err
    assert not (folder / "nowhere").exists()


def test_an_unknown_application_is_not_good_news(log, capsys):
    """A misspelt name is answered with the names that are known."""
    begin(log, ["ledger"], decided=True)
    assert main(["recover", "--application", "nobody"]) == 2
    assert TEXTS["known applications"].format(names="orders") in capsys.readouterr().err


def test_forget_drops_by_hand_what_is_old(log, capsys):
    """All but the newest batch, shown first; forgotten_through stays put."""
    for batch in range(250):
        finished(log, batch)
    forget = ["forget", "--application", "orders", "--before", "0s", "--json"]
    assert main(forget) == 2
    said = capsys.readouterr()
    assert TEXTS["asks for --yes"].format(n=249, application="orders") in said.err
    assert said.out == ""
    for more, dry in ((["--dry-run"], True), (["--yes"], False)):
        assert main([*forget, *more]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "application": "orders",
            "forgotten": 249,
            "dry_run": dry,
            "forgotten_through": 248,
        }
    assert main(forget[:-1]) == 0
    said = capsys.readouterr().out
    assert said == "0 transactions of orders forgotten; forgotten_through 248\n"
    assert main(["forget", "--application", "orders", "--before", "7d"]) == 0
    assert main(["forget", "--application", "nobody", "--before", "7d"]) == 2


@pytest.mark.parametrize(
    ("typed", "done"), [("2", True), ("yes", True), ("y", False), (" ", False)]
)
def test_forget_says_how_many_and_asks(log, typed, done):
    """On a terminal; only their number or *yes* drops them."""
    for batch in range(3):
        finished(log, batch)
    forget = ("forget", "--application", "orders", "--before", "0s")
    code, shown = on_a_terminal(*forget, typed=typed)
    assert TEXTS["forgets for ever"].format(n=2, application="orders") in shown
    assert code == (0 if done else 1)
    assert log.forgotten_by_application() == {"orders": 1 if done else None}


def finished(log: SqlDecisionLog, batch: int) -> None:
    begun = log.begin("orders", batch, Opening(**ABOUT))
    log.decide(begun.record.id, Decision.ABORT)
    log.acknowledge(begun.record.id, "ledger")
    log.finish(begun.record.id)


def test_help_and_version(capsys):
    """Never a trace; the help of the program and of commands has the exit codes."""
    for arguments, code, said in (
        (["--version"], 0, "0.1.0"),
        (["--json"], 2, ""),
        (["recover", "-h"], 0, TEXTS["exit codes"]),
        (["--help"], 0, TEXTS["exit codes"]),
        (["ls", "--help"], 0, TEXTS["exit codes"]),
        (["resolve", "--help"], 0, TEXTS["exit codes"]),
    ):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == code
        assert said in capsys.readouterr().out
    for example in itertools.chain(*EXAMPLES.values()):
        assert parser().parse_args(shlex.split(example)).command in EXAMPLES
    with pytest.raises(SystemExit):
        main(["outbox", "agian", "orders.7.1.0.1.0"])
    assert "did you mean 'again'?" in capsys.readouterr().err


def test_an_exit_code_has_the_meaning_of_the_manual(operator: Operator) -> None:
    """Each command of its table ends with the code of its row."""
    operator.at.aborted(5)
    operator.at.committing(7)
    operator.at.time.advance(500.0)
    manual = (ROOT / "docs" / "cli.md").read_text().partition("| exit code |")[2]
    rows = re.findall(r"^\| ([0-2]) \| [^|]* \| ([^|]*) \|$", manual, re.MULTILINE)
    assert [code for code, _ in rows] == ["0", "1", "2"]
    for code, commands in rows:
        for command in re.findall("`([^`]+)`", commands):
            try:
                ended = operator.says(*shlex.split(command))[0]
            except SystemExit as end:
                ended = int(end.code or 0)
            assert (command, ended) == (command, int(code))


def test_a_demo_that_fails_ends_with_one_line(monkeypatch, capsys):
    """The log of what has failed stands before it, line by line."""
    failed = raising(RuntimeError("the ledger failed:\nbind: in use\n\x1b[31mbye"))
    monkeypatch.setattr("participants.demo.main", failed)
    assert main(["demo"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[:2] == ["bind: in use", "?[31mbye"]
    assert [line.endswith("demo: the ledger failed") for line in told[2:]] == [True]
