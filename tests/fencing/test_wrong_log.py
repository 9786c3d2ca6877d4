"""The log itself is wrong: empty, an old copy, somebody else's. Nothing lands twice.

What the log cannot know the participants do: they refuse a batch that they have
committed (rule 18). What a participant has lost, because an old copy of its database
was put back, the log knows. Each test says how an operator gets out, and does it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import shutil
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fencing_support import (
    APPLICATION,
    QUICK,
    Query,
    Services,
    numbers,
    services,
    state,
)
from support.checkpoint import Checkpoint
from support.log_tables import copy_database
from support.spark import numbers_of
from support.texts import texts
from support.waiting import AT_LAST, PATIENT

from tracing_2pc import Settings
from tracing_2pc.cli import main
from tracing_2pc.conformance import check_run
from tracing_2pc.core.errors import (
    ConfigurationError,
    HeuristicError,
    ParticipantRefusedError,
)
from tracing_2pc.core.model import Receipt, TransactionId, TransactionRecord
from tracing_2pc.core.ports import SystemClock
from tracing_2pc.core.states import TransactionState
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.inspection.diagnosis import diagnose
from tracing_2pc.inspection.survey import survey_all
from tracing_2pc.inspection.view import view_transaction
from tracing_2pc.store import SqlDecisionLog, open_log

TEXTS = texts("fencing")
pytestmark = pytest.mark.ci

BATCHES = 3
"""Committed before anything goes wrong: batches 0, 1 and 2."""


def raises(
    error: type[Exception], says: str, /, **values: object
) -> contextlib.AbstractContextManager[pytest.ExceptionInfo[Any]]:
    """Expect an error, by its class and by the sentence of that name."""
    return pytest.raises(error, match=TEXTS[says].format(**values))


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """Participants, ours and other people's, and logs and checkpoints by name."""

    folder: Path
    services: Services
    others: Services
    stack: contextlib.ExitStack
    runs: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def url(self, log: str) -> str:
        return f"sqlite:///{self.folder / log}.log"

    def log(self, log: str = "right") -> SqlDecisionLog:
        opened = open_log(self.url(log))
        self.stack.callback(opened.close)
        return opened

    def checkpoint(self, name: str = "right") -> Checkpoint:
        return Checkpoint.at(self.folder / name)

    def query(
        self,
        kind: type[Query] = Query,
        *,
        log: str = "right",
        checkpoint: str = "right",
        to: Services | None = None,
        **other: Any,
    ) -> Query:
        """Return the next life of the query."""
        sink = (to or self.services).sink()
        run = f"run-{next(self.runs)}"
        return kind(run, self.checkpoint(checkpoint), self.log(log), sink, **other)

    def back_up(self, log: str) -> None:
        """Copy the right log as it is now, as a backup does."""
        copy_database(self.folder / "right.log", self.folder / f"{log}.log")

    def operator(self, *command: str, log: str) -> int:
        """Run `tracing-2pc` as an operator does."""
        sure = ["--yes"] if command[0] == "resolve" else []
        return main([*command, *sure, "--log", self.url(log)])

    def look(self, transaction: str) -> list[str]:
        """Ask both what they hold of a transaction, as an operator does."""
        found = []
        for service in (self.services.a, self.services.b):
            with urllib.request.urlopen(
                f"{service.url}/transactions/{transaction}", timeout=AT_LAST
            ) as answer:
                found.append(json.load(answer)["state"])
        return found

    def assert_holds(self, batches: int, to: Services | None = None) -> None:
        """Both hold so many batches of the source, each row once."""
        found = to or self.services
        assert found.held() == (numbers_of(batches), numbers_of(batches))
        assert found.in_doubt() == (0, 0)

    def goes_on(self, batches: int, **query: Any) -> None:
        self.query(**query).start(batches)
        self.assert_holds(batches)

    def put_back(self, name: str) -> None:
        """Let a's database be the copy that was made of it, under its service."""
        copy_database(self.folder / f"{name}.db", self.services.a.database)

    def participants(self) -> dict[str, HttpParticipant]:
        both = {"a": self.services.a, "b": self.services.b}
        return {n: HttpParticipant(n, of.url, None, PATIENT) for n, of in both.items()}

    def diagnosed(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Return what `watch`, `check` and the console find, an hour later."""
        asked = self.participants()
        evidence = survey_all(self.log(), asked, Settings(), AnHourLater(), bool)
        assert not evidence.unreadable
        found = diagnose(evidence, Settings())
        return [(str(f.about), str(f.kind), f.participants) for f in found]

    def contradictions(self) -> set[str]:
        """Return what `check --deep` finds in a's journal."""
        found = check_run(self.url("right"), [("a", self.services.a.address)])
        return {one.transaction for one in found}

    def assert_quarantined(self, transaction: str, log: str) -> None:
        opened = self.log(log)
        assert state(opened, transaction) is TransactionState.QUARANTINED


class AnHourLater(SystemClock):
    """The clock of a machine on which nothing of this is young any more."""

    def now(self) -> float:
        return super().now() + 3600


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    """Three batches are in both; `old` is a backup of the log after the first."""
    with contextlib.ExitStack() as stack:
        (tmp_path / "others").mkdir()
        ours, others = (
            stack.enter_context(services(folder))
            for folder in (tmp_path, tmp_path / "others")
        )
        world = World(tmp_path, ours, others, stack)
        query = world.query()
        query.start(1)
        world.back_up("old")
        shutil.copytree(tmp_path / "right", tmp_path / "old")
        query.start(BATCHES)
        yield world


def test_an_empty_log(world):
    """Refused: the message names the reasons, and the command for each.

    Way out: the right log, if there is one; or `tracing-2pc adopt`; or, as it did here,
    `tracing-2pc init --from-batch N`, where nothing was in flight.
    """
    with raises(ConfigurationError, "another log") as told:
        world.query(log="empty").start(BATCHES + 1)
    assert TEXTS["init"].format(batch=3) in str(told.value)
    world.assert_holds(BATCHES)
    world.goes_on(BATCHES + 1)
    init = ("init", "--application", APPLICATION, "--from-batch", "4")
    assert world.operator(*init, log="empty") == 0
    world.goes_on(BATCHES + 3, log="empty")


@pytest.mark.parametrize("log", ["empty", "old"])
def test_a_batch_that_spark_did_not_commit(world, log):
    """Spark asks for a batch that the log has never heard of: participants refuse it.

    As in an empty log after `init`, which makes the batch begin as if it were new;
    `tracing-2pc adopt` asks them first (`test_lost_log.py`). Way out after `init`:
    conclude what is quarantined, after a look at the participants; and, as they have
    the batch, put its commit into Spark's checkpoint: copy `commits/1` to `commits/2`.
    Without that it is refused for ever, and never written.
    """
    world.checkpoint().lose_commit(2)
    if log == "empty":
        with raises(ConfigurationError, "init", batch=2):
            world.query(log=log).start(BATCHES + 1)
        init = ("init", "--application", APPLICATION, "--from-batch", "2")
        assert world.operator(*init, log=log) == 0
    with raises(HeuristicError, "committed here", id="fence.2.1"):
        world.query(log=log).start(BATCHES + 1)
    world.assert_holds(BATCHES)
    conclude(world, "fence.2.1", log=log)
    with raises(ParticipantRefusedError, "by another", id="fence.2.1"):
        world.query(log=log).start(BATCHES + 1)
    world.assert_holds(BATCHES)
    world.checkpoint().commit(2)
    world.goes_on(BATCHES + 2, log=log)
    assert world.log(log).unfinished() == []


@pytest.mark.parametrize("log", ["empty", "another application's"])
def test_a_log_that_knows_nothing_and_a_lost_checkpoint(world, log):
    """Batch 0 begins, as in a new application; the participants refuse what they have.

    Way out: restore log and checkpoint; or, where they are gone for good, a new
    application whose source starts behind what the participants hold. In a log that
    belongs to somebody else, nobody else is held up.
    """
    if log != "empty":
        other(world, log)
    for _ in range(2):
        with raises(HeuristicError, "quarantined", id="fence.0.1"):
            world.query(log=log, checkpoint="new").start(BATCHES)
        world.assert_holds(BATCHES)
    conclude(world, "fence.0.1", log=log)
    with raises(ParticipantRefusedError, "by another", id="fence.0.1"):
        world.query(log=log, checkpoint="new").start(BATCHES)
    world.assert_holds(BATCHES)
    afresh(world, log=log)
    world.assert_holds(BATCHES + 2)
    if log != "empty":
        other(world, log)


def test_a_log_that_knows_nothing_and_participants_that_forgot(world):
    """They keep no batch below forgotten_through, and refuse each of them all the same.

    Way out: as for any lost log and checkpoint, a new application.
    """
    forgetting = dataclasses.replace(QUICK, keep_finished=0.0)
    world.query(settings=forgetting).start(BATCHES + 2)
    with raises(HeuristicError, "forgotten", batch=2):
        world.query(log="empty", checkpoint="new").start(BATCHES)
    world.assert_holds(BATCHES + 2)
    afresh(world, log="empty", after=BATCHES + 2)
    world.assert_holds(BATCHES + 4)


def test_an_old_copy_of_the_log(world):
    """With its checkpoint the query goes on: what the copy lacks is not asked for.

    Nothing has to be done; the participants have kept what the log forgot.
    """
    world.goes_on(BATCHES + 2, log="old")
    assert world.log("old").unfinished() == []


def test_an_old_copy_of_the_log_and_a_lost_checkpoint(world):
    """Refused, as the copy knows which query it belongs to.

    Way out: the checkpoint; and where it is gone for good, a new application.
    """
    with raises(ConfigurationError, "another checkpoint"):
        world.query(log="old", checkpoint="new").start(BATCHES)
    world.assert_holds(BATCHES)
    world.goes_on(BATCHES + 1, log="old")
    afresh(world, log="old", after=BATCHES + 1)
    world.assert_holds(BATCHES + 3)


def test_an_old_copy_of_log_and_checkpoint(world):
    """Restored together they fit each other, and not the participants: these refuse.

    Way out: the newer log and checkpoint; or a new application, as Spark's offsets of
    the lost batches are nowhere else.
    """
    with raises(HeuristicError, "committed here", id="fence.1.1"):
        world.query(log="old", checkpoint="old").start(BATCHES)
    world.assert_quarantined("fence.1.1", "old")
    with raises(HeuristicError, "a person must look"):
        world.query(log="old", checkpoint="old").start(BATCHES)
    world.assert_holds(BATCHES)
    afresh(world, log="old")
    world.assert_holds(BATCHES + 2)


def test_a_copy_from_before_a_decision(world):
    """It holds an attempt as undecided, and would abort what was committed since.

    The participants refuse, and it is quarantined. Way out: a look at them, then
    conclude: they have the batch. The query goes on behind it.
    """

    class BackedUp(Query):
        def write(self, record: TransactionRecord) -> list[Receipt]:
            receipts = super().write(record)
            world.back_up("middle")
            return receipts

    world.query(BackedUp).start(BATCHES + 1)
    with raises(HeuristicError, "committed here", id="fence.3.1"):
        world.query(log="middle").start(BATCHES + 2)
    world.assert_holds(BATCHES + 1)
    conclude(world, "fence.3.1", log="middle")
    world.goes_on(BATCHES + 2, log="middle")
    assert world.log("middle").unfinished() == []


def test_an_old_copy_that_lacks_a_decision_only_one_had_heard(world):
    """The worst: a has committed by a decision that is nowhere any more, b had not.

    The batch is aborted at b, and never silently: it is quarantined. Way out: conclude
    it as mixed, put its commit into the checkpoint, and write the batch to b alone
    under another name.
    """
    query = world.query()
    query.sink.participants["a"].commit(query.decide())
    with raises(HeuristicError, "committed here", id="fence.3.1"):
        world.query(log="old").start(BATCHES + 2)
    with raises(HeuristicError, "a person must look"):
        world.query(log="old").start(BATCHES + 2)
    assert world.services.held() == (numbers_of(BATCHES + 1), numbers_of(BATCHES))
    assert world.look("fence.3.1") == ["committed", "aborted"]
    words = ("--conclude", "mixed", "--reason", "a holds it, b does not")
    assert world.operator("resolve", "fence.3.1", *words, log="old") == 0
    world.checkpoint().commit(3)
    repair = world.query(
        log="old", checkpoint="repair", application="repair", after=BATCHES
    )
    dataclasses.replace(repair, sink=repair.sink.route("b")).start(1)
    world.assert_holds(BATCHES + 1)
    world.goes_on(BATCHES + 2, log="old")


def test_a_copy_from_after_a_decision(world):
    """It holds a commit as unfinished, which was finished since: sent again, no harm.

    Nothing has to be done.
    """
    world.query().decide()
    world.back_up("middle")
    world.query().start(BATCHES + 2)
    world.goes_on(BATCHES + 3, log="middle")
    assert world.log("middle").unfinished() == []


@pytest.mark.parametrize("batches", [BATCHES, BATCHES + 1])
def test_an_old_copy_of_a_participant(world, batches):
    """It lacks what it acknowledged. The query goes on, and each look says so.

    Of what is read the newest three commits are; `check --deep` names all. Way out: the
    rows of these batches, from the source or a newer copy.
    """
    copy_database(world.services.a.database, world.folder / "backup.db")
    world.query().start(BATCHES + 2)
    gone = {f"fence.{batch}.1" for batch in range(BATCHES, BATCHES + 2)}
    assert world.diagnosed() == []
    world.put_back("backup")
    world.query().start(batches + 2)
    assert {(id_, "lost", ("a",)) for id_ in gone} == {*world.diagnosed()}
    assert world.contradictions() == gone
    batch = TransactionId(APPLICATION, BATCHES, 1)
    asked = world.participants()
    view = view_transaction(world.log(), asked, batch, Settings(), AnHourLater())
    assert TEXTS["bring back"] in [action.command for action in view.actions]


def test_an_old_copy_of_a_participant_between_its_vote_and_the_commit(world):
    """Its vote is gone. It acknowledges nothing; all is quarantined, and is lost.

    Way out: the rows, and a person who concludes it.
    """

    class PutBack(Query):
        def write(self, record: TransactionRecord) -> list[Receipt]:
            copy_database(world.services.a.database, world.folder / "backup.db")
            receipts = super().write(record)
            world.put_back("backup")
            return receipts

    with raises(HeuristicError, "quarantined", id="fence.3.1"):
        world.query(PutBack).start(BATCHES + 1)
    world.assert_quarantined("fence.3.1", "right")
    assert world.diagnosed() == [("fence.3.1", "lost", ("a",))]
    words = ("--conclude", "mixed", "--reason", "its rows were brought back at a")
    assert world.operator("resolve", "fence.3.1", *words, log="right") == 0
    assert world.diagnosed() == []


def test_a_copy_of_a_participant_from_before_a_commit(world, monkeypatch):
    """It holds prepared what it has acknowledged as committed: an orphan.

    Way out: the command that is named beside it; then each row is there once.
    """

    class BackedUp(Query):
        def write(self, record: TransactionRecord) -> list[Receipt]:
            receipts = super().write(record)
            copy_database(world.services.a.database, world.folder / "backup.db")
            return receipts

    world.query(BackedUp).start(BATCHES + 1)
    world.put_back("backup")
    world.query().start(BATCHES + 2)
    world.services.a.age()
    assert world.diagnosed() == [("fence.3.1", "orphaned", ("a",))]
    assert world.contradictions() == {"fence.3.1"}
    monkeypatch.setenv("TPC_PARTICIPANTS", f"a={world.services.a.url}")
    monkeypatch.setenv("TPC_TOKEN", "a-token-of-an-operator")
    words = ("--at", "a", "--commit", "--reason", "the log has committed it")
    assert world.operator("resolve", "fence.3.1", *words, log="right") == 0
    world.assert_holds(BATCHES + 2)
    assert (world.diagnosed(), world.contradictions()) == ([], set())


OF_OTHERS = {
    # whose: its name, its batches, the checkpoint that asks it; how that is refused
    "another application": ("other", 0, "right", "another log"),
    "the same name": ("staging", 2, "right", "another checkpoint"),
    "the same name, anew": ("staging", 2, "new", "another checkpoint"),
    "a copy, ahead": ("copied", BATCHES + 2, "right", "an older checkpoint"),
    "a copy, at our batch": ("copied", BATCHES + 1, "right", "finished here alone"),
}
"""The last says that our next batch is finished; our participants know nothing of it.
A copy began with a copy of our checkpoint, so that its query is the same."""


@pytest.mark.parametrize("whose", OF_OTHERS)
def test_the_log_of_somebody_else(world, whose):
    """Refused, and not skipped: it does not know us, or knows us from another query.

    Way out: point `log` at the right one. The wrong one has heard nothing of this.
    """
    name, batches, checkpoint, refused = OF_OTHERS[whose]
    log = "other" if name == "other" else "staging"
    if name == "copied":
        copied(world)
    go_on(world, log, batches)
    with raises(ConfigurationError, refused):
        world.query(log=log, checkpoint=checkpoint).start(BATCHES + 1)
    world.assert_holds(BATCHES)
    go_on(world, log, batches + 1)
    world.goes_on(BATCHES + 1)


def go_on(world: World, log: str, batches: int) -> None:
    """Let whoever the log belongs to apply batches, to participants of its own."""
    if log == "other":
        other(world, log)
    else:
        staging(world, batches)


def test_the_log_of_a_copy_with_a_commit_under_way(world):
    """Its commit is not delivered to the wrong participants: it is in other journals.

    Refused, nothing written. Way out: point `log` at the right one; the copy's own
    query, whose participants do know it, goes on.
    """
    copied(world)
    world.query(log="staging", checkpoint="staging", to=world.others).decide()
    with raises(ConfigurationError, "in another journal", id="fence.3.1"):
        world.query(log="staging").start(BATCHES + 1)
    world.assert_holds(BATCHES)
    world.goes_on(BATCHES + 1)
    staging(world, batches=BATCHES + 1)
    assert world.others.held() == (Counter(numbers(3)), Counter(numbers(3)))
    assert world.others.in_doubt() == (0, 0)


def other(world: World, log: str) -> None:
    """Let another application apply its next batch, to participants of its own."""
    query = world.query(
        log=log, checkpoint="other", to=world.others, application="other"
    )
    batches = query.checkpoint.next() + 1
    query.start(batches)
    world.assert_holds(batches, world.others)


def staging(world: World, batches: int) -> None:
    """Let a query of the same name run on a log and participants of its own."""
    world.query(log="staging", checkpoint="staging", to=world.others).start(batches)


def copied(world: World) -> None:
    """Start a query from a copy of the checkpoint, on a log and participants anew."""
    shutil.copytree(world.folder / "right", world.folder / "staging")
    world.log("staging").initialise(APPLICATION, BATCHES)


def conclude(world: World, transaction: str, *, log: str) -> None:
    """Look at the participants, find the batch in both, and say so to the log."""
    world.assert_quarantined(transaction, log)
    assert world.look(transaction) == ["committed", "committed"]
    words = ("--conclude", "hazard", "--reason", "both hold it, the log was wrong")
    assert world.operator("resolve", transaction, *words, log=log) == 0


def afresh(world: World, *, log: str, after: int = BATCHES) -> None:
    """Begin under a new name, with a source that starts behind what is there."""
    query = world.query(
        log=log, checkpoint="afresh", application=f"{APPLICATION}-2", after=after
    )
    query.start(2)
