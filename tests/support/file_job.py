"""A job without Spark that writes to a folder, as a program too: it may be killed.

python -m support.file_job FOLDER FIRST LAST [fail]
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.protocol import FakeClock
from tracing_2pc import FileSink
from tracing_2pc.core.errors import CommitPendingError
from tracing_2pc.core.model import (
    BranchContext,
    BranchId,
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.settings import Settings
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.sinks.base import (
    before_tasks,
    finish_recovery,
    participants_of,
    write_branch,
)
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

PARTITIONS = 2
REGIONS = ("north", "south")
T = TransactionId("orders", 0, 1)
ROWS = pa.RecordBatch.from_pydict({"id": [0, 1], "region": list(REGIONS)})


@dataclasses.dataclass
class FileJob:
    """One application that writes to a sink, and its log."""

    sink: Any
    log: SqlDecisionLog
    application: str = "orders"
    run: str = "run"

    def apply(
        self,
        batch: int,
        partitions: Iterable[pa.RecordBatch] | None = None,
        *,
        fails: bool = False,
    ) -> bool:
        """Apply a batch; `fails` when all has voted. False: it was a replay."""

        def write(record: TransactionRecord) -> list[Receipt]:
            given = rows_of(batch) if partitions is None else [*partitions]
            before_tasks(self.sink, lambda: given[0].schema)
            receipts = [
                receipt
                for number, rows in enumerate(given)
                for receipt in self.prepare(record.id, f"{number}.{number}", rows)
            ]
            if fails:
                raise RuntimeError("a user's function has raised")
            return receipts

        return self.coordinator().apply(
            batch,
            run=self.run,
            query=f"query of {self.application}",
            write=write,
            cancel=lambda _: None,
        )

    def prepare(
        self, transaction: Any, branch: str, rows: pa.RecordBatch
    ) -> tuple[Receipt, ...]:
        """Run the task's half of the protocol for one branch."""
        names = tuple(participants_of(self.sink))
        context = BranchContext(transaction, BranchId.parse(branch), names, {})
        return write_branch(self.sink, context, [rows])

    def coordinator(self) -> Coordinator:
        """Return a coordinator that gives up after two tries."""
        clock, tracing = FakeClock(), OpenTelemetryTracing()
        retry = RetryPolicy(clock, inline_tries=2)
        participants = participants_of(self.sink)
        delivery = Delivery(self.log, participants, tracing=tracing, retry=retry)
        settings = Settings(on_pending="fail")
        names = tuple(participants)
        about = tracing, clock, settings, retry, frozenset(participants)
        recovered = partial(finish_recovery, participants, self.log, self.application)
        return Coordinator(
            self.application, names, self.log, delivery, *about, recovered=recovered
        )


def rows_of(batch: int) -> list[pa.RecordBatch]:
    """Return a batch: two partitions, each with a row for each region."""
    return [
        pa.RecordBatch.from_pydict({"id": [first, first + 1], "region": list(REGIONS)})
        for first in range(batch * 4, batch * 4 + 4, 2)
    ]


def ids_of(*batches: int) -> list[int]:
    """Return the ids of the rows of batches."""
    return [n for batch in batches for n in range(batch * 4, batch * 4 + 4)]


def write(sink: Any, *batches: Any, of: TransactionId = T, branch: str = "0.0") -> Any:
    """Write a branch, as a task does, without its pre_commit; return its handle."""
    handle = sink.begin(BranchContext(of, BranchId.parse(branch), (sink.name,), {}))
    try:
        for batch in batches or [ROWS]:
            sink.invoke_batch(handle, batch)
    except BaseException:
        sink.abort(handle)
        raise
    return handle


def prepared(sink: Any, *batches: Any, **about: Any) -> Any:
    """Prepare a branch; return its handle."""
    handle = write(sink, *batches, **about)
    try:
        sink.pre_commit(handle)
    except BaseException:
        sink.abort(handle)
        raise
    return handle


def received(handle: Any) -> Any:
    """Return a handle as a receipt has it: without what its task has open."""
    return type(handle)(**dataclasses.asdict(handle))


def flushed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Return what is flushed from now on: paths in a folder, of branches cut short."""
    flush, steps = os.fsync, list[str]()

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        steps.append(str(path.relative_to(folder)).partition(".0.0.")[0])
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return steps


def transaction_of(name: str) -> str:
    """Return whose a file is that is prepared, by its name: sink and transaction."""
    return ".".join(name.split(".")[:4])


class Away:
    """Mixed into a sink: its server is away, for as long as nobody says otherwise."""

    away = True

    def commit_transaction(self, transaction_id: str, handles: Any) -> None:
        if self.away:
            raise OSError("the server is away")
        super().commit_transaction(transaction_id, handles)  # type: ignore[misc]


def give_up(orders: FileJob, name: str) -> None:
    """End by a person's word what a sink could not commit, and go on."""
    with pytest.raises(CommitPendingError):
        orders.apply(0)
    orders.log.give_up(T, name, who="somebody", why="it does not come back")
    orders.log.finish(T)
    orders.sink.away = False
    orders.apply(1)


def main(folder: Path, first: int, last: int, *, fails: bool = False) -> None:
    """Apply some batches; the last one may fail when all has voted."""
    sink = FileSink(folder / "out", partition_by="region")
    sink.check_job("orders")
    with contextlib.closing(open_log(f"sqlite:///{folder}/log.db")) as log:
        for batch in range(first, last + 1):
            FileJob(sink, log).apply(batch, fails=fails and batch == last)


if __name__ == "__main__":
    folder, first, last, *fails = sys.argv[1:]
    main(Path(folder), int(first), int(last), fails=bool(fails))
