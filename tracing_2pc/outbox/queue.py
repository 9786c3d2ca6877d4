"""An outbox's queue: the tables that partners and relays have in common.

A committed branch is in the queue of its application by its tag. Its rows remain where
prepare wrote them until they have left. `requests.py` and `publications.py` have the
progress of the two ways to send.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.model import BranchId, Carrier, RequestKey, TransactionId
from tracing_2pc.participant.answers import BranchRow, TransactionRow
from tracing_2pc.participant.journal.database import Database
from tracing_2pc.participant.journal.schema import TAG, Tables
from tracing_2pc.store.lease import Lease, LeaseState
from tracing_2pc.tracing.propagation import span_of, storable_context

LOCK: Final = "/sender"
"""No application has such a name: senders do not wait for requests."""


class Queue:
    """The tables of one outbox, made with the journal's.

    Args:
        tables: the journal's.
        database: where they are.
        clock: Unix seconds.
        columns: of a committed branch, about its progress.
    """

    def __init__(
        self,
        tables: Tables,
        database: Database,
        clock: Callable[[], float],
        *columns: sa.Column[Any],
    ) -> None:
        self.name = tables.name
        self.tables = tables
        self.database = database
        self.clock = clock
        self.row = sa.Table(
            f"{tables.name}_tpc",
            tables.metadata,
            sa.Column("tpc_tag", TAG, primary_key=True, autoincrement=False),
            sa.Column("tpc_row", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("body", sa.Text, nullable=False),
        )
        self.branch = tables.add(
            "queue",
            sa.Column("application", sa.String(40), primary_key=True),
            sa.Column("batch", sa.BigInteger, primary_key=True),
            sa.Column("partition", sa.BigInteger, primary_key=True),
            sa.Column("task_attempt", sa.BigInteger, primary_key=True),
            sa.Column("tag", TAG, primary_key=True, autoincrement=False),
            sa.Column("attempt", sa.Integer, nullable=False),
            sa.Column("carrier", sa.Text, nullable=False),
            sa.Column("committed", sa.Float(53), nullable=False),
            sa.Column("rows", sa.BigInteger, nullable=False),
            *columns,
        )
        self.sender = tables.add(
            "sender",
            sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("holder", sa.String(40), nullable=False),
            sa.Column("until", sa.Float(53), nullable=False),
        )
        self._lease = Lease(self.sender.c.holder, self.sender.c.until)

    def set_up(self, connection: Connection) -> None:
        """Put the lease on record, held by no process; go on with tags above all."""
        tags = (self.row.c.tpc_tag, self.branch.c.tag)
        self.tables.raise_next_tag(connection, tags)
        if connection.execute(sa.select(self.sender.c.id)).first() is None:
            nobody = {"id": 1, "holder": "", "until": 0.0}
            connection.execute(self.sender.insert().values(nobody))

    def add(
        self,
        connection: Connection,
        row: TransactionRow,
        kept: Iterable[BranchRow],
        how_far: Callable[[BranchRow], dict[str, Any]],
    ) -> None:
        """Queue branches, in the local transaction that commits them."""
        insert = self.branch.insert().values(
            **dataclasses.asdict(row.transaction),
            carrier=json.dumps(_below_commit(row.carrier)),
            committed=self.clock(),
        )
        for branch in kept:
            task = dataclasses.asdict(branch.ref.branch)
            values = {"tag": branch.tag, "rows": branch.ref.rows, **how_far(branch)}
            connection.execute(insert.values(**task, **values))

    def of(self, transaction: TransactionId, branch: BranchId) -> tuple[Any, ...]:
        """Return the conditions that find what is queued of a branch."""
        q = self.branch.c
        return (
            q.application == transaction.application,
            q.batch == transaction.batch,
            q.partition == branch.partition,
            q.task_attempt == branch.task_attempt,
        )

    def applications(self) -> list[str]:
        """Return which have something to send; reads one index entry for each."""
        name, names = self.branch.c.application, [""]
        with self.database.read() as connection:
            while True:
                following = sa.select(sa.func.min(name)).where(name > names[-1])
                if (last := connection.execute(following).scalar()) is None:
                    return names[1:]
                names.append(last)

    # --- who may send ----------------------------------------------------------------

    def hold(self, holder: str, seconds: float) -> LeaseState:
        """Take or renew the lease, by the database's clock."""
        now = sa.literal_column(self.database.clock, sa.Double)
        with self.database.relaxed(lock=LOCK) as connection:
            return self._lease.hold(connection, holder, seconds, now)

    def let_go(self, holder: str) -> None:
        """Give the lease back."""
        with self.database.relaxed(lock=LOCK) as connection:
            self._lease.give_back(connection, holder)

    def deciding(self) -> AbstractContextManager[Connection]:
        """Open a durable transaction that excludes what senders write."""
        return self.database.write(lock=LOCK)


def carrier_on_record(
    connection: Connection, tables: Tables, transaction: TransactionId
) -> str:
    """Return the journal's trace context of a transaction, empty if forgotten."""
    t = tables.transaction.c
    this = (
        t.application == transaction.application,
        t.batch == transaction.batch,
        t.attempt == transaction.attempt,
    )
    return connection.scalar(sa.select(t.carrier).where(*this)) or "{}"


def key_of(transaction: TransactionId) -> RequestKey:
    """Return the key by which a whole transaction is listed."""
    return RequestKey(transaction, BranchId(0, 0), 0)


def _below_commit(prepared: Carrier) -> Carrier:
    """Return the context of the commit under way, if it is sampled in that trace."""
    here = storable_context()
    commit, prepare = span_of(here), span_of(prepared)
    is_seen = commit.trace_flags.sampled and commit.trace_id == prepare.trace_id
    return here if is_seen else prepared
