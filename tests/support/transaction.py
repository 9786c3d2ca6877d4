"""A decision log and two services in this process, on SQLite, asked over HTTP."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.served import application
from support.spark import serving
from support.waiting import PATIENT
from tracing_2pc import ParticipantSink
from tracing_2pc.core.model import BranchContext, BranchId, Receipt, TransactionRecord
from tracing_2pc.participant import TaggedRows
from tracing_2pc.store import SqlDecisionLog, open_log

if TYPE_CHECKING:
    import pyarrow as pa

_TASKS = itertools.count()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqlDecisionLog]:
    with contextlib.closing(open_log(f"sqlite:///{tmp_path / 'log.db'}")) as log:
        yield log


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[ParticipantSink]:
    """Two services, each with a database of its own."""
    with contextlib.ExitStack() as stack:
        urls = {}
        for name in ("ledger", "notifier"):
            resource = TaggedRows(f"sqlite:///{tmp_path / name}.db", "numbers")
            stack.callback(resource.close)
            urls[name] = stack.enter_context(serving(application(resource)))
        yield ParticipantSink(urls, token=None, timeout=PATIENT)


def traced_tasks(
    sink: ParticipantSink,
    partitions: Sequence[pa.RecordBatch],
    links: str | None = None,
) -> Callable[[TransactionRecord], list[Receipt]]:
    """Return what runs one of Spark's tasks for each partition; receipts travel."""
    from tracing_2pc.spark.links import write_linked_branch

    def write(record: TransactionRecord) -> list[Receipt]:
        receipts: list[Receipt] = []
        for n, rows in enumerate(partitions):
            names = tuple(sink.participants)
            branch = BranchId(n, next(_TASKS))
            context = BranchContext(record.id, branch, names, record.carrier)
            receipts += write_linked_branch(sink, context, [rows], links)
        return [Receipt.from_json(receipt.to_json()) for receipt in receipts]

    return write
