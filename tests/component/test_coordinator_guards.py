"""What the driver does not do, whatever its participants and its log do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from support.log_tables import copy_database
from support.protocol import World, raising
from support.texts import texts

from tracing_2pc.core.errors import (
    AbortedError,
    ContractError,
    DecisionLogError,
    DecisionUnknownError,
    HeuristicError,
    ParticipantRefusedError,
)
from tracing_2pc.core.model import Receipt, TransactionId, TransactionRecord
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision, TransactionState

TEXTS = texts("component")

FIRST = TransactionId("orders", 0, 1)


@pytest.mark.parametrize("error", [DecisionLogError, DecisionUnknownError])
def test_an_abort_that_the_log_did_not_take_is_not_sent(world, error):
    """A task failed and the log is down: nobody is told a thing until it is back."""

    def fail(record: TransactionRecord) -> NoReturn:
        world.write(record)
        world.log.decide = raising(error("down"))  # type: ignore[method-assign]
        raise ZeroDivisionError

    real = world.log.decide
    with pytest.raises(ZeroDivisionError):
        world.run_batch(0, write=fail)
    assert (world.a.heard, world.in_doubt()) == ([], 4)
    world.log.decide = real  # type: ignore[method-assign]
    assert world.run_batch(0, run="run-2") is True
    assert world.a.heard == ["abort orders.0.1", "commit orders.0.2"]
    assert (world.in_doubt(), world.visible()) == (0, 4)


class Away:
    """A log that is away for some calls; or takes them, and its answer is lost."""

    def __init__(self, world: World, method: str, calls: int) -> None:
        self.calls = calls
        real = getattr(world.log, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            taken = self.calls <= 1 and real(*args, **kwargs)
            if self.calls > 0:
                self.calls -= 1
                raise DecisionLogError("server closed the connection unexpectedly")
            return taken

        setattr(world.log, method, call)


@pytest.mark.parametrize("method", ["begin", "unfinished"])
def test_a_log_that_is_away_between_two_batches_ends_no_query(world, method):
    """Asked again, with growing waits; a begin that was written is not doubled."""
    assert world.run_batch(0) is True
    away = Away(world, method, calls=2)
    assert world.run_batch(1) is True
    assert (away.calls, sum(world.clock.slept)) == (0, pytest.approx(3.0))
    assert world.wrote == ["orders.0.1", "orders.1.1"]
    assert (world.in_doubt(), world.visible()) == (0, 8)


def test_what_a_begin_without_an_answer_superseded_is_told_so(world):
    """The attempt before it holds rows and locks: it is not left to the batch after."""
    world.log.begin(
        "orders",
        0,
        Opening(run="before", query="query", participants=("a", "b"), carrier={}),
    )
    Away(world, "begin", calls=1)
    assert world.run_batch(0) is True
    assert world.a.heard == ["abort orders.0.1", "commit orders.0.2"]


@pytest.mark.parametrize("method", ["begin", "unfinished"])
def test_a_log_that_stays_away_is_named_and_the_query_ends(world, method):
    """After the inline tries, with what the database said; and nothing was written."""
    Away(world, method, calls=100)
    with pytest.raises(DecisionLogError, match="server closed the connection"):
        world.run_batch(0)
    assert sum(world.clock.slept) == pytest.approx(3.0)
    assert world.wrote == []


def test_stop_ends_the_wait_for_the_log(world):
    """Whoever stops the query does not wait for its log."""
    Away(world, "begin", calls=100)
    world.stopped = True
    with pytest.raises(DecisionLogError):
        world.run_batch(0)
    assert world.clock.slept == []


def test_a_record_that_cannot_be_trusted_is_not_asked_again(world):
    """Waiting mends no torn record: the query ends at once, and names it."""
    asked = []

    def refuse(*_: Any, **__: Any) -> NoReturn:
        asked.append(1)
        raise DecisionLogError("does not match", transaction_id="orders.0.1")

    world.log.begin = refuse  # type: ignore[method-assign]
    with pytest.raises(DecisionLogError, match="does not match"):
        world.run_batch(0)
    assert asked == [1]


def test_who_waits_for_an_acknowledgement_looks_into_the_log(world):
    """A person has stopped the work on it: what the driver remembers is not sent."""
    world.b.silent = 1
    world.clock.meanwhile = lambda: world.log.quarantine(FIRST, "for a test")
    with pytest.raises(HeuristicError, match=TEXTS["found by another"]):
        world.run_batch(0)
    assert world.b.heard == ["commit orders.0.1"]


def test_what_is_decided_is_delivered_before_the_next_batch(world):
    """A start finds a commit that somebody has not heard: it goes first (rule 10)."""
    world.leave_committing()
    world.b.heard.clear()
    assert world.run_batch(1, run="run-2") is True
    assert world.b.heard == ["commit orders.0.1", "commit orders.1.1"]
    assert (world.in_doubt(), world.visible()) == (0, 8)
    assert world.log.unfinished() == []


def test_a_participant_without_branches_is_told_the_commit(world):
    """All that it was sent was read_only: a commit that names nothing seals there."""
    assert world.run_batch(0, write=world.write_for_a) is True
    assert world.a.heard == world.b.heard == ["commit orders.0.1"]
    assert world.b.committed == {"orders.0.1": set()}


def test_the_log_is_not_asked_for_a_commit_without_every_vote(world):
    """The coordinator looks itself, whichever program wrote the branches (rule 1)."""
    asked: list[Decision] = []
    real = world.log.decide

    def decide(id_: TransactionId, wanted: Decision, *receipts: Any, **why: Any) -> Any:
        asked.append(wanted)
        return real(id_, wanted, *receipts, **why)

    def write(record: TransactionRecord) -> list[Receipt]:
        return list(world.write(record))[:-1]

    world.log.decide = decide  # type: ignore[method-assign]
    with pytest.raises(
        ContractError, match=TEXTS["missing vote"].format(participant="b", branch=1)
    ):
        world.run_batch(0, write=write)
    assert asked == [Decision.ABORT]
    assert (world.in_doubt(), world.visible()) == (0, 0)


def test_a_batch_that_was_forgotten_is_not_written_again(world):
    """Spark replays its last batch after however long: it stays on record for that."""
    world.settings = dataclasses.replace(world.settings, keep_finished=0.0)
    assert world.run_batch(0) is True
    for run in ("run-2", "run-3"):
        world.clock.time += 10**9
        assert world.run_batch(0, run=run) is False
    assert world.wrote == ["orders.0.1"]
    assert world.state(FIRST) is TransactionState.COMMITTED


@pytest.fixture
def older(world, tmp_path) -> Older:
    return Older(world, tmp_path)


class Older:
    """A copy of the log, that takes over while `b` has not acknowledged yet."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.of, self.copy = folder / "log.db", folder / "copy.db"
        world.b.silent = 1

    def write_and_copy(self, record: TransactionRecord) -> Any:
        receipts = self.world.write(record)
        copy_database(self.of, self.copy)
        return receipts

    def take_over_at_an_acknowledgement(self) -> None:
        real = self.world.log.acknowledge

        def acknowledge(*about: Any) -> None:
            self.world.log.acknowledge = real  # type: ignore[method-assign]
            copy_database(self.copy, self.of)
            real(*about)

        self.world.log.acknowledge = acknowledge  # type: ignore[method-assign]

    def take_over_in_the_wait(self, then: Callable[[], object] = bool) -> None:
        def meanwhile() -> None:
            self.world.clock.meanwhile = bool
            copy_database(self.copy, self.of)
            then()

        self.world.clock.meanwhile = meanwhile


