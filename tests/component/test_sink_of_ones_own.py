"""A sink of one's own under the coordinator: what it leaves, and what it raises."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.protocol import FakeClock

from tracing_2pc import traced_sink
from tracing_2pc.core.errors import (
    CommitPendingError,
    ContractError,
    HeuristicError,
    ParticipantRefusedError,
)
from tracing_2pc.core.model import BranchContext, BranchId, Receipt, TransactionRecord
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import TransactionState
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.sinks.base import check_leftovers, participants_of, write_branch
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.tracing.transaction import OpenTelemetryTracing


class Partner:
    """A sink whose partner keeps what is prepared and what counts, by id."""

    def __init__(self) -> None:
        self.prepared: set[str] = set()
        self.committed: set[str] = set()

    def begin(self, context: BranchContext) -> Any:
        return {"id": f"{context.transaction_id}.{context.branch}"}

    def invoke(self, handle: Any, record: Any) -> None: ...

    def pre_commit(self, handle: Any) -> None:
        self.prepared.add(handle["id"])

    def commit(self, handle: Any) -> None:
        if handle["id"] not in self.committed:
            self.prepared.remove(handle["id"])
            self.committed.add(handle["id"])

    def abort(self, handle: Any) -> None:
        self.prepared.discard(handle["id"])


class Finding(Partner):
    """It finds what is its own of a transaction, by the prefix of its ids."""

    def abort_transaction(self, transaction_id: str, keep: list[Any]) -> None:
        kept = {handle["id"] for handle in keep}
        prefix = f"{transaction_id}."
        rest = {i for i in self.prepared if i.startswith(prefix)} - kept
        self.prepared -= rest


class Job:
    """One application that writes to the sink, and its log."""

    def __init__(self, sink: Any, log: SqlDecisionLog) -> None:
        self.sink = sink
        self.log = log

    def run(self, *branches: str, left: Iterable[str] = ()) -> None:
        """Apply batch 0 in these branches; those `left` are of killed tasks."""
        clock, tracing = FakeClock(), OpenTelemetryTracing()
        retry = RetryPolicy(clock, inline_tries=2)
        participants = participants_of(self.sink)
        delivery = Delivery(self.log, participants, tracing=tracing, retry=retry)
        coordinator = Coordinator(
            "orders", tuple(participants), self.log, delivery, tracing, clock,
            Settings(on_pending="fail"), retry,
        )  # fmt: skip

        def write(record: TransactionRecord) -> list[Receipt]:
            for branch in left:
                self.prepare(record, branch)
            return [r for branch in branches for r in self.prepare(record, branch)]

        coordinator.apply(
            0, run="run", query="query", write=write, cancel=lambda _: None
        )

    def prepare(self, record: TransactionRecord, branch: str) -> tuple[Receipt, ...]:
        import pyarrow as pa

        names = tuple(participants_of(self.sink))
        context = BranchContext(record.id, BranchId.parse(branch), names, {})
        rows = pa.RecordBatch.from_pydict({"n": [1]})
        return write_branch(self.sink, context, [rows])

    @property
    def record(self) -> TransactionRecord:
        (record,) = self.log.unfinished("orders")
        return record


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[[Any], Job]]:
    with contextlib.closing(open_log(f"sqlite:///{tmp_path}/log.db")) as log:
        yield lambda sink: Job(sink, log)


@pytest.mark.parametrize("traced", [False, True], ids=["plain", "traced"])
def test_a_commit_drops_what_was_not_chosen(
    job: Callable[[Any], Job], *, traced: bool
) -> None:
    """The twin of a killed task does not stay prepared when its retry is committed."""
    sink = (traced_sink(Finding) if traced else Finding)()
    job(sink).run("0.7", "1.2", left=["0.1"])
    assert sink.committed == {"orders.0.1.0.7", "orders.0.1.1.2"}
    assert sink.prepared == set()


def test_a_commit_is_not_over_before_the_rest_is_dropped(
    job: Callable[[Any], Job],
) -> None:
    """If dropping raises, it is tried again; until then the commit is pending."""

    class Busy(Finding):
        busy = 1

        def abort_transaction(self, transaction_id: str, keep: list[Any]) -> None:
            if self.busy:
                self.busy -= 1
                raise TimeoutError("busy")
            super().abort_transaction(transaction_id, keep)

    sink = Busy()
    job(sink).run("0.7", left=["0.1"])
    assert (sink.committed, sink.prepared) == ({"orders.0.1.0.7"}, set())


def test_an_abort_keeps_nothing(job: Callable[[Any], Job]) -> None:
    """No handle is chosen: all that the transaction prepared is dropped."""

    class Full(Finding):
        def pre_commit(self, handle: Any) -> None:
            if handle["id"].endswith(".1.2"):
                raise OSError("disk full")
            super().pre_commit(handle)

    sink = Full()
    with pytest.raises(OSError, match="disk full"):
        job(sink).run("0.7", "1.2", left=["0.1"])
    assert (sink.committed, sink.prepared) == (set(), set())


def test_who_cannot_find_its_leftovers_is_told_so_at_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By name, once, before anything runs; who can is told nothing."""
    check_leftovers(Finding())
    assert caplog.messages == []
    check_leftovers(Partner())
    (message,) = caplog.messages
    assert "Partner has no abort_transaction(transaction_id, keep)" in message


