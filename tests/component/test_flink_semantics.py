"""What Flink's sinks rely on, asked of a sink of one's own. A real log."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest
from support.own_sink import Base, Partner, Sink, World, ends
from support.texts import texts

from tracing_2pc.core.errors import (
    CommitPendingError,
    ContractError,
    HeuristicError,
    ParticipantRefusedError,
)
from tracing_2pc.core.model import BranchContext, BranchId, TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.sinks.base import check_leftovers, participants_of, read_only

TEXTS = texts("sinks")


class Snake:
    """The names of Flink, spelled as Python does."""

    def __init__(self, partner: Partner) -> None:
        self.name = "partner"
        self.number = 0
        sink = Sink(partner)
        self.invoke, self.pre_commit = sink.invoke, sink.pre_commit
        self.commit, self.abort = sink.commit, sink.abort
        self.recover_and_commit = sink.recover_and_commit
        self.finish_recovering_context = sink.finish_recovery

    def begin_transaction(self) -> Any:
        self.number += 1
        return {"id": f"own-{self.number}", "rows": []}

    def recover_and_abort(self, transaction: Any) -> None:
        raise AssertionError("no handle is known")


class Camel:
    """The names of Flink as they are."""

    def __init__(self, partner: Partner) -> None:
        self.name = "partner"
        flink = Snake(partner)
        self.beginTransaction = flink.begin_transaction
        self.invoke = flink.invoke
        self.preCommit = flink.pre_commit
        self.commit = flink.commit
        self.abort = flink.abort
        self.recoverAndCommit = flink.recover_and_commit
        self.recoverAndAbort = flink.recover_and_abort
        self.finishRecoveringContext = flink.finish_recovering_context


@pytest.fixture
def world(log) -> World:
    return World(log)


# --- recovery ------------------------------------------------------------------------


def test_who_decides_commits_by_commit(world):
    """A working job never calls `recover_and_commit`; a start calls `finish_recovery`.

    The phases come in Flink's order, and the second batch is no start.
    """
    run = world.start()
    run.batch(0, [1])
    run.batch(1, [2])
    assert world.partner.calls == [
        "finish_recovery []",
        "begin orders.0.1.0.0",
        "pre_commit orders.0.1.0.0",
        "commit orders.0.1.0.0",
        "abort_transaction orders.0.1",
        "begin orders.1.1.0.0",
        "pre_commit orders.1.1.0.0",
        "commit orders.1.1.0.0",
        "abort_transaction orders.1.1",
    ]
    assert world.partner.rows == [1, 2]


def test_a_later_start_commits_by_recover_and_commit(world):
    """What a killed process had decided; the sink gets nothing but the handles."""
    world.start().killed_after_decision(0, [1], [2])
    world.partner.calls.clear()
    assert world.start().batch(0, [9]) is False
    assert world.partner.calls == [
        "recover_and_commit orders.0.1.0.0",
        "recover_and_commit orders.0.1.1.1",
        "abort_transaction orders.0.1",
        "finish_recovery [orders.0.1.0.0, orders.0.1.1.1]",
    ]
    assert (world.partner.rows, world.partner.prepared) == ([1, 2], {})


def test_a_later_try_of_who_decided_is_no_recovery(world):
    """The same delivery goes on: `commit` again, although it reads the log between."""
    world.tries = 2
    run = world.start()
    world.partner.raises["commit orders.0.1.1.1"] = TimeoutError("busy")
    with pytest.raises(CommitPendingError, match="busy"):
        run.batch(0, [1], [2])
    assert ends(world.partner)[1:] == [
        "commit orders.0.1.0.0",
        "commit orders.0.1.1.1",
        "commit orders.0.1.0.0",
        "commit orders.0.1.1.1",
    ]
    assert world.partner.rows == [1]


def test_a_recovery_that_is_repeated_stays_one(world):
    """Each try asks by the same hook, although the log is read between."""
    world.start().killed_after_decision(0, [1])
    world.partner.calls.clear()
    world.tries = 2
    world.partner.raises["recover_and_commit"] = TimeoutError("busy")
    with pytest.raises(CommitPendingError, match="busy"):
        world.start().batch(0)
    assert world.partner.calls == ["recover_and_commit orders.0.1.0.0"] * 2


def test_a_replay_of_what_is_finished_is_a_recovery(world):
    """Killed before Spark's own commit: the sink may have it already, and is asked."""
    world.start().batch(0, [1])
    world.partner.calls.clear()
    assert world.start().batch(0, [9]) is False
    assert world.partner.calls[0] == "recover_and_commit orders.0.1.0.0"
    assert world.partner.calls[-1] == "finish_recovery [orders.0.1.0.0]"
    assert world.partner.rows == [1]


def test_a_sink_without_hooks_recovers_by_commit(world):
    """As Flink's own defaults do."""
    world.kind = Base
    world.start().killed_after_decision(0, [1])
    world.start().batch(0)
    assert ends(world.partner) == [
        "commit orders.0.1.0.0",
        "abort_transaction orders.0.1",
    ]
    assert world.partner.rows == [1]