def test_a_log_that_lost_the_decision_is_told_it_again(world, older):
    """A copy from before the decision takes over: nobody is told to abort by it."""
    older.take_over_in_the_wait()
    assert world.run_batch(0, write=older.write_and_copy) is True
    assert world.b.heard == ["commit orders.0.1"] * 2
    assert (world.in_doubt(), world.visible()) == (0, 4)
    assert world.state(FIRST) is TransactionState.COMMITTED


def test_a_log_that_loses_the_decision_before_anybody_has_acknowledged(world, older):
    """All have committed, and the copy knows of no decision: it is told, and finished.

    Else the next start would find an attempt without a decision, and abort it.
    """
    world.b.silent = 0
    older.take_over_at_an_acknowledgement()
    assert world.run_batch(0, write=older.write_and_copy) is True
    assert (world.a.aborted, world.b.aborted) == (set(), set())
    assert world.run_batch(0, run="run-2") is False
    assert (world.log.unfinished(), world.visible()) == ([], 4)


def test_a_log_that_lost_the_record_has_not_forgotten_it(world, older):
    """A copy from before the attempt takes over: who has not heard of it is told."""
    assert world.run_batch(0) is True
    copy_database(older.of, older.copy)
    world.b.silent = 1
    older.take_over_in_the_wait()
    assert world.run_batch(1) is True
    assert world.log.read(dataclasses.replace(FIRST, batch=1)) is None
    assert (world.in_doubt(), world.visible()) == (0, 8)


def test_a_log_that_lost_the_record_before_its_decision_is_named(world, older):
    """Neither a newer run nor a timeout has ended it: the error says so."""

    def put_back(record: TransactionRecord) -> list[Receipt]:
        receipts = list(world.write(record))
        copy_database(older.copy, older.of)
        return receipts

    copy_database(older.of, older.copy)
    with pytest.raises(AbortedError, match=TEXTS["gone from the log"]):
        world.run_batch(0, write=put_back)
    assert (world.a.committed, world.b.committed) == ({}, {})
    assert world.run_batch(0, run="run-2") is True
    assert (world.in_doubt(), world.visible()) == (0, 4)


def test_a_log_that_says_abort_after_all_is_not_taken_for_done(world, older):
    """Nobody had heard the commit, and others went by the copy: the batch is open."""
    world.a.silent = world.b.silent = 1

    def others_abort() -> None:
        world.log.decide(FIRST, Decision.ABORT)
        for name in ("a", "b"):
            world.log.acknowledge(FIRST, name)
        world.log.finish(FIRST)

    older.take_over_in_the_wait(others_abort)
    with pytest.raises(HeuristicError, match=TEXTS["an older copy"]):
        world.run_batch(0, write=older.write_and_copy)
    assert world.run_batch(0, run="run-2") is True
    assert world.visible() == 4


@pytest.mark.parametrize(("at_most", "is_written"), [(9, False), (10, True)])
def test_rows_that_all_tasks_reject_together_are_counted(world, at_most, is_written):
    """Each task has kept below the limit: more than that abort the batch."""
    coordinator = dataclasses.replace(
        world.coordinator(), rejects="b", rejects_at_most=at_most
    )

    def apply() -> bool:
        return coordinator.apply(
            0, run="r", query="q", write=world.write, cancel=lambda _: None
        )

    if is_written:
        assert apply() is True
        record = world.log.read(FIRST)
        assert (record.rejects, record.rejected, record.rows) == ("b", 10, 10)
        return
    with pytest.raises(ParticipantRefusedError, match=TEXTS["too many are rejected"]):
        apply()
    assert world.log.read(FIRST).decision is Decision.ABORT
    assert (world.in_doubt(), world.visible()) == (0, 0)
