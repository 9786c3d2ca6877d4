"""A large batch as one branch: `python -m bench.writer LOG URL TOKEN ROWS`.

Prints the most memory that this process has had, in KiB.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.driver import apply, coordinator
from bench.records import orders
from tracing_2pc import ParticipantSink
from tracing_2pc.core.model import BranchContext, BranchId, Receipt, TransactionRecord
from tracing_2pc.sinks import write_branch
from tracing_2pc.store import open_log

AT_ONCE: Final = 10_000
"""Rows of an Arrow batch, as Spark hands them to a Python worker."""


def main(log_url: str, url: str, token: str, rows: str) -> None:
    """Write the batch."""
    sink = ParticipantSink({"ledger": url}, token=token)

    def write(record: TransactionRecord) -> Sequence[Receipt]:
        context = BranchContext(
            record.id, BranchId(0, 0), record.participants, record.carrier
        )
        starts = range(0, int(rows), AT_ONCE)
        batches = (orders(min(AT_ONCE, int(rows) - n), n) for n in starts)
        return write_branch(sink, context, batches)

    log = open_log(log_url)
    apply(coordinator(log, sink.participants), 0, write)
    log.close()
    print(peak("self"))


def peak(process: str) -> int:
    """Return the most memory that a process has had, in KiB, as Linux counts it."""
    status = Path("/proc", process, "status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
