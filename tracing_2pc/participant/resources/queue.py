"""What an outbox has to send: its tables, and all of their SQL.

A committed branch is in its application's queue by its tag. Its requests remain where
prepare wrote them, and are deleted one by one, as the partner confirms them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.model import BranchId, Carrier, TransactionId, carrier_from_json
from tracing_2pc.participant.answers import BranchRow, TransactionRow
from tracing_2pc.participant.journal.database import Database
from tracing_2pc.participant.journal.schema import TAG, Tables
from tracing_2pc.tracing.propagation import at_rest, span_of

_LOCK: Final = "/sender"
"""No application has such a name: senders do not wait for requests."""

MOST_REFUSALS: Final = 10
"""Requests of an application that are quarantined in a row at most."""

_SLICE: Final = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One record on its way to the partner."""

    tag: int
    row: int
    body: str
    transaction: TransactionId
    branch: BranchId
    carrier: Carrier

    @property
    def key(self) -> str:
        """The same however often it is sent, and never another request's."""
        return f"{self.transaction}.{self.branch}.{self.row}"

    @property
    def place(self) -> tuple[int, int, int]:
        """The place of its branch in the queue of its application."""
        branch = self.branch
        return (self.transaction.batch, branch.partition, branch.task_attempt)


class Queue:
    """The tables of one outbox.

    Args:
        tables: the journal's: they are made together.
        database: where they are.
        clock: Unix seconds.
    """

    def __init__(
        self, tables: Tables, database: Database, clock: Callable[[], float]
    ) -> None:
        self._tables = tables
        self._database = database
        self._clock = clock
        self.request = sa.Table(
            f"{tables.name}_tpc",
            tables.metadata,
            sa.Column("tpc_tag", TAG, primary_key=True, autoincrement=False),
            sa.Column("tpc_row", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("body", sa.Text, nullable=False),
        )
        self.queue = tables.add(
            "queue",
            sa.Column("application", sa.String(40), primary_key=True),
            sa.Column("batch", sa.BigInteger, primary_key=True),
            sa.Column("partition", sa.BigInteger, primary_key=True),
            sa.Column("task_attempt", sa.BigInteger, primary_key=True),
            sa.Column("attempt", sa.Integer, nullable=False),
            sa.Column("tag", TAG, nullable=False),
            sa.Column("carrier", sa.Text, nullable=False),
            sa.Column("committed", sa.Float(53), nullable=False),
        )
        self.quarantine = tables.add(
            "quarantine",
            sa.Column("key", sa.String(160), primary_key=True),
            sa.Column("body", sa.Text, nullable=False),
            sa.Column("status", sa.Integer, nullable=False),
            sa.Column("since", sa.Float(53), nullable=False),
        )
        self.refusals = tables.add(
            "refusals",
            sa.Column("application", sa.String(40), primary_key=True),
            sa.Column("in_a_row", sa.Integer, nullable=False),
        )
        self.sender = tables.add(
            "sender",
            sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("holder", sa.String(40), nullable=False),
            sa.Column("until", sa.Float(53), nullable=False),
        )

    def set_up(self, connection: Connection) -> None:
        """Put the lease on record, held by no process; go on with tags above all."""
        tags = (self.request.c.tpc_tag, self.queue.c.tag)
        self._tables.raise_next_tag(connection, tags)
        if connection.execute(sa.select(self.sender.c.id)).first() is None:
            nobody = {"id": 1, "holder": "", "until": 0.0}
            connection.execute(self.sender.insert().values(nobody))

    def add(
        self, connection: Connection, row: TransactionRow, kept: Iterable[BranchRow]
    ) -> None:
        """Queue branches, in the local transaction that commits them."""
        insert = self.queue.insert().values(
            **dataclasses.asdict(row.transaction),
            carrier=json.dumps(_below_commit(row.carrier)),
            committed=self._clock(),
        )
        for branch in kept:
            task = dataclasses.asdict(branch.ref.branch)
            connection.execute(insert.values(**task, tag=branch.tag))

    def hold(self, holder: str, seconds: float) -> bool:
        """Take or renew the lease, by the database's clock; False if another has it."""
        s, now = self.sender.c, self._database.connections.clock
        free = sa.or_(s.holder == holder, s.until < now)
        taken = self.sender.update().where(free)
        with self._database.note(_LOCK) as connection:
            values = {"holder": holder, "until": now + seconds}
            return connection.execute(taken.values(values)).rowcount == 1

    def let_go(self, holder: str) -> None:
        """Give the lease back."""
        mine = self.sender.update().where(self.sender.c.holder == holder)
        with self._database.note(_LOCK) as connection:
            connection.execute(mine.values(until=0.0))

    def applications(self) -> list[str]:
        """Return which have something to send; reads one index entry for each."""
        name, names = self.queue.c.application, [""]
        with self._database.read() as connection:
            while True:
                following = sa.select(sa.func.min(name)).where(name > names[-1])
                if (last := connection.execute(following).scalar()) is None:
                    return names[1:]
                names.append(last)

    def next(self, application: str, after: Request | None = None) -> list[Request]:
        """Return its first requests, or the first after one; none if all are sent."""
        q = self.queue.c
        order = (q.batch, q.partition, q.task_attempt)
        place = after.place if after else (0, 0, 0)
        while True:
            of = (q.application == application, sa.tuple_(*order) >= place)
            first = sa.select(self.queue).where(*of).order_by(*order).limit(1)
            with self._database.read() as connection:
                if (branch := connection.execute(first).one_or_none()) is None:
                    return []
                if requests := self._requests(connection, branch, after):
                    return requests
            if after is None or branch.tag != after.tag:
                with self._database.note(_LOCK) as connection:
                    sent = self.queue.delete().where(q.tag == branch.tag)
                    connection.execute(sent)
            place = (branch.batch, branch.partition, branch.task_attempt + 1)

    def _requests(
        self, connection: Connection, branch: Any, after: Request | None
    ) -> list[Request]:
        r = self.request.c
        statement = sa.select(r.tpc_row, r.body).where(r.tpc_tag == branch.tag)
        if after is not None and after.tag == branch.tag:
            statement = statement.where(r.tpc_row > after.row)
        rows = connection.execute(statement.order_by(r.tpc_row).limit(_SLICE))
        transaction = TransactionId(branch.application, branch.batch, branch.attempt)
        task = BranchId(branch.partition, branch.task_attempt)
        carrier = carrier_from_json(branch.carrier)
        return [
            Request(branch.tag, row, body, transaction, task, carrier)
            for row, body in rows
        ]

    def confirmed(self, request: Request, *, after_refusals: bool = True) -> None:
        """Drop a request that was taken; if a crash undoes it, it is sent again.

        Args:
            request: which the partner has taken.
            after_refusals: some may have been counted since the last one was taken.
        """
        refusals = self.refusals
        of = refusals.c.application == request.transaction.application
        with self._database.note(_LOCK) as connection:
            self._drop(connection, request)
            if after_refusals:
                connection.execute(refusals.delete().where(of))

    def count_refusal(self, application: str) -> int:
        """Count one more refusal; returns how many there were in a row."""
        c = self.refusals.c
        more = self.refusals.update().where(c.application == application)
        first = {"application": application, "in_a_row": 1}
        count = sa.select(c.in_a_row).where(c.application == application)
        with self._database.note(_LOCK) as connection:
            if not connection.execute(more.values(in_a_row=c.in_a_row + 1)).rowcount:
                connection.execute(self.refusals.insert().values(first))
            return int(connection.execute(count).scalar_one())

    def resume(self) -> None:
        """Count the refusals of every application from 0 again."""
        with self._database.decide(_LOCK) as connection:
            connection.execute(self.refusals.delete())

    def move_to_quarantine(self, request: Request, status: int) -> bool:
        """Quarantine a request, durably, for a person.

        False if a sender that took over has had an answer to it: that one counts.
        """
        insert = self.quarantine.insert().values(key=request.key, body=request.body)
        with self._database.decide(_LOCK) as connection:
            if was_waiting := self._drop(connection, request):
                quarantined = insert.values(status=status, since=self._clock())
                connection.execute(quarantined)
        return was_waiting

    def _drop(self, connection: Connection, request: Request) -> bool:
        r = self.request.c
        this = (r.tpc_tag == request.tag, r.tpc_row == request.row)
        return connection.execute(self.request.delete().where(*this)).rowcount == 1

    def gauges(self, connection: Connection) -> dict[str, float]:
        """Measure what waits, what is quarantined, and where sending has stopped."""
        q, r = self.queue.c, self.request.c
        waiting = sa.select(sa.func.count(), sa.func.min(q.committed)).join_from(
            self.queue, self.request, q.tag == r.tpc_tag
        )
        quarantined = sa.select(sa.func.count()).select_from(self.quarantine)
        many = self.refusals.c.in_a_row > MOST_REFUSALS
        stopped = sa.select(sa.func.count()).select_from(self.refusals).where(many)
        backlog, oldest = connection.execute(waiting).one()
        age = self._clock() - oldest if backlog else 0.0
        return {
            "tpc.outbox.backlog": backlog,
            "tpc.outbox.oldest_age": max(0.0, age),
            "tpc.outbox.quarantined": connection.execute(quarantined).scalar_one(),
            "tpc.outbox.stopped": connection.execute(stopped).scalar_one(),
        }

    def quarantined(self, connection: Connection) -> list[dict[str, Any]]:
        """Return the requests in quarantine, oldest first."""
        statement = sa.select(self.quarantine).order_by(self.quarantine.c.since)
        return [dict(row._mapping) for row in connection.execute(statement)]


def _below_commit(prepared: Carrier) -> Carrier:
    """Return the context of the commit under way, if it is sampled in that trace."""
    here = at_rest()
    commit, prepare = span_of(here), span_of(prepared)
    is_seen = commit.trace_flags.sampled and commit.trace_id == prepare.trace_id
    return here if is_seen else prepared
