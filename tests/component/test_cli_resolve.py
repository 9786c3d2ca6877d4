"""`tracing-2pc resolve`: what it asks, refuses, does and says."""

from __future__ import annotations

import time

import pytest
from support.cli import Operator, on_a_terminal
from support.console import state_of
from support.texts import texts

from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import TransactionState

TEXTS = texts("component")

T = TransactionId("orders", 7, 1)
FOREIGN = TransactionId("bookings", 3, 1)
WHY = ("--reason", "asked on the phone", "--yes")


def resolve(
    operator: Operator, *words: str, of: TransactionId = T
) -> tuple[int, str, str]:
    return operator.says("resolve", str(of), *words, *WHY)


def test_the_decided_word_delivers_now(operator):
    """One attempt, and what came of it."""
    operator.at.committing()
    code, _, err = resolve(operator, "--abort")
    assert (code, TEXTS["stands"] in err) == (2, True)
    code, out, _ = resolve(operator, "--commit")
    assert (code, out) == (
        0,
        "orders.7.1 is committed; every participant has acknowledged\n",
    )
    assert [w.visible() for w in operator.at.worlds.values()] == [3, 3]
    assert resolve(operator, "--commit")[0] == 2, "nothing is left to decide"


def test_an_undecided_one_is_aborted_and_told(operator):
    """Write-once: its driver, if it lives, obeys."""
    operator.at.prepare(operator.at.begin().id)
    assert resolve(operator, "--commit")[0] == 2
    code, out, _ = resolve(operator, "--abort")
    assert (code, state_of(operator.at, str(T))) == (0, TransactionState.ABORTED)
    assert "is aborted" in out
    assert [w.in_doubt() for w in operator.at.worlds.values()] == [0, 0]


def test_a_contradiction_that_still_stands_is_quarantined_again(operator):
    """Delivered at once, so that the person sees it at once."""
    at = operator.at
    at.committing()
    at.worlds["ledger"].resolve(str(T), "abort")
    at.log.quarantine(T, "ledger answered 409 aborted")
    code, out, _ = resolve(operator, "--commit")
    assert (code, state_of(operator.at, str(T))) == (1, TransactionState.QUARANTINED)
    assert out.startswith("orders.7.1 is quarantined; ")
    assert resolve(operator, "--conclude", "mixed")[0] == 0
    assert state_of(operator.at, str(T)) is TransactionState.CONCLUDED


def test_a_participant_that_never_comes_back(operator):
    """It is waited for, then given up: closed, and its application goes on.

    What it holds is an orphan after that, which a person may commit.
    """
    operator.at.committing()
    url = operator.at.observed["notifier"].url
    operator.reach(notifier="http://127.0.0.1:9")
    code, out, _ = resolve(operator, "--commit")
    assert code == 1
    assert out.startswith("orders.7.1 is committing; not acknowledged: notifier")
    assert TEXTS["goes on by recover"] in out
    _, (found,) = operator.json("resolve", str(T), "--commit", *WHY)
    assert (found["done"], found["pending"]) == (False, ["notifier"])
    code, out, _ = resolve(operator, "--give-up", "notifier")
    assert (code, out) == (
        0,
        "orders.7.1 is concluded; every participant but notifier has acknowledged\n",
    )
    assert state_of(operator.at, str(T)) is TransactionState.CONCLUDED
    assert operator.at.worlds["ledger"].visible() == 3
    assert operator.at.begin(8).id.batch == 8
    assert "given up" in operator.says("show", str(T))[1]
    out = operator.says("explain", str(T))[1]
    assert TEXTS["closed by a person"] in out
    assert "given up" in " ".join(out.split())
    operator.reach(notifier=url)
    operator.at.time.time = time.time()
    assert operator.at.worlds["notifier"].in_doubt() == 1
    assert resolve(operator, "--at", "notifier", "--commit")[0] == 0
    assert operator.at.worlds["notifier"].visible() == 3