def test_commit_transaction_is_called_in_a_recovery_too(world):
    """It gives the partner the whole decision, so nothing takes its place."""

    class Whole(Sink):
        def commit_transaction(self, transaction_id: str, handles: list[Any]) -> None:
            self.partner.hear("commit_transaction", transaction_id)
            for handle in handles:
                self._show(handle)

    world.kind = Whole
    world.start().killed_after_decision(0, [1])
    world.start().batch(0)
    assert ends(world.partner)[1:] == [
        "commit_transaction orders.0.1",
        "finish_recovery [orders.0.1.0.0]",
    ]


def test_what_was_not_decided_is_aborted_by_its_transaction(world):
    """Flink knows the handle; here no record has it, and the sink finds the branches.

    Then the batch is written anew.
    """
    world.start().killed_after_votes(0, [1], [2])
    world.partner.calls.clear()
    world.start().batch(0, [3])
    assert world.partner.calls[:2] == [
        "abort_transaction orders.0.1",
        "finish_recovery []",
    ]
    assert (world.partner.rows, world.partner.prepared) == ([3], {})
    assert world.state("orders.0.1") is TransactionState.ABORTED


def test_who_relies_on_recover_and_abort_is_told_at_start(world, caplog):
    """It would never be called, and branches would stay prepared."""
    check_leftovers(Snake(world.partner))  # type: ignore[arg-type]
    (message,) = caplog.messages
    assert TEXTS["no abort_transaction"].format(sink="partner") in message
    assert TEXTS["recover_and_abort is not called"] in message


@pytest.mark.parametrize("kind", [Snake, Camel])
def test_a_sink_with_flinks_names_runs_as_it_is(world, kind):
    """No method has to be renamed; a begin without context is accepted."""
    world.kind = kind
    world.start().killed_after_decision(0, [1])
    run = world.start()
    assert run.batch(0) is False
    run.batch(1, [2])
    assert ends(world.partner) == [
        "finish_recovery []",
        "recover_and_commit own-1",
        "finish_recovery [own-1]",
        "commit own-1",
    ]


def test_what_a_query_keeps_for_ever_is_its_application(world):
    """Where Flink keeps a context: later starts find by it what is theirs.

    What a branch has drawn for itself comes back in its handle.
    """

    class Drawing(Sink):
        def begin(self, context: BranchContext) -> Any:
            self.partner.hear("session", context.transaction_id.application)
            return {**super().begin(context), "drawn": secrets.token_hex(4)}

        def pre_commit(self, handle: Any) -> None:
            super().pre_commit(handle)
            drawn.append(handle["drawn"])

        def recover_and_commit(self, handle: Any) -> None:
            super().recover_and_commit(handle)
            given.append(handle["drawn"])

        def abort_transaction(self, transaction_id: str, keep: list[Any]) -> None:
            application = TransactionId.parse(transaction_id).application
            self.partner.hear("session", application)
            super().abort_transaction(transaction_id, keep)

    drawn: list[str] = []
    given: list[str] = []
    world.kind = Drawing
    world.start().killed_after_votes(0, [1])
    world.start().killed_after_decision(0, [2])
    world.start().batch(0)
    sessions = [call for call in world.partner.calls if call.startswith("session")]
    assert sessions == ["session orders"] * 4
    assert given == drawn[1:]
    assert (world.partner.rows, world.partner.prepared) == ([2], {})


# --- what a start finds --------------------------------------------------------------


def test_an_empty_batch_has_nothing_to_recover(world):
    """A transaction without a branch is finished without a handle."""
    run = world.start()
    record = run.open(0)
    run.coordinator.decide(record, read_only(BranchId(0, 0), record.participants))
    world.partner.calls.clear()
    world.start().batch(0)
    assert world.partner.calls == ["abort_transaction orders.0.1", "finish_recovery []"]


def test_several_transactions_are_recovered_oldest_first(world):
    """An attempt that was aborted, and the commit after it: in the order they began."""
    run = world.start()
    world.partner.raises["abort_transaction"] = TimeoutError("away")
    run.coordinator.fail(run.open(0), OSError("killed"))
    run.killed_after_decision(0, [1])
    world.partner.raises.clear()
    world.partner.calls.clear()
    world.start().batch(0)
    assert world.partner.calls == [
        "abort_transaction orders.0.1",
        "recover_and_commit orders.0.2.0.0",
        "abort_transaction orders.0.2",
        "finish_recovery [orders.0.2.0.0]",
    ]


def test_equal_handles_of_two_branches(world):
    """A sink that names no branch is called for each of them: commit is idempotent."""

    class Same(Sink):
        def begin(self, context: BranchContext) -> Any:
            return {"id": str(context.transaction_id), "rows": []}

    world.kind = Same
    world.start().killed_after_decision(0, [1], [2])
    world.start().batch(0)
    calls = [c for c in world.partner.calls if c.startswith("recover_and_commit")]
    assert calls == ["recover_and_commit orders.0.1"] * 2


