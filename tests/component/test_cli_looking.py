"""`ls`, `show`, `explain`: what somebody sees who is woken at night."""

from __future__ import annotations

import contextlib
import datetime
import gc
import os
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from support.branches import ONE
from support.cli import ROOT, Operator, on_a_terminal, steady
from support.console import state_of
from support.telemetry import PATH
from support.texts import texts
from support.waiting import AT_LAST, PATIENT, until
from support.watch import NAMES, fresh

from tracing_2pc import cli
from tracing_2pc.cli import ls, terminal
from tracing_2pc.cli.ls import items, lines
from tracing_2pc.core.errors import ParticipantUnavailableError
from tracing_2pc.core.log_reader import TransactionFilter
from tracing_2pc.core.model import (
    BranchId,
    InDoubt,
    Listing,
    ParticipantDescription,
    Shown,
    TransactionId,
)
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import ParticipantState, TransactionState
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.inspection import listing, participants
from tracing_2pc.inspection.listing import list_transactions
from tracing_2pc.store.log import reader

TEXTS = texts("component")

T = TransactionId("orders", 7, 1)
HOSTILE = "\x1b[31mred\x1b]0;title\x07\nsecond line\u202eright to left" + "x" * 5000


def stuck(operator: Operator) -> None:
    """One committed, one that a participant has not heard of, one orphan."""
    at = operator.at
    done = at.committing(5)
    for name in NAMES:
        at.commit(done, name)
    at.log.finish(done)
    at.committing(7)
    at.worlds["ledger"].commit(str(T), ONE)
    at.log.acknowledge(T, "ledger")
    at.prepare("bookings.3.1", "ledger")
    at.time.time = time.time()
    at.log.postpone(T, "notifier", "answered 503: busy", at.time.time + 300)
    operator.reach(notifier="http://127.0.0.1:9")


def test_the_list_begins_with_what_is_worst(operator):
    """Unfinished, orphans, finished; who did not answer; a line of counts."""
    stuck(operator)
    code, out, _ = operator.says("ls")
    assert steady(out) == (
        "TRANSACTION   STATE       AGE    ROWS  WAITING FOR  REMARK\n"
        "orders.7.1    committing  8 min  3     notifier     "
        "stuck; notifier: answered 503: busy\n"
        "bookings.3.1  orphaned    8 min  3     a person     "
        "prepared at ledger; this log does not know application bookings: "
        "another log may own it\n"
        "orders.5.1    committed   8 min  3\n"
        "notifier: nothing listens at http://127.0.0.1:PORT; start it (restart it "
        "where it hangs: nothing is lost), or mend its address (http://127.0.0.1:PORT) "
        "in the settings\n"
        "1 unfinished (1 committing); 1 orphan; 1 finished\n"
    )
    assert code == 1
    _, found = operator.json("ls")
    assert [one["kind"] for one in found] == [
        *("transaction", "orphan", "transaction", "finding", "counts"),
    ]
    assert found[0]["pending"] == ["notifier"]
    assert found[1]["held"]["ledger"]["rows"] == 3


def test_a_program_need_not_take_an_id_apart(operator):
    """Each line has application, batch, attempt and trace; times also as ISO 8601."""
    stuck(operator)
    _, (one, orphan, finished, *_) = operator.json("ls")
    assert (one["application"], one["batch"], one["attempt"]) == ("orders", 7, 1)
    assert (orphan["application"], orphan["batch"]) == ("bookings", 3)
    assert one["trace"] == "a" * 32
    assert one["iso"]["finished"] is None
    for name, text in finished["iso"].items():
        assert text.endswith("Z")
        assert finished[name] == pytest.approx(
            datetime.datetime.fromisoformat(f"{text[:-1]}+00:00").timestamp(), abs=0.001
        )


