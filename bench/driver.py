"""A coordinator without Spark: its tasks run one after another, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.interfaces import DecisionLog, Participant, SystemClock
from tracing_2pc.model import BranchContext, BranchId, Receipt, TransactionRecord
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.patience import Patience
from tracing_2pc.sinks import write_branch
from tracing_2pc.telemetry.transaction import OpenTelemetryTracing

if TYPE_CHECKING:
    import pyarrow as pa

Write = Callable[[TransactionRecord], Sequence[Receipt]]

APPLICATION = "bench"


def coordinator(
    log: DecisionLog, participants: Mapping[str, Participant]
) -> Coordinator:
    """Return one that is put together as the callback of `foreachBatch` does it.

    It gives up after a few tries: a count that waits for ever says nothing.
    """
    settings = Settings(on_pending="fail", inline_tries=3)
    clock, tracing = SystemClock(), OpenTelemetryTracing()
    patience = Patience(clock, inline_tries=settings.inline_tries)
    return Coordinator(
        APPLICATION,
        tuple(participants),
        log,
        Delivery(log, participants, tracing=tracing, patience=patience),
        tracing,
        clock,
        settings,
        patience,
    )


def apply(driver: Coordinator, batch: int, write: Write) -> None:
    """Apply one batch, as one life of one query."""
    driver.apply(batch, run="run", query="query", write=write, cancel=lambda _: None)


def tasks(sink: ParticipantSink, partitions: Sequence[pa.RecordBatch]) -> Write:
    """Return what writes a batch of these partitions, each by a task of its own."""

    def write(record: TransactionRecord) -> list[Receipt]:
        return [
            write_branch(
                sink,
                BranchContext(
                    record.id,
                    BranchId(partition, partition),
                    record.participants,
                    record.carrier,
                ),
                [records],
            )
            for partition, records in enumerate(partitions)
        ]

    return write