def test_a_handle_is_at_each_try_what_was_voted(world):
    """What a commit that failed has changed in it is not kept."""

    class Changing(Sink):
        def commit(self, handle: Any) -> None:
            self.partner.hear("commit", handle["id"])
            handle["id"] = "changed"
            raise TimeoutError("busy")

    world.kind = Changing
    world.tries = 2
    with pytest.raises(CommitPendingError, match="busy"):
        world.start().batch(0, [1])
    world.start().batch(0)
    assert ends(world.partner)[1:4] == [
        "commit orders.0.1.0.0",
        "commit orders.0.1.0.0",
        "recover_and_commit orders.0.1.0.0",
    ]


# --- failures ------------------------------------------------------------------------


def test_every_branch_is_recovered_whatever_the_first_raises(world):
    """The error comes last, and the next start tries again, until it succeeds."""
    world.start().killed_after_decision(0, [1], [2], [3])
    world.partner.raises["recover_and_commit orders.0.1.0.0"] = TimeoutError("busy")
    with pytest.raises(CommitPendingError, match="TimeoutError: busy"):
        world.start().batch(0)
    assert world.partner.rows == [2, 3]
    assert "finish_recovery" not in world.partner.calls[-1]
    world.partner.raises.clear()
    world.partner.calls.clear()
    world.start().batch(0)
    assert world.partner.rows == [1, 2, 3]
    assert world.partner.calls[-1].count("orders.0.1.") == 3


def test_a_refused_abort_does_not_hold_up_a_commit(world):
    """Every transaction is tried; the first error is raised when all have been."""
    run = world.start()
    world.partner.raises["abort_transaction"] = TimeoutError("away")
    run.coordinator.fail(run.open(0), OSError("killed"))
    run.killed_after_decision(0, [1])
    world.partner.raises = {
        "abort_transaction orders.0.1": ParticipantRefusedError("it is committed here")
    }
    with pytest.raises(HeuristicError, match=r"orders\.0\.1 .*it is committed here"):
        world.start().batch(0)
    assert world.partner.rows == [1]
    assert world.state("orders.0.1") is TransactionState.QUARANTINED
    assert world.state("orders.0.2") is TransactionState.COMMITTED


@pytest.mark.parametrize("phase", ["begin", "pre_commit"])
def test_a_failure_before_the_decision_leaves_nothing(world, phase):
    """The attempt is aborted, also at the branches that were prepared already: of tasks
    that were killed, too."""
    world.left = [BranchId(0, 9)]
    run = world.start()
    world.partner.raises[f"{phase} orders.0.1.1.1"] = OSError("disk full")
    with pytest.raises(OSError, match="disk full"):
        run.batch(0, [1], [2])
    assert (world.partner.prepared, world.partner.visible) == ({}, {})
    assert world.state("orders.0.1") is TransactionState.ABORTED
    world.partner.raises.clear()
    world.start().batch(0, [1], [2])
    assert world.partner.rows == [1, 2]


def test_an_open_transaction_is_aborted_when_the_query_ends(world):
    """Flink's close: its branch is dropped by its task, and the attempt by the log."""

    class Stopped(BaseException):
        """How a task or a driver is interrupted."""

    class Stopping(Sink):
        def invoke(self, handle: Any, record: Any) -> None:
            raise Stopped

    world.kind = Stopping
    with pytest.raises(Stopped):
        world.start().batch(0, [1])
    assert ends(world.partner)[1:] == [
        "abort orders.0.1.0.0",
        "abort_transaction orders.0.1",
    ]
    assert world.state("orders.0.1") is TransactionState.ABORTED


def test_a_failure_of_finish_recovery_writes_nothing(world, caplog):
    """The attempt is aborted, the query ends, and the next start calls it again."""
    world.partner.raises["finish_recovery"] = OSError("no such folder")
    with pytest.raises(OSError, match="no such folder"):
        world.start().batch(0, [1])
    assert "begin" not in " ".join(world.partner.calls)
    assert world.state("orders.0.1") is TransactionState.ABORTED
    assert "sink raised: method=partner.finish_recovery" in caplog.messages
    world.partner.raises.clear()
    world.start().batch(0, [1])
    assert world.partner.rows == [1]


def test_a_failure_of_finish_recovery_leaves_a_replay_decided(world):
    """What was committed stays so; the batch is skipped by the next start."""
    world.start().killed_after_decision(0, [1])
    world.partner.raises["finish_recovery"] = OSError("no such folder")
    with pytest.raises(OSError, match="no such folder"):
        world.start().batch(0)
    assert world.partner.rows == [1]
    world.partner.raises.clear()
    assert world.start().batch(0) is False


# --- async ---------------------------------------------------------------------------


def test_an_async_phase_is_refused_without_the_decorator(world):
    """Its commit would be called, never awaited, and taken for done."""

    class Later(Base):
        async def commit(self, handle: Any) -> None:  # type: ignore[override]
            await asyncio.sleep(0)

    with pytest.raises(ContractError, match=TEXTS["async phase"]):
        participants_of(Later(world.partner))