def test_a_list_that_is_full_does_not_count_what_it_left_out(operator):
    """It was asked for so many, and nobody knows how many there are."""
    for batch in (5, 6, 7):
        operator.at.finish(operator.at.committing(batch))
    counted = operator.says("ls", "--limit", "2")[1].splitlines()[-1]
    assert counted == "0 unfinished; 2 finished (the newest)"
    counted = operator.says("ls", "--limit", "4")[1].splitlines()[-1]
    assert counted == "0 unfinished; 3 finished"


def test_of_too_many_unfinished_ones_the_oldest_are_listed(operator, monkeypatch):
    """They are the worst. How many there are is not known."""
    for batch in (5, 6, 7):
        operator.at.committing(batch)
    for module in (reader, listing, ls):
        monkeypatch.setattr(module, "MOST", 2)
    *rows, counted = operator.says("ls", "--unfinished")[1].splitlines()
    shown = [row.split()[0] for row in rows if "  committing  " in row]
    assert shown == ["orders.5.1", "orders.6.1"]
    assert counted == "the oldest 2 unfinished (2 committing)"


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--log-only"], ["orders.7.1", "orders.5.1"]),
        (["--unfinished"], ["orders.7.1", "bookings.3.1"]),
        (["--state", "committed"], ["orders.5.1"]),
        (["--application", "orders"], ["orders.7.1", "orders.5.1"]),
        (["--application", "bookings"], ["bookings.3.1"]),
        (["--older-than", "1h"], []),
        (["--since", "2999-01-31T18:05"], []),
        (["--since", "100000d", "--participant", "nobody"], []),
        (["--participant", "notifier"], ["orders.7.1", "orders.5.1"]),
        (["--batch", "5"], ["orders.5.1"]),
        (["--beyond", "orders.6.1"], ["orders.7.1", "bookings.3.1", "orders.5.1"]),
        (["--beyond", "orders.5.1", "--log-only"], ["orders.7.1"]),
        (["--limit", "1"], ["orders.7.1"]),
    ],
)
def test_a_list_is_filtered(operator, options, found):
    """By all that a search takes; the log only if that is asked for."""
    stuck(operator)
    operator.reach()
    _, listed = operator.json("ls", *options)
    shown = [one["transaction"] for one in listed if "transaction" in one]
    assert shown == found


def test_a_filter_by_an_unknown_application_says_so(operator):
    """Else "0 unfinished" of a misspelt name is taken for good news."""
    operator.at.committing(7)
    _, out, _ = operator.says("ls", "--application", "order")
    detail = "the log knows no application 'order'; it knows: orders"
    assert out.endswith(f"{detail}\n")
    *_, last = operator.json("ls", "--application", "order")[1]
    assert last == {"kind": "unknown", "application": "order", "detail": detail}
    assert "knows no" not in operator.says("ls", "--application", "orders")[1]


def test_the_list_names_who_is_waited_for_without_an_address(operator, monkeypatch):
    """What it holds cannot be known here; `--log-only` asks nobody anyhow."""
    operator.at.committing(7)
    monkeypatch.setenv(
        "TPC_PARTICIPANTS", f"ledger={operator.at.observed['ledger'].url}"
    )  # type: ignore[attr-defined]
    out = operator.out(1, "ls")
    assert (
        TEXTS["waits without an address"].format(participant="notifier", transaction=T)
        in out
    )
    assert "no address" not in operator.says("ls", "--log-only")[1]


def test_only_a_process_of_its_own_collects_rarely(operator, monkeypatch):
    """What it reads is kept until it ends. A caller's process is left as it is."""
    usual, operator.at.time.time = gc.get_threshold(), time.time()
    try:
        operator.says("ls")
        assert gc.get_threshold() == usual
        monkeypatch.setattr("sys.argv", ["tracing-2pc", "ls"])
        assert cli.main() == 0
        assert gc.get_threshold()[0] == cli.COLLECT_AFTER
    finally:
        gc.set_threshold(*usual)