def test_who_else_is_down_is_still_waited_for(operator):
    """Giving up one says nothing of another."""
    operator.at.committing()
    operator.reach(ledger="http://127.0.0.1:9", notifier="http://127.0.0.2:9")
    code, out, _ = resolve(operator, "--give-up", "notifier")
    assert (code, state_of(operator.at, str(T))) == (1, TransactionState.COMMITTING)
    assert TEXTS["not acknowledged"].format(names="ledger") in out
    assert "notifier" not in out
    code, out, err = resolve(operator, "--give-up", "notifier")
    assert (code, "does not wait for notifier" in err) == (2, True)
    assert resolve(operator, "--give-up", "ledger")[0] == 0
    assert state_of(operator.at, str(T)) is TransactionState.CONCLUDED


def test_giving_up_shows_its_cost_and_asks(operator):
    """What is lost with it is said first; only the batch number does it."""
    operator.at.committing()
    operator.reach(notifier="http://127.0.0.1:9")
    words = ("resolve", str(T), "--give-up", "notifier", "--reason", "gone")
    code, shown = on_a_terminal(*words, typed="no")
    assert (code, state_of(operator.at, str(T))) == (1, TransactionState.COMMITTING)
    shown = " ".join(shown.split())
    assert TEXTS["cost of giving up"].format(rows=3, participant="notifier") in shown
    assert on_a_terminal(*words, typed="7")[0] == 0
    assert state_of(operator.at, str(T)) is TransactionState.CONCLUDED


def test_an_orphan_at_a_participant(operator):
    """Only with its name; one that is too young, or unknown, is refused."""
    at = operator.at
    at.prepare(FOREIGN, "ledger")
    for words, why in (
        (("--at", "ledger", "--abort"), "by its clock: wait another"),
        (("--abort",), "--at PARTICIPANT"),
        (("--at", "nobody", "--abort"), "they have: ledger, notifier"),
        (("--at", "ledger", "--conclude", "mixed"), "--at goes with"),
    ):
        code, _, err = resolve(operator, *words, of=FOREIGN)
        assert (code, why in err) == (2, True)
        at.time.time = time.time()
    code, out, _ = resolve(operator, "--at", "ledger", "--abort", of=FOREIGN)
    assert (code, out) == (0, "bookings.3.1 is aborted at ledger, by hand\n")
    assert at.worlds["ledger"].in_doubt() == 0


def test_a_participant_that_is_down_resolves_nothing(operator):
    """1, and its name."""
    operator.reach(ledger="http://127.0.0.1:9")
    code, _, err = resolve(operator, "--at", "ledger", "--abort", of=FOREIGN)
    assert code == 1
    assert "participant 'ledger': nothing listens" in err


def test_without_a_terminal_it_must_be_said(operator):
    """Nothing is done by a script that did not mean it."""
    operator.at.begin()
    err = operator.err(2, "resolve", str(T), "--abort", "--reason", "x")
    assert TEXTS["no terminal"] in err
    assert state_of(operator.at, str(T)) is TransactionState.ACTIVE


@pytest.mark.parametrize(
    ("typed", "done"),
    [
        pytest.param("7", True, marks=pytest.mark.ci),
        ("yes", True),
        pytest.param("y", False, marks=pytest.mark.ci),
        pytest.param("", False, marks=pytest.mark.ci),
    ],
)
def test_on_a_terminal_it_asks(operator, typed, done):
    """Effect and cost first; only the batch number or *yes* does it."""
    operator.at.prepare(operator.at.begin().id)
    code, shown = on_a_terminal(
        "resolve", str(T), "--abort", "--reason", "wrong input", typed=typed or " "
    )
    assert TEXTS["decides abort"] in shown
    assert TEXTS["cost of an abort"].format(rows=6) in shown
    assert shown.index("costs:") < shown.index("Type the batch number, 7, or yes:")
    assert code == (0 if done else 1)
    wanted = TransactionState.ABORTED if done else TransactionState.ACTIVE
    assert state_of(operator.at, str(T)) is wanted
    assert (TEXTS["not done"] in shown) is not done
