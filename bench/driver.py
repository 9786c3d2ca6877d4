"""A coordinator without Spark: its tasks run one after another, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.core.model import BranchContext, BranchId, Receipt, TransactionRecord
from tracing_2pc.core.ports import DecisionLog, Participant, SystemClock
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.sinks import write_branch
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

if TYPE_CHECKING:
    import pyarrow as pa

Write = Callable[[TransactionRecord], Sequence[Receipt]]

APPLICATION = "bench"


def coordinator(
    log: DecisionLog,
    participants: Mapping[str, Participant],
    application: str = APPLICATION,
) -> Coordinator:
    """Return one that is put together as the callback of `foreachBatch` does it.

    It gives up after a few tries: a count that waits for ever says nothing.
    """
    settings = Settings(on_pending="fail", inline_tries=3)
    clock, tracing = SystemClock(), OpenTelemetryTracing()
    retry = RetryPolicy(clock, inline_tries=settings.inline_tries)
    return Coordinator(
        application,
        tuple(participants),
        log,
        Delivery(log, participants, tracing=tracing, retry=retry),
        tracing,
        clock,
        settings,
        retry,
    )


def apply(driver: Coordinator, batch: int, write: Write, query: str = "query") -> None:
    """Apply one batch, as one life of one query; each application has its own."""
    driver.apply(batch, run="run", query=query, write=write, cancel=lambda _: None)


def tasks(sink: ParticipantSink, partitions: Sequence[pa.RecordBatch]) -> Write:
    """Return what writes a batch of these partitions, each by a task of its own."""

    def write(record: TransactionRecord) -> list[Receipt]:
        receipts: list[Receipt] = []
        for partition, records in enumerate(partitions):
            branch = BranchId(partition, partition)
            context = BranchContext(
                record.id, branch, record.participants, record.carrier
            )
            receipts += write_branch(sink, context, [records])
        return receipts

    return write