def test_an_empty_list_is_good_news(operator):
    """One line, and 0."""
    operator.at.time.time = time.time()
    assert operator.says("ls") == (0, "0 unfinished\n", "")


def test_what_was_just_told_is_no_orphan(operator):
    """The log has closed it while we asked: the participant is asked again."""
    at = operator.at
    at.committing()
    at.time.time = time.time()
    ledger = at.observed["ledger"]

    class Slow:
        name = "ledger"
        asked = 0

        def prepared(self, application: str | None = None) -> Listing:
            listing = ledger.prepared(application)
            self.asked += 1
            if self.asked == 1:
                for name in NAMES:
                    at.commit(T, name)
                at.log.finish(T)
            return listing

        def show(self, transaction: TransactionId, journal: str | None = None) -> Shown:
            return Shown(ParticipantState.UNKNOWN)

    found = list_transactions(
        at.log, {"ledger": Slow()}, TransactionFilter(), Settings()
    )
    assert found.orphans == ()


def test_ten_thousand_orphans_are_a_hundred_lines(operator):
    """All are counted, so many are shown as were asked for; also as JSON."""

    class Full:
        name = "ledger"

        def prepared(self, application: str | None = None) -> Listing:
            branches = (
                InDoubt(TransactionId("old", n, 1), BranchId(0, n), 400.0 + n, 1, {})
                for n in range(10_000)
            )
            return Listing(tuple(branches))

        def show(self, transaction: TransactionId, journal: str | None = None) -> Shown:
            return Shown(ParticipantState.UNKNOWN)

    participants = {"ledger": Full()}
    found = list_transactions(
        operator.at.log, participants, TransactionFilter(), Settings()
    )
    shown = list(lines(found, 100))
    assert len(shown) == 102
    assert shown[-1] == ("0 unfinished; 10,000 orphans; 100 shown: --limit shows more")
    assert shown[1].startswith("old.9999.1"), "the oldest first"
    assert len(list(items(found, 100))) == 101


def test_show_has_all_that_is_known(operator, monkeypatch):
    """Record, link, what each participant holds, receipts, what happened when."""
    stuck(operator)
    monkeypatch.setenv("TPC_LINKS", "jaeger=http://127.0.0.1:16686/trace/{trace}")
    out = operator.out(1, "show", str(T))
    (head, timeline), (known, steps) = (
        text.split("What happened\n") for text in (steady(out), SHOWN)
    )
    assert (head, sorted(timeline.splitlines())) == (known, sorted(steps.splitlines()))
    _, (found,) = operator.json("show", str(T))
    _, (explained,) = operator.json("explain", str(T))
    assert found.keys() == explained.keys()
    assert found["links"] == {"jaeger": f"http://127.0.0.1:16686/trace/{'a' * 32}"}
    assert found["participants"][0]["state"] == "committed"
    assert found["participants"][1]["error"]
    assert {event["who"] for event in found["timeline"]} == {"log", "ledger"}


