"""What an outbox has to send: its tables, and all of their SQL.

A committed branch stands in its application's queue by its tag; its requests lie where
prepare wrote them and go one by one, as the partner confirms them.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.model import BranchId, Carrier, TransactionId
from tracing_2pc.participant.answers import Held, Seen
from tracing_2pc.participant.database import Database
from tracing_2pc.participant.schema import TAG
from tracing_2pc.store.rows import carrier_of

_LOCK: Final = "/sender"
"""No application has such a name, so senders wait for nobody."""

MOST_REFUSALS: Final = 10
"""Requests of an application that are set aside in a row: more are no accident."""

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


class Queue:
    """The tables of one outbox.

    Args:
        metadata: the journal's: they are made together.
        name: their prefix.
        database: where they are.
    """

    def __init__(self, metadata: sa.MetaData, name: str, database: Database) -> None:
        self._database = database
        self.request = sa.Table(
            f"{name}_tpc",
            metadata,
            sa.Column("tpc_tag", TAG, primary_key=True, autoincrement=False),
            sa.Column("tpc_row", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("body", sa.Text, nullable=False),
        )
        self.queue = sa.Table(
            f"{name}_tpc_queue",
            metadata,
            sa.Column("application", sa.String(40), primary_key=True),
            sa.Column("batch", sa.BigInteger, primary_key=True),
            sa.Column("partition", sa.BigInteger, primary_key=True),
            sa.Column("task_attempt", sa.BigInteger, primary_key=True),
            sa.Column("attempt", sa.Integer, nullable=False),
            sa.Column("tag", TAG, nullable=False),
            sa.Column("carrier", sa.Text, nullable=False),
            sa.Column("committed", sa.Float(53), nullable=False),
        )
        self.quarantine = sa.Table(
            f"{name}_tpc_quarantine",
            metadata,
            sa.Column("key", sa.String(160), primary_key=True),
            sa.Column("body", sa.Text, nullable=False),
            sa.Column("status", sa.Integer, nullable=False),
            sa.Column("since", sa.Float(53), nullable=False),
        )
        self.refusals = sa.Table(
            f"{name}_tpc_refusals",
            metadata,
            sa.Column("application", sa.String(40), primary_key=True),
            sa.Column("in_a_row", sa.Integer, nullable=False),
        )
        self.sender = sa.Table(
            f"{name}_tpc_sender",
            metadata,
            sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("holder", sa.String(40), nullable=False),
            sa.Column("until", sa.Float(53), nullable=False),
        )

    def set_up(self, connection: Connection) -> None:
        """Put the lease on record, held by nobody."""
        if connection.execute(sa.select(self.sender.c.id)).first() is None:
            nobody = {"id": 1, "holder": "", "until": 0.0}
            connection.execute(self.sender.insert().values(nobody))

    def add(self, connection: Connection, seen: Seen, held: Held, now: float) -> None:
        """Queue a branch, in the local transaction that commits it."""
        transaction, branch = seen.transaction, held.named.branch
        connection.execute(
            self.queue.insert().values(
                application=transaction.application,
                batch=transaction.batch,
                attempt=transaction.attempt,
                partition=branch.partition,
                task_attempt=branch.task_attempt,
                tag=held.tag,
                carrier=json.dumps(seen.carrier),
                committed=now,
            )
        )

    def hold(self, holder: str, seconds: float) -> bool:
        """Take or renew the lease, by the database's clock; False: another has it."""
        s, now = self.sender.c, self._database.now()
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
        """Return who has something to send; costs a look at an index for each."""
        name, names = self.queue.c.application, [""]
        with self._database.read() as connection:
            while True:
                following = sa.select(sa.func.min(name)).where(name > names[-1])
                if (last := connection.execute(following).scalar()) is None:
                    return names[1:]
                names.append(last)

    def next(self, application: str, behind: Request | None = None) -> list[Request]:
        """Return its first requests in order; none when all are sent.

        Args:
            application: whose.
            behind: only those that come after this one.
        """
        q = self.queue.c
        order = (q.batch, q.partition, q.task_attempt)
        place = _place(behind)
        while True:
            of = (q.application == application, sa.tuple_(*order) >= place)
            first = sa.select(self.queue).where(*of).order_by(*order).limit(1)
            with self._database.read() as connection:
                if (branch := connection.execute(first).one_or_none()) is None:
                    return []
                if requests := self._requests(connection, branch, behind):
                    return requests
            if behind is None or branch.tag != behind.tag:
                with self._database.note(_LOCK) as connection:
                    sent = self.queue.delete().where(q.tag == branch.tag)
                    connection.execute(sent)
            place = (branch.batch, branch.partition, branch.task_attempt + 1)

    def _requests(
        self, connection: Connection, branch: Any, behind: Request | None
    ) -> list[Request]:
        r = self.request.c
        statement = sa.select(r.tpc_row, r.body).where(r.tpc_tag == branch.tag)
        if behind is not None and behind.tag == branch.tag:
            statement = statement.where(r.tpc_row > behind.row)
        rows = connection.execute(statement.order_by(r.tpc_row).limit(_SLICE))
        transaction = TransactionId(branch.application, branch.batch, branch.attempt)
        task = BranchId(branch.partition, branch.task_attempt)
        carrier = carrier_of(branch.carrier)
        return [
            Request(branch.tag, row, body, transaction, task, carrier)
            for row, body in rows
        ]

    def confirmed(self, request: Request, *, after_refusals: bool = True) -> None:
        """Drop a request; lost in a crash, it is sent again with the same key.

        Args:
            request: which the partner has taken.
            after_refusals: some may have been counted since the last one was taken.
        """
        with self._database.note(_LOCK) as connection:
            self._drop(connection, request)
            if after_refusals:
                self._forget_refusals(connection, request.transaction.application)

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
            self._forget_refusals(connection)

    def _forget_refusals(
        self, connection: Connection, application: str | None = None
    ) -> None:
        statement = self.refusals.delete()
        if application is not None:
            of = self.refusals.c.application == application
            statement = statement.where(of)
        connection.execute(statement)

    def set_aside(self, request: Request, status: int, now: float) -> bool:
        """Set a request aside, durably, for a person to look at.

        False: a sender that took over has had its answer, and that one stands.
        """
        aside = {
            "key": request.key,
            "body": request.body,
            "status": status,
            "since": now,
        }
        with self._database.decide(_LOCK) as connection:
            if waited := self._drop(connection, request):
                connection.execute(self.quarantine.insert().values(aside))
        return waited

    def _drop(self, connection: Connection, request: Request) -> bool:
        r = self.request.c
        this = (r.tpc_tag == request.tag, r.tpc_row == request.row)
        return connection.execute(self.request.delete().where(*this)).rowcount == 1

    def gauges(self, connection: Connection, now: float) -> dict[str, float]:
        """Measure what waits, what was set aside, and where sending has stopped."""
        q, r = self.queue.c, self.request.c
        waiting = sa.select(sa.func.count(), sa.func.min(q.committed)).join_from(
            self.queue, self.request, q.tag == r.tpc_tag
        )
        aside = sa.select(sa.func.count()).select_from(self.quarantine)
        many = self.refusals.c.in_a_row > MOST_REFUSALS
        stopped = sa.select(sa.func.count()).select_from(self.refusals).where(many)
        backlog, oldest = connection.execute(waiting).one()
        return {
            "tpc_outbox_backlog": backlog,
            "tpc_outbox_oldest_age_seconds": max(0.0, now - oldest) if backlog else 0.0,
            "tpc_outbox_quarantined": connection.execute(aside).scalar_one(),
            "tpc_outbox_stopped": connection.execute(stopped).scalar_one(),
        }

    def quarantined(self, connection: Connection) -> list[dict[str, Any]]:
        """Return what was set aside, oldest first."""
        statement = sa.select(self.quarantine).order_by(self.quarantine.c.since)
        return [dict(row._mapping) for row in connection.execute(statement)]


def _place(request: Request | None) -> tuple[int, int, int]:
    """Return its branch's place in the queue of its application."""
    if request is None:
        return (0, 0, 0)
    branch = request.branch
    return (request.transaction.batch, branch.partition, branch.task_attempt)
