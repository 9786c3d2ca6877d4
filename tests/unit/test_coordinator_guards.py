"""What the driver does not do, whatever its participants and its log do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from protocol_support import FakeClock, World

from tracing_2pc.errors import (
    CommitPendingError,
    DecisionLogError,
    DecisionUnknownError,
    HeuristicError,
)
from tracing_2pc.model import BranchId, Receipt, TransactionId, TransactionRecord
from tracing_2pc.states import TransactionState, Vote
from tracing_2pc.store import open_log

FIRST = TransactionId("orders", 0, 1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = FakeClock()
    log = open_log(f"sqlite:///{tmp_path}/log.db", now=clock.now)
    yield World(log, clock)
    log.close()


@pytest.mark.parametrize("error", [DecisionLogError, DecisionUnknownError])
def test_an_abort_that_the_log_did_not_take_is_not_sent(
    world: World, error: type[Exception]
) -> None:
    """A task failed and the log is down: nobody is told a thing until it is back."""

    def fail(record: TransactionRecord) -> NoReturn:
        world.write(record)
        world.log.decide = down  # type: ignore[method-assign]
        raise ZeroDivisionError

    def down(*_: Any) -> NoReturn:
        raise error("down")

    real = world.log.decide
    with pytest.raises(ZeroDivisionError):
        world.run_batch(0, write=fail)
    assert (world.a.heard, world.in_doubt()) == ([], 4)
    world.log.decide = real  # type: ignore[method-assign]
    assert world.run_batch(0, run="run-2") is True
    assert world.a.heard == ["abort orders.0.1", "commit orders.0.2"]
    assert (world.in_doubt(), world.visible()) == (0, 4)


def test_who_waits_for_an_acknowledgement_looks_into_the_log(world: World) -> None:
    """A person has stopped the work on it: what the driver remembers is not sent."""
    world.b.silent = 1
    real = world.clock.sleep

    def meanwhile(seconds: float) -> None:
        real(seconds)
        world.log.quarantine(FIRST, "for a test")

    world.clock.sleep = meanwhile  # type: ignore[method-assign]
    with pytest.raises(HeuristicError, match="found so by somebody else"):
        world.run_batch(0)
    assert world.b.heard == ["commit orders.0.1"]


def test_what_is_decided_is_delivered_before_the_next_batch(world: World) -> None:
    """A start finds a commit that somebody has not heard: it goes first (rule 10)."""
    world.settings = dataclasses.replace(world.settings, on_pending="fail")
    world.b.silent = 100
    with pytest.raises(CommitPendingError):
        world.run_batch(0)
    world.b.silent = 0
    world.b.heard.clear()
    assert world.run_batch(1, run="run-2") is True
    assert world.b.heard == ["commit orders.0.1", "commit orders.1.1"]
    assert (world.in_doubt(), world.visible()) == (0, 8)
    assert world.log.unfinished() == []


def test_a_participant_without_branches_is_told_the_commit(world: World) -> None:
    """All that it was sent was read_only: a commit that names nothing seals there."""

    def write(record: TransactionRecord) -> list[Receipt]:
        branch = BranchId(0, 10)
        world.a.prepare(record, branch)
        votes = {"a": Vote.COMMIT, "b": Vote.READ_ONLY}
        return [Receipt(branch, 5, "sha-256=:x:", votes)]

    assert world.run_batch(0, write=write) is True
    assert world.a.heard == world.b.heard == ["commit orders.0.1"]
    assert world.b.committed == {"orders.0.1": set()}


def test_a_batch_that_was_forgotten_is_not_written_again(world: World) -> None:
    """Spark replays its last batch after however long: it stays on record for that."""
    world.settings = dataclasses.replace(world.settings, keep_finished=0.0)
    assert world.run_batch(0) is True
    for run in ("run-2", "run-3"):
        world.clock.time += 10**9
        assert world.run_batch(0, run=run) is False
    assert world.wrote == ["orders.0.1"]
    record = world.log.read(FIRST)
    assert record is not None
    assert record.state is TransactionState.COMMITTED