EXPLAINED = """\
orders.7.1 is decided commit and not finished: notifier has not acknowledged yet. The
decision is durable; nothing is lost.

What is wrong
  stuck: it is decided commit, and for 8 min not acknowledged by notifier (1 try; the
  last answer: answered 503: busy).

What each side says
  the log   committing; decided commit 8 min ago; 3 rows.
  ledger    committed, 3 rows; acknowledged 8 min ago.
  notifier  cannot be read: nothing listens at http://127.0.0.1:PORT; \
1 failed try.

What comes next by itself
  - in 5 min: notifier is told to commit again: by its driver while that runs, by the
    next start, or by `tracing-2pc recover`.

What you can do
  first: see to it that notifier can be read: until then no decision arrives there.
  safe: tracing-2pc recover --application orders
    tells notifier to commit again.
  FORCED: tracing-2pc resolve orders.7.1 --give-up notifier --reason …
    waits no more for notifier, if it is gone for good; ends as concluded.
    - costs: 3 rows of the batch may never be committed at notifier.
    - costs: what notifier has prepared stays there until it is resolved there.
"""
SIDES = """\
  the log   committing; decided commit 8 min ago; 3 rows.
  ledger    committed, 3 rows; acknowledged 8 min ago.
  notifier  cannot be read: nothing listens at http://127.0.0.1:PORT; \
1 failed try.
"""
PARTICIPANTS = """\
  NAME      ON RECORD                         SAYS            ROWS  CLOCK   \
IN DOUBT FOR  REMARK
  ledger    acknowledged 8 min ago            committed       3     +SKEW
  notifier  1 failed try: answered 503: busy  cannot be read                \
              nothing listens at http://127.0.0.1:PORT
"""
SHOWN = f"""\
{EXPLAINED.replace(SIDES, PARTICIPANTS)}
See it
  jaeger  http://127.0.0.1:PORT/trace/{"a" * 32}

What is on record
  looked at       TIME
  state           committing
  begun           8 min ago (TIME)
  decided commit  8 min ago (TIME); 3 rows in 1 branch
  run             run
  trace           {"a" * 32}

Branches
  PARTICIPANT  BRANCH  STATE      ROWS  PREPARED
  ledger       0.1     committed  3     8 min ago (TIME)

Votes
  BRANCH  PARTICIPANT  VOTE    ROWS
  0.1     ledger       commit  3
  0.1     notifier     commit  3

What happened
  +SKEW  log     begun, for ledger, notifier; run run
  +SKEW  log     decided commit: 3 rows
  +SKEW  log     ledger acknowledged
  +SKEW  ledger  prepared 1 branch, 3 rows
  +SKEW  ledger  committed 1 branch, 3 rows
"""


def test_explain_says_it_as_a_colleague_would(operator):
    """What is wrong, what each side says, what comes next and when, what is safe."""
    stuck(operator)
    out = operator.out(1, "explain", str(T))
    assert steady(out) == EXPLAINED
    assert len(out.splitlines()) < 25, "one screen"
    manual = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert EXPLAINED.replace("PORT", "8082") in manual
    _, (found,) = operator.json("explain", str(T))
    assert found["findings"][0]["kind"] == "stuck"
    assert found["actions"][0]["safe"] is True
    assert found["summary"].startswith("orders.7.1 is decided commit and not finished")


def test_explain_says_what_a_forced_way_costs(operator):
    """Quarantined: the safe way first, then what closing it would leave behind."""
    at = operator.at
    at.committing()
    at.worlds["ledger"].resolve(str(T), "abort")
    at.log.quarantine(T, "ledger answered 409 aborted")
    at.time.time = time.time()
    out = operator.out(1, "explain", str(T))
    safe, forced = out.index("safe: tracing"), out.index("FORCED: tracing")
    assert safe < forced
    assert TEXTS["contradicts"].format(participant="ledger") in out
    shown = " ".join(out.split())
    assert "(ledger answered 409 aborted). Work on it has stopped" in shown
    assert "ledger    aborted, resolved there by hand" in out
    assert "- costs: notifier keeps 3 rows until it is resolved there." in out
    assert "- costs: 3 rows of the batch are not committed at ledger." in out
    assert operator.says("ls")[0] == 1


@pytest.mark.parametrize("told", [True, False], ids=["aborted", "gone"])
def test_explain_calls_nothing_safe_that_a_participant_has_lost(operator, told):
    """Before anybody was told: the log is still committing, and the rows are gone."""
    at = operator.at
    at.committing()
    if told:
        at.worlds["ledger"].resolve(str(T), "abort")
        wrong = "diverged: it is decided commit, and ledger has aborted it."
    else:
        tables = ("branch", "transaction")
        at.write("ledger", *(f"DELETE FROM orders_tpc_{name}" for name in tables))
        wrong = "lost: it is decided commit, and what was prepared is not there"
    at.time.time = time.time()
    text = " ".join(operator.says("explain", str(T))[1].split())
    assert TEXTS["durable"] in text
    assert TEXTS["nothing is lost"] not in text
    assert wrong in text
    assert TEXTS["will be quarantined"].format(participant="ledger") in text
    operator.says("recover")
    assert state_of(at, str(T)) is TransactionState.QUARANTINED


