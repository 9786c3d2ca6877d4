"""Flushes of a participant: each vote is durable, and so is what became of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from bench.counts.checkpoints import checkpoints
from bench.counts.count import Count
from bench.driver import APPLICATION, tasks
from bench.flushes import Measured, on_postgresql, on_sqlite
from bench.postgresql import postgresql
from bench.records import numbers
from bench.served import application, serving
from tracing_2pc import ParticipantSink
from tracing_2pc.core.model import TransactionId, TransactionRecord
from tracing_2pc.core.states import Decision, TransactionState
from tracing_2pc.participant import PreparedTransactions, TaggedRows
from tracing_2pc.participant.engine import ParticipantEngine

BRANCHES: Final = (0, 1, 3, 8)
"""Branches of a transaction. With none the participant is only told to seal."""


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """Flushes of a transaction of K branches: `branch * K + decision`.

    Args:
        branch: for each branch.
        decision: for the decision.
        seal: for the decision where there was no branch.
        why: what is flushed when.
    """

    branch: int
    decision: int
    seal: int
    why: str

    def expected(self, branches: int) -> int:
        """Return what a transaction of so many branches costs."""
        return self.branch * branches + self.decision if branches else self.seal


TAGGED_ROWS: Final = Costs(
    branch=1,
    decision=1,
    seal=1,
    why="each prepare is durable before its vote is answered, and one local "
    "transaction commits all branches and seals",
)
PREPARED_TRANSACTIONS: Final = Costs(
    branch=2,
    decision=0,
    seal=1,
    why="PREPARE TRANSACTION flushes, COMMIT PREPARED flushes, and the seal, written "
    "before it, goes to disk with it",
)


def counts(folder: Path) -> Iterator[Count]:
    """Count the flushes of each resource on each database that it can use."""
    with postgresql() as new_database:
        flushes = on_postgresql(tagged_rows, new_database())
        yield from _judge("TaggedRows, PostgreSQL", TAGGED_ROWS, flushes)
        flushes = on_postgresql(prepared_transactions, new_database())
        yield from _judge("PreparedTransactions", PREPARED_TRANSACTIONS, flushes)
    flushes = on_sqlite(tagged_rows, folder)
    yield from _judge("TaggedRows, SQLite", TAGGED_ROWS, flushes)
    yield checkpoints("TaggedRows", flushes)


def _judge(what: str, costs: Costs, flushes: Mapping[str, int]) -> Iterator[Count]:
    for branches in BRANCHES:
        label = _label(branches)
        expected = costs.expected(branches)
        yield Count(f"{what}: flushes, {label}", expected, flushes[label], costs.why)


def _label(branches: int) -> str:
    return f"{branches} branch{'es' * (branches != 1)}"


def tagged_rows(url: str, measured: Measured) -> None:
    """Write to a view of committed rows."""
    _transactions(TaggedRows(url, "numbers"), measured)


def prepared_transactions(url: str, measured: Measured) -> None:
    """Write to a plain table of PostgreSQL."""
    _transactions(PreparedTransactions(url, "numbers"), measured)


def _transactions(resource: ParticipantEngine, measured: Measured) -> None:
    """Commit one transaction of each number of branches."""
    with serving(application(resource)) as address:
        sink = ParticipantSink({"counted": address}, token=None)
        _transaction(sink, batch=0, branches=1)  # makes the tables
        for batch, branches in enumerate(BRANCHES, 1):
            with measured(_label(branches), resource.close):
                _transaction(sink, batch, branches)
    resource.close()


def _transaction(sink: ParticipantSink, batch: int, branches: int) -> None:
    """Prepare and commit, with nobody's log: its flushes are counted elsewhere."""
    record = TransactionRecord(
        TransactionId(APPLICATION, batch, 1),
        run="run",
        state=TransactionState.COMMITTING,
        decision=Decision.COMMIT,
        participants=tuple(sink.participants),
        acknowledged=frozenset(),
        carrier={},
        started=0.0,
    )
    receipts = tuple(tasks(sink, [numbers(3)] * branches)(record))
    decided = dataclasses.replace(record, receipts=receipts)
    for participant in sink.participants.values():
        participant.commit(decided)
