"""Flushes of the decision log: begin and decide; nothing else waits for the disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.counts.checkpoints import checkpoints
from bench.counts.count import Count, Expected
from bench.driver import apply, coordinator
from bench.flushes import Measured, on_postgresql, on_sqlite
from bench.postgresql import postgresql
from tracing_2pc.model import BranchId, Receipt, TransactionRecord
from tracing_2pc.states import Vote
from tracing_2pc.store import open_log

TRANSACTIONS: Final = 10
FLUSHES: Final = Expected(
    2,
    "begin is on record before anybody is asked, and decide before anybody is told; "
    "acknowledgements and finish can be asked for again",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Obedient:
    """A participant that acknowledges whatever it is told."""

    name: str

    def commit(self, record: TransactionRecord) -> None:
        """Do nothing."""

    def abort(self, record: TransactionRecord) -> None:
        """Do nothing."""


def counts(folder: Path) -> Iterator[Count]:
    """Count the flushes of a coordinator whose participants flush elsewhere."""
    with postgresql() as new_database:
        yield _judge("PostgreSQL", on_postgresql(transactions, new_database()))
    found = on_sqlite(transactions, folder)
    yield _judge("SQLite", found)
    yield checkpoints("coordinator", found)


def _judge(database: str, found: Mapping[str, int]) -> Count:
    name = f"coordinator, {database}: flushes of {TRANSACTIONS} transactions"
    return FLUSHES.count(name, found["transactions"], TRANSACTIONS)


def transactions(url: str, measured: Measured) -> None:
    """Apply batches, counting from the second: the first one makes the tables."""
    log = open_log(url)
    driver = coordinator(log, {name: Obedient(name) for name in ("a", "b")})
    apply(driver, 0, _vote)
    with measured("transactions", log.close):
        for batch in range(1, 1 + TRANSACTIONS):
            apply(driver, batch, _vote)
    log.close()


def _vote(record: TransactionRecord) -> Sequence[Receipt]:
    votes = dict.fromkeys(record.participants, Vote.COMMIT)
    return [Receipt(BranchId(n, n), 3, "digest", votes) for n in range(2)]