def test_explain_names_a_clock_that_was_set_back(operator):
    """Else it would say that the last step was just now, for hours."""
    operator.at.time.time = time.time() + 7260
    operator.at.committing()
    text = operator.says("explain", str(T))[1].replace("\n", " ")
    assert TEXTS["ahead"].format(age="2 h") in text


def test_explain_of_what_is_right(operator):
    """Nothing is wrong, and 0."""
    stuck(operator)
    operator.reach()
    out = operator.out(0, "explain", "orders.5.1")
    assert "orders.5.1 is committed: every participant has acknowledged." in out
    assert TEXTS["nothing to do"] in out


def test_a_forgotten_branch_is_explained(operator):
    """A participant shows nothing below its forgotten_through, and still holds it."""
    at = operator.at
    at.prepare("orders.3.1", "ledger")
    at.prepare("orders.7.9", "ledger")
    at.worlds["ledger"].commit("orders.7.9", ONE, forgotten_through=6)
    at.time.time = time.time()
    out = operator.out(1, "explain", "orders.3.1")
    assert "orphaned: 3 rows" in out
    assert "holds it prepared for 8 min" in out
    assert "resolve orders.3.1 --at ledger --abort" in out
    assert "--commit" not in out, "another attempt may have been committed"


@pytest.mark.parametrize("command", ["show", "explain"])
@pytest.mark.parametrize(
    ("transaction", "code"),
    [
        ("orders.9.1", 2),
        ("nobody.1.1", 2),
        ("orders.4.1", 0),
        ("7", 2),
        ("\x1b[31m", 2),
    ],
)
def test_an_id_that_nobody_knows(operator, command, transaction, code):
    """Never a stack trace; forgotten is no mistake, unknown or misspelt is."""
    found, out, err = operator.says(command, transaction)
    assert found == code
    assert out or err.startswith("tracing-2pc: transaction id")
    if (command, code) == ("explain", 2) and out:
        assert TEXTS["list those that are known"] in out.replace("\n", " ")
    assert "\x1b" not in out + err


@pytest.mark.parametrize("command", ["show", "explain"])
def test_an_id_may_lack_its_attempt(operator, command):
    """The newest attempt at the batch is meant, as by `trace`."""
    stuck(operator)
    code, (shown,) = operator.json(command, str(T).rpartition(".")[0])
    assert (code, shown["transaction"]) == (1, str(T))


@pytest.mark.parametrize("command", [["ls"], ["show", str(T)], ["explain", str(T)]])
def test_hostile_text_is_harmless(operator, command):
    """In a reason, an error, an audit, a run: one line, cut, without an escape."""
    at = operator.at
    at.committing()
    at.log.acknowledge(T, "ledger")
    at.log.postpone(T, "notifier", HOSTILE, time.time())
    at.log.sign("deliver", T, who=HOSTILE, why=HOSTILE, before=None, after=HOSTILE)
    at.log.quarantine(T, HOSTILE)
    path = at.folder / "log" / "decisions.db"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE tpc_run SET run = ?", (HOSTILE,))
    at.time.time = time.time()
    code, out, err = operator.says(*command)
    assert code == 1
    shown = out.replace("\n", "")
    assert shown.isprintable()
    assert "second line" not in [line.strip() for line in out.splitlines()]
    assert max(map(len, out.splitlines())) < 500
    assert err == ""
    _, found = operator.json(*command)
    assert found[0]["reason"] == HOSTILE, "programs get it as it is"


