"""A sink of one's own under the coordinator: what it leaves, and what it raises."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.own_sink import Base, World
from support.texts import texts
from support.traced_sink import Plain

from tracing_2pc import traced_sink
from tracing_2pc.core.errors import (
    CommitPendingError,
    ContractError,
    HeuristicError,
    ParticipantRefusedError,
)
from tracing_2pc.core.model import BranchId, TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.sinks.base import check_leftovers

T = TransactionId("orders", 0, 1)
TEXTS = texts("sinks")


@pytest.fixture
def world(log) -> World:
    """Its batches come after a task that was killed when it had prepared."""
    made = World(log)
    made.kind, made.tries, made.left = Base, 2, [BranchId(0, 9)]
    return made


@pytest.mark.parametrize("traced", [False, True], ids=["plain", "traced"])
def test_a_commit_drops_what_was_not_chosen(world, *, traced):
    """The twin of a killed task does not stay prepared when its retry is committed."""
    if traced:
        world.kind = traced_sink(type("Traced", (Base,), {}))
    world.start().batch(0, [1], [2])
    assert (world.partner.rows, world.partner.prepared) == ([1, 2], {})


def test_a_commit_is_not_over_before_the_rest_is_dropped(world):
    """If dropping raises, it is tried again; until then the commit is pending."""

    class Busy(Base):
        busy = 1

        def abort_transaction(self, transaction_id: str, keep: list[Any]) -> None:
            if self.busy:
                self.busy -= 1
                raise TimeoutError("busy")
            super().abort_transaction(transaction_id, keep)

    world.kind = Busy
    world.start().batch(0, [1])
    assert (world.partner.rows, world.partner.prepared) == ([1], {})


def test_who_cannot_find_its_leftovers_is_told_so_at_start(world, caplog):
    """By name, once, before anything runs; who can is told nothing."""
    check_leftovers(Base(world.partner))
    assert caplog.messages == []
    check_leftovers(Plain())
    (message,) = caplog.messages
    assert TEXTS["no abort_transaction"].format(sink="Plain") in message


def test_an_abort_transaction_that_takes_no_handles_is_refused(world):
    """It could not be called after a commit: it would drop what is committed, too."""

    class Older(Base):
        def abort_transaction(self, transaction_id: str) -> None:  # type: ignore[override]
            ...

    with pytest.raises(ContractError, match=r"^partner\.abort_transaction "):
        check_leftovers(Older(world.partner))


def test_a_commit_that_raises_keeps_no_other_branch_from_being_tried(world, caplog):
    """What it raised is in the exception and the record; with traceback, in the log.

    Nothing is dropped before all that is chosen is committed.
    """
    error = ValueError("no such account: 17")
    error.__cause__ = KeyError("the cause of it")
    world.partner.raises["commit orders.0.1.1.1"] = error
    with pytest.raises(CommitPendingError, match="ValueError: no such account: 17"):
        world.start().batch(0, [1], [2], [3])
    assert world.partner.rows == [1, 3]
    assert world.partner.prepared.keys() == {"orders.0.1.1.1", "orders.0.1.0.9"}
    assert world.state(str(T)) is TransactionState.COMMITTING
    (told,) = world.log.deliveries(T).values()
    assert "ValueError: no such account: 17" in str(told.error)
    record = next(r for r in caplog.records if r.exc_info)
    assert "branch" in record.getMessage()
    text = logging.Formatter().format(record)
    assert "the cause of it" in text
    assert "in commit" in text


def test_a_sink_says_refused(world):
    """A definite no is no "not now": the transaction is quarantined, for a person."""
    no = ParticipantRefusedError("account 17 is closed for good")
    world.partner.raises["commit orders.0.1.1.1"] = no
    for _ in range(2):
        with pytest.raises(HeuristicError, match=str(no)):
            world.start().batch(0, [1], [2], [3])
        assert world.state(str(T)) is TransactionState.QUARANTINED
        assert world.partner.rows == [1, 3]


def test_a_refusal_counts_more_than_a_not_now(world):
    """One branch is not ready, another one refused: a person must look."""
    world.partner.raises = {
        "commit orders.0.1.0.0": TimeoutError("not now"),
        "commit orders.0.1.1.1": ParticipantRefusedError("never"),
    }
    with pytest.raises(HeuristicError, match="never"):
        world.start().batch(0, [1], [2])
    assert world.state(str(T)) is TransactionState.QUARANTINED
