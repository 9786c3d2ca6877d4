"""Flushes of the decision log: begin and decide; nothing else waits for the disk."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.counts.checkpoints import checkpoints
from bench.counts.count import Count, Expected
from bench.driver import apply, coordinator
from bench.empty import obedient
from bench.flushes import Measured, on_postgresql, on_sqlite
from bench.postgresql import postgresql
from tracing_2pc.core.model import BranchId, Receipt, TransactionRecord, branch_receipts
from tracing_2pc.core.states import Vote
from tracing_2pc.store import open_log

TRANSACTIONS: Final = 10
FLUSHES: Final = Expected(
    2,
    "begin is on record before anybody is asked, and decide before anybody is told; "
    "acknowledgements and finish can be asked for again, and what is forgotten, once "
    "transactions are older than keep_finished, is flushed by the next begin",
)


def counts(folder: Path) -> Iterator[Count]:
    """Count the flushes of a coordinator whose participants flush elsewhere."""
    with postgresql() as new_database:
        flushes = on_postgresql(transactions, new_database())
        yield from _judge("PostgreSQL", flushes)
    flushes = on_sqlite(transactions, folder)
    yield from _judge("SQLite", flushes)
    yield checkpoints("coordinator", flushes)


def _judge(database: str, flushes: Mapping[str, int]) -> Iterator[Count]:
    what = f"coordinator, {database}: flushes of {TRANSACTIONS} transactions"
    yield FLUSHES.count(what, flushes["young"], TRANSACTIONS)
    yield FLUSHES.count(f"{what}, old log", flushes["old"], TRANSACTIONS)


def transactions(url: str, measured: Measured) -> None:
    """Apply batches while nothing is old enough to be forgotten, and then more."""
    log = open_log(url)
    young = coordinator(log, obedient())
    forgetting = dataclasses.replace(young.settings, keep_finished=0.0)
    old = dataclasses.replace(young, settings=forgetting)
    batches = itertools.count()
    apply(young, next(batches), _vote)  # makes the tables
    for name, driver in (("young", young), ("old", old)):
        with measured(name, log.close):
            for batch in itertools.islice(batches, TRANSACTIONS):
                apply(driver, batch, _vote)
    log.close()


def _vote(record: TransactionRecord) -> Sequence[Receipt]:
    votes = dict.fromkeys(record.participants, Vote.COMMIT)
    return [
        receipt
        for n in range(2)
        for receipt in branch_receipts(BranchId(n, n), 3, "digest", votes)
    ]