def shown_with(operator: Operator, branches: int) -> str:
    """Return what `show` prints of a transaction with so many at the ledger."""
    at = operator.at
    at.begin()
    for n in range(branches):
        at.worlds["ledger"].prepare(str(T), fresh(n + 1, f"{n}.1"))
    at.time.time = time.time()
    return operator.says("show", str(T))[1]


def test_many_branches_are_bounded(operator):
    """Twenty are printed, the rest is counted."""
    assert TEXTS["more branches"].format(n=10) in shown_with(operator, branches=30)


def test_the_timeline_counts_all_branches(operator, monkeypatch):
    """Those too that are not printed: fewer rows than decided would be a loss."""
    monkeypatch.setattr(participants, "BRANCHES", 2)
    shown = shown_with(operator, branches=5)
    assert TEXTS["all branches"].format(n=5, rows=15) in shown


def test_who_hangs_is_waited_for_once_in_a_round(operator):
    """Its state is asked for beside its list, and nothing is asked of it after that."""
    made = operator.at.committing(7)
    asked_how_it_is, listed, shown = threading.Event(), [], []

    class Hanging(HttpParticipant):
        def prepared(self, application: str | None = None) -> Listing:
            listed.append(self.name)
            assert asked_how_it_is.wait(AT_LAST)
            raise ParticipantUnavailableError("no answer within 5 s")

        def describe(self) -> ParticipantDescription:
            asked_how_it_is.set()
            return ParticipantDescription(self.name, self.url, unreachable="no answer")

        def show(self, transaction: TransactionId, journal: str | None = None) -> Shown:
            shown.append(transaction)
            return Shown(ParticipantState.UNKNOWN)

    operator.at.time.advance(400)
    url = operator.at.observed["ledger"].url
    hanging = Hanging("ledger", url, None, PATIENT)
    participants = {**operator.at.observed, "ledger": hanging}
    filters, settings = TransactionFilter(), Settings()
    found = list_transactions(operator.at.log, participants, filters, settings)
    about = {str(finding.about): str(finding.kind) for finding in found.findings}
    assert (str(made) in about, about["ledger"]) == (True, "unreadable")
    assert (listed, shown) == (["ledger"], [])


def test_who_is_asked_is_said_when_that_takes_long(monkeypatch, capsys):
    """On a terminal, while it lasts; then the line is empty again."""
    monkeypatch.setattr(terminal, "SOON", 0.0)
    monkeypatch.setattr(terminal, "is_smart", lambda _: True)
    said = []
    with terminal.asking(NAMES):
        until(lambda: said.append(capsys.readouterr().err) or any(said))
    shown = TEXTS["who is asked"].format(names="ledger, notifier")
    assert "".join(said) + capsys.readouterr().err == f"\r\x1b[K{shown}\r\x1b[K"


def test_colours_are_for_terminals(operator):
    """On one, and not with NO_COLOR."""
    stuck(operator)
    assert "\x1b" not in operator.says("ls")[1]
    code, shown = on_a_terminal("ls")
    assert code == 1
    assert "\x1b[33morders.7.1" in shown
    _, plain = on_a_terminal("ls", "--log-only", NO_COLOR="1")
    assert "\x1b[33m" not in plain


def test_a_pipe_that_closes_early_is_no_error(operator):
    """As in `tracing-2pc ls | head -1`."""
    stuck(operator)
    command = f"{sys.executable} -m tracing_2pc ls | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env={**os.environ, "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_ls_shows_where_a_batch_is_prepared_before_its_decision(operator):
    """The participant that it may wait for is named, and one that cannot be read."""
    operator.at.begin()
    operator.at.prepare(T, "ledger")
    where = "prepared at ledger; nothing prepared yet at notifier"
    assert where in operator.says("ls")[1]
    operator.at.down("notifier")
    operator.reach()
    assert "prepared at ledger; not known of notifier" in operator.says("ls")[1]
