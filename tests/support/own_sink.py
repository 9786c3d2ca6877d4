"""A sink of one's own, its partner, and starts of a query that writes to it. No Spark.

Each start has a sink object of its own, as each process has: what it knows of the start
before is in the decision log, or at its partner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from tracing_2pc.core.model import (
    BranchContext,
    BranchId,
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import TransactionState
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.sinks.base import participants_of, write_branch
from tracing_2pc.sinks.job import Job
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.tracing.transaction import OpenTelemetryTracing


class Partner:
    """The other side, which outlives every process of the job."""

    def __init__(self) -> None:
        self.prepared: dict[str, list[int]] = {}
        self.visible: dict[str, list[int]] = {}
        self.calls: list[str] = []
        self.raises: dict[str, Exception] = {}

    @property
    def rows(self) -> list[int]:
        return sorted(row for rows in self.visible.values() for row in rows)

    def hear(self, method: str, about: str) -> None:
        call = f"{method} {about}"
        self.calls.append(call)
        for what in (call, method):
            if what in self.raises:
                raise self.raises[what]


class Base:
    """A sink with the five phases, and what finds its branches by transaction."""

    def __init__(self, partner: Partner) -> None:
        self.name = "partner"
        self.partner = partner

    def begin(self, context: BranchContext) -> Any:
        handle = {"id": f"{context.transaction_id}.{context.branch}", "rows": []}
        self.partner.hear("begin", handle["id"])
        return handle

    def invoke(self, handle: Any, record: Any) -> None:
        handle["rows"].append(record["n"])

    def pre_commit(self, handle: Any) -> None:
        self.partner.hear("pre_commit", handle["id"])
        self.partner.prepared[handle["id"]] = handle.pop("rows")

    def commit(self, handle: Any) -> None:
        self.partner.hear("commit", handle["id"])
        self._show(handle)

    def abort(self, handle: Any) -> None:
        self.partner.hear("abort", handle["id"])
        self.partner.prepared.pop(handle["id"], None)

    def abort_transaction(self, transaction_id: str, keep: list[Any]) -> None:
        self.partner.hear("abort_transaction", transaction_id)
        kept = {handle["id"] for handle in keep}
        for branch in set(self.partner.prepared) - kept:
            if branch.startswith(f"{transaction_id}."):
                del self.partner.prepared[branch]

    def _show(self, handle: Any) -> None:
        if handle["id"] not in self.partner.visible:
            rows = self.partner.prepared.pop(handle["id"])
            self.partner.visible[handle["id"]] = rows


class Sink(Base):
    """With the hooks of a recovery."""

    def recover_and_commit(self, handle: Any) -> None:
        self.partner.hear("recover_and_commit", handle["id"])
        self._show(handle)

    def finish_recovery(self, handled: list[Any]) -> None:
        ids = ", ".join(handle["id"] for handle in handled)
        self.partner.hear("finish_recovery", f"[{ids}]")


class World:
    """One application; each `start` is a process of its own."""

    def __init__(self, log: SqlDecisionLog) -> None:
        self.log = log
        self.partner = Partner()
        self.runs = 0
        self.kind: Callable[[Partner], Any] = Sink
        self.tries = 1
        self.left: list[BranchId] = []
        """Branches that killed tasks of each batch have prepared: nobody chose them."""

    def start(self) -> Run:
        self.runs += 1
        return Run(self, self.kind(self.partner), f"run-{self.runs}")

    def state(self, transaction: str) -> TransactionState:
        record = self.log.read(TransactionId.parse(transaction))
        assert record is not None
        return record.state


class Run:
    """One life of the query, with a sink object of its own."""

    def __init__(self, world: World, sink: Any, name: str) -> None:
        self.world = world
        self.sink = sink
        self.name = name

    @property
    def coordinator(self) -> Coordinator:
        settings = Settings(
            on_pending="fail", inline_tries=self.world.tries, backoff_base=0.001
        )
        job = Job(self.sink, "orders", settings)
        tracing = OpenTelemetryTracing()
        return job.coordinator(self.world.log, tracing, lambda: False)

    def open(self, batch: int) -> TransactionRecord:
        return self.coordinator.open(batch, self.name, "query").record

    def write(
        self, record: TransactionRecord, *partitions: Sequence[int]
    ) -> list[Receipt]:
        """Write each partition in a task of its own; they count from 0."""
        for branch in self.world.left:
            self._task(record, branch, [0])
        receipts: list[Receipt] = []
        for number, rows in enumerate(partitions):
            receipts += self._task(record, BranchId(number, number), rows)
        return receipts

    def _task(
        self, record: TransactionRecord, branch: BranchId, rows: Sequence[int]
    ) -> tuple[Receipt, ...]:
        context = BranchContext(
            record.id, branch, tuple(participants_of(self.sink)), {}
        )
        batch = pa.RecordBatch.from_pydict({"n": pa.array(rows, pa.int64())})
        return write_branch(self.sink, context, [batch])

    def batch(self, batch: int, *partitions: Sequence[int]) -> bool:
        """Run a batch to its end."""
        return self.coordinator.apply(
            batch,
            run=self.name,
            query="query",
            write=lambda record: self.write(record, *partitions),
            cancel=lambda _: None,
        )

    def killed_after_votes(self, batch: int, *partitions: Sequence[int]) -> None:
        """Prepare a batch; the process ends before anything is decided."""
        self.write(self.open(batch), *partitions)

    def killed_after_decision(self, batch: int, *partitions: Sequence[int]) -> None:
        """Decide commit; the process ends before the sink is told."""
        record = self.open(batch)
        self.coordinator.decide(record, self.write(record, *partitions))


def ends(partner: Partner) -> list[str]:
    """Return the calls of a second phase, and of a recovery."""
    first = ("begin", "pre_commit")
    return [call for call in partner.calls if call.split(" ", 1)[0] not in first]