def test_an_abort_transaction_that_takes_no_handles_is_refused() -> None:
    """It could not be called after a commit: it would drop what is committed, too."""

    class Older(Partner):
        def abort_transaction(self, transaction_id: str) -> None: ...

    with pytest.raises(ContractError, match=r"Older\.abort_transaction must take"):
        check_leftovers(Older())


class Broken(Finding):
    """One branch's commit raises."""

    error: Exception

    def commit(self, handle: Any) -> None:
        if handle["id"].endswith(".1.2"):
            raise self.error from KeyError("the cause of it")
        super().commit(handle)


def test_a_commit_that_raises_keeps_no_other_branch_from_being_tried(
    job: Callable[[Any], Job], caplog: pytest.LogCaptureFixture
) -> None:
    """What it raised is in the exception and the record; with traceback, in the log.

    Nothing is dropped before all that is chosen is committed.
    """
    sink = Broken()
    sink.error = ValueError("no such account: 17")
    world = job(sink)
    with pytest.raises(CommitPendingError, match="ValueError: no such account: 17"):
        world.run("0.7", "1.2", "2.3", left=["0.1"])
    assert sink.committed == {"orders.0.1.0.7", "orders.0.1.2.3"}
    assert sink.prepared == {"orders.0.1.1.2", "orders.0.1.0.1"}
    assert world.record.state is TransactionState.COMMITTING
    (told,) = world.log.deliveries(world.record.id).values()
    assert "ValueError: no such account: 17" in str(told.error)
    record = next(r for r in caplog.records if r.exc_info)
    assert "branch" in record.getMessage()
    text = logging.Formatter().format(record)
    assert "the cause of it" in text
    assert "in commit" in text


def test_a_sink_says_refused(job: Callable[[Any], Job]) -> None:
    """A definite no is no "not now": the transaction is quarantined, for a person."""
    sink = Broken()
    sink.error = ParticipantRefusedError("account 17 is closed for good")
    world = job(sink)
    with pytest.raises(HeuristicError, match="account 17 is closed for good"):
        world.run("0.7", "1.2", "2.3")
    assert world.record.state is TransactionState.QUARANTINED
    assert sink.committed == {"orders.0.1.0.7", "orders.0.1.2.3"}
    with pytest.raises(HeuristicError, match="Broken: account 17 is closed for good"):
        world.run("0.8")


def test_a_refusal_counts_more_than_a_not_now(job: Callable[[Any], Job]) -> None:
    """One branch is not ready, another one refused: a person must look."""

    class Both(Broken):
        def commit(self, handle: Any) -> None:
            if handle["id"].endswith(".0.7"):
                raise TimeoutError("not now")
            super().commit(handle)

    sink = Both()
    sink.error = ParticipantRefusedError("never")
    world = job(sink)
    with pytest.raises(HeuristicError, match="never"):
        world.run("0.7", "1.2")
    assert world.record.state is TransactionState.QUARANTINED
