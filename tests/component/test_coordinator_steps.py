"""A program that calls the coordinator step by step: open, close, fail. No Spark."""

from __future__ import annotations

import dataclasses
import os
import threading
from typing import Any

import pytest
from support.deadline import by_hand, wait_for_watchers
from support.protocol import World
from support.texts import texts
from support.waiting import AT_LAST, until

from tracing_2pc.core import failpoints
from tracing_2pc.core.errors import AbortedError, ContractError
from tracing_2pc.core.model import BranchId, TransactionId, TransactionRecord
from tracing_2pc.core.states import Decision, TransactionState
from tracing_2pc.protocol import deadline
from tracing_2pc.protocol.delivery import send_abort
from tracing_2pc.sinks.base import read_only

TEXTS = texts("component")

FIRST = TransactionId("orders", 0, 1)
SECOND = TransactionId("orders", 0, 2)


def opened(world: World, run: str = "run-1") -> TransactionRecord:
    begun = world.coordinator().open(0, run, "query")
    assert begun.replay is False
    return begun.record


def test_what_is_opened_and_closed_is_committed_everywhere(world):
    """Each step may be taken by another coordinator: all they know is in the log."""
    record = opened(world)
    assert record.id == FIRST
    world.coordinator().close(record, world.write(record))
    assert (world.in_doubt(), world.visible()) == (0, 4)
    assert world.state(FIRST) is TransactionState.COMMITTED
    again = world.coordinator().open(0, "run-2", "query")
    assert (again.record.id, again.replay) == (FIRST, True)
    assert world.visible() == 4


def test_what_fails_is_aborted_everywhere_and_opened_anew(world):
    """The abort is decided, then sent once; the next try is another attempt."""
    record = opened(world)
    receipts = world.write(record)
    world.coordinator().fail(record, OSError("disk full"), receipts)
    assert (world.in_doubt(), world.visible()) == (0, 0)
    assert world.state(FIRST) is TransactionState.ABORTED
    assert opened(world, "run-2").id == SECOND


@pytest.mark.parametrize(("kept", "missing"), [(3, "b"), (0, "a, b")])
def test_a_close_without_every_vote_aborts(world, kept, missing):
    """Nothing has to be called after it (rule 1); nor are no receipts no rows."""
    record = opened(world)
    with pytest.raises(ContractError, match=rf"^orders\.0\.1 .*{missing}"):
        world.coordinator().close(record, world.write(record)[:kept])
    assert (world.in_doubt(), world.visible()) == (0, 0)
    assert world.state(FIRST) is TransactionState.ABORTED


def test_an_empty_batch_is_committed_by_votes_read_only(world):
    """One receipt for each participant, about a branch that nobody was asked for."""
    record = opened(world)
    receipts = read_only(BranchId(0, 0), record.participants)
    world.coordinator().close(record, receipts)
    assert (world.in_doubt(), world.visible()) == (0, 0)
    assert world.state(FIRST) is TransactionState.COMMITTED


@pytest.mark.parametrize("decision", [None, Decision.COMMIT])
def test_no_abort_is_sent_that_is_not_decided(world, decision):
    """After the decision nobody aborts, and before it the log is asked."""
    record = dataclasses.replace(opened(world), decision=decision)
    world.write(record)
    with pytest.raises(ContractError, match=TEXTS["not decided"]):
        send_abort(world.a, record)
    assert (world.a.heard, world.in_doubt()) == ([], 4)


def test_what_is_not_decided_is_not_delivered(world):
    """Delivery of an active transaction tells the participants nothing."""
    record = opened(world)
    world.write(record)
    assert world.delivery().send_once(record).keys() == {"a", "b"}
    assert (world.a.heard, world.in_doubt()) == ([], 4)


def test_out_of_time_the_abort_is_asked_for_first(world, monkeypatch):
    """A log that hangs when it is read delays neither the abort nor the tasks' end."""
    over = by_hand(monkeypatch)
    real, early = world.log.read, []

    def read(id_: TransactionId) -> Any:
        if id_.attempt < FIRST.attempt and not world.cancelled:
            early.append(id_)
        return real(id_)

    def slow(record: TransactionRecord) -> Any:
        world.log.read = read  # type: ignore[method-assign]
        receipts = world.write(record)
        over.set()
        until(lambda: world.cancelled)
        world.log.read = real  # type: ignore[method-assign]
        return receipts

    with pytest.raises(AbortedError):
        world.run_batch(0, write=slow)
    assert early == []


def test_a_failed_batch_has_no_deadline_any_more(world, monkeypatch):
    """An abort that is slow to send is not taken for tasks that are slow."""
    over, real = by_hand(monkeypatch), world.a.abort

    def abort(record: TransactionRecord) -> None:
        over.set()
        wait_for_watchers()
        real(record)

    world.a.abort = abort  # type: ignore[method-assign]

    def write(record: TransactionRecord) -> Any:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        world.run_batch(0, write=write)
    assert world.cancelled == []
    assert world.state(FIRST) is TransactionState.ABORTED


def test_a_deadline_that_cannot_be_watched_aborts(world, monkeypatch):
    """As any failure before the decision: nothing is left for the next start."""

    start = threading.Thread.start

    def start_others(thread: threading.Thread) -> None:
        if thread.name == deadline.THREAD:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_others)
    with pytest.raises(RuntimeError, match="new thread"):
        world.run_batch(0)
    assert world.state(FIRST) is TransactionState.ABORTED


def test_an_armed_failpoint_changes_nothing_but_its_moment(
    world, monkeypatch, tmp_path
):
    """Commits are sent at once as ever, and it fires when so many have answered.

    Answers that come together go on record together, with the end of the transaction.
    """
    world.settings = dataclasses.replace(world.settings, on_pending="fail")
    both = threading.Barrier(2, timeout=AT_LAST)
    for participant in (world.a, world.b):
        monkeypatch.setattr(participant, "commit", lambda record: both.wait())
    seen: list[int] = []

    def killpg(*_: object) -> None:
        record = world.log.read(FIRST)
        assert record is not None
        seen.append(len(record.acknowledged))

    monkeypatch.setattr(os, "killpg", killpg)
    monkeypatch.setenv("TPC_FAILPOINT_FILE", str(tmp_path / "fired"))
    monkeypatch.setenv("TPC_FAILPOINT", "delivery.between_commits:2")
    failpoints.arm()
    try:
        world.run_batch(0)
    finally:
        monkeypatch.delenv("TPC_FAILPOINT")
        failpoints.arm()
    assert seen == [0]
