"""What an outbox has to send: its tables.

A committed branch is in its application's queue by its tag. Its requests remain where
prepare wrote them, and are deleted one by one, as the partner confirms them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.model import (
    BranchId,
    Carrier,
    RequestKey,
    TransactionId,
    carrier_from_json,
)
from tracing_2pc.participant.answers import BranchRow, TransactionRow
from tracing_2pc.participant.journal.database import Database
from tracing_2pc.participant.journal.schema import TAG, Tables
from tracing_2pc.store.engines.database import storable
from tracing_2pc.store.lease import Lease, LeaseState
from tracing_2pc.tracing.propagation import span_of, storable_context

_LOCK: Final = "/sender"
"""No application has such a name: senders do not wait for requests."""

MOST_REFUSALS: Final = 10
"""Requests of an application that are quarantined in a row at most."""

LONGEST_ANSWER: Final = 2_000
"""Characters of a partner's answer that are kept."""

_SLICE: Final = 20

AGAIN: Final = "again"
DROP: Final = "drop"
"""What a person may decide about a request in quarantine."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One record on its way to the partner."""

    tag: int
    row: int
    body: str
    transaction: TransactionId
    branch: BranchId
    carrier: Carrier
    outbox: str = "outbox"
    """The name of the outbox that sends it."""

    @property
    def key(self) -> str:
        """The same however often it is sent, and never another request's."""
        return str(RequestKey(self.transaction, self.branch, self.row))

    @property
    def place(self) -> tuple[int, int, int]:
        """The place of its branch in the queue of its application."""
        branch = self.branch
        return (self.transaction.batch, branch.partition, branch.task_attempt)


class Queue:
    """The tables of one outbox, made with the journal's; `columns` are further ones.

    `bulk` requests may be sent together; `clock` gives Unix seconds.
    """

    def __init__(
        self,
        tables: Tables,
        database: Database,
        clock: Callable[[], float],
        bulk: int = 1,
        *columns: sa.Column[Any],
    ) -> None:
        self.bulk = bulk
        self.name = tables.name
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
            *columns,
        )
        self.quarantine = tables.add(
            "quarantine",
            sa.Column("key", sa.String(160), primary_key=True),
            sa.Column("body", sa.Text, nullable=False),
            sa.Column("status", sa.Integer, nullable=False),
            sa.Column("since", sa.Float(53), nullable=False),
            sa.Column("answer", sa.Text),
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
        self._lease = Lease(self.sender.c.holder, self.sender.c.until)
        key = sa.Column("key", sa.String(160), nullable=False)
        self.by_hand = tables.add(
            "by_hand",
            sa.Column("number", TAG, primary_key=True),
            key,
            sa.Column("action", sa.String(5), nullable=False),
            sa.Column("who", sa.Text, nullable=False),
            sa.Column("reason", sa.Text, nullable=False),
            sa.Column("at", sa.Float(53), nullable=False),
            sa.Column("status", sa.Integer, nullable=False),
            sa.Column("since", sa.Float(53), nullable=False),
            # Of a dropped request: the only copy of it that is left here.
            sa.Column("body", sa.Text),
            # Of one that was to be sent again: it left the queue in another way.
            sa.Column("not_taken", sa.Boolean, nullable=False),
            sa.Column("answer", sa.Text),
            sqlite_autoincrement=True,  # rows may be deleted: no tag comes twice
        )
        sa.Index(f"{tables.name}_tpc_by_hand_key", key)

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
            more = self._more(branch)
            connection.execute(insert.values(**task, tag=branch.tag, **more))

    def _more(self, branch: BranchRow) -> dict[str, Any]:
        """Return what is in the further columns."""
        return {}

    def hold(self, holder: str, seconds: float) -> LeaseState:
        """Take or renew the lease, by the database's clock."""
        now = sa.literal_column(self._database.clock, sa.Double)
        with self._database.relaxed(lock=_LOCK) as connection:
            return self._lease.hold(connection, holder, seconds, now)

    def let_go(self, holder: str) -> None:
        """Give the lease back."""
        with self._database.relaxed(lock=_LOCK) as connection:
            self._lease.give_back(connection, holder)

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
                self._drop_branch(branch.tag)
            place = (branch.batch, branch.partition, branch.task_attempt + 1)

    def _drop_branch(self, tag: int) -> None:
        """Take a branch off the queue, unless a request of it was put back just now."""
        some = sa.exists().where(self.request.c.tpc_tag == tag)
        with self._database.relaxed(lock=_LOCK) as connection:
            sent = self.queue.delete().where(self.queue.c.tag == tag, ~some)
            connection.execute(sent)

    def _requests(
        self, connection: Connection, branch: Any, after: Request | None
    ) -> list[Request]:
        r = self.request.c
        statement = sa.select(r.tpc_row, r.body).where(r.tpc_tag == branch.tag)
        if after is not None and after.tag == branch.tag:
            statement = statement.where(r.tpc_row > after.row)
        rows = connection.execute(
            statement.order_by(r.tpc_row).limit(max(self.bulk, _SLICE))
        )
        transaction = TransactionId(branch.application, branch.batch, branch.attempt)
        task = BranchId(branch.partition, branch.task_attempt)
        carrier = carrier_from_json(branch.carrier)
        return [
            Request(branch.tag, row, body, transaction, task, carrier, self.name)
            for row, body in rows
        ]

    def confirmed(self, *requests: Request, after_refusals: bool = True) -> None:
        """Drop requests that were taken; if a crash undoes it, they are sent again.

        They are of one application. `after_refusals`: some may have been counted since
        the last one was taken.
        """
        refusals = self.refusals
        of = refusals.c.application == requests[0].transaction.application
        with self._database.relaxed(lock=_LOCK) as connection:
            for request in requests:
                self._drop(connection, request)
            if after_refusals:
                connection.execute(refusals.delete().where(of))

    def count_refusal(self, request: Request) -> int:
        """Count one more refusal of its application; return how many in a row.

        0 for a request that a person had sent again: that its partner refuses it is
        known, and says nothing about the others.
        """
        application = request.transaction.application
        c, h = self.refusals.c, self.by_hand.c
        more = self.refusals.update().where(c.application == application)
        first = {"application": application, "in_a_row": 1}
        count = sa.select(c.in_a_row).where(c.application == application)
        again = sa.select(h.number).where(h.key == request.key, h.action == AGAIN)
        with self._database.relaxed(lock=_LOCK) as connection:
            if connection.execute(again.limit(1)).first() is not None:
                return 0
            if not connection.execute(more.values(in_a_row=c.in_a_row + 1)).rowcount:
                connection.execute(self.refusals.insert().values(first))
            return int(connection.execute(count).scalar_one())

    def resume(self) -> None:
        """Count the refusals of every application from 0 again."""
        with self._database.write(lock=_LOCK) as connection:
            connection.execute(self.refusals.delete())

    def move_to_quarantine(
        self, request: Request, status: int, answer: str = ""
    ) -> bool:
        """Quarantine a request, durably, for a person, with the partner's answer.

        Of a long answer the beginning is kept.

        False if a sender that took over has had an answer to it: that one counts.
        """
        insert = self.quarantine.insert().values(key=request.key, body=request.body)
        with self._database.write(lock=_LOCK) as connection:
            if was_waiting := self._drop(connection, request):
                said = storable(connection, answer[:LONGEST_ANSWER])[:LONGEST_ANSWER]
                quarantined = {"status": status, "since": self._clock()}
                connection.execute(insert.values(**quarantined, answer=said or None))
                self._note_not_taken(connection, request.key)
        return was_waiting

    def _drop(self, connection: Connection, request: Request) -> bool:
        q, r, branch = self.queue.c, self.request.c, request.branch
        # Its tag was of no other branch, ever; this would show if it was.
        of_branch = sa.exists().where(
            q.application == request.transaction.application,
            q.batch == request.transaction.batch,
            q.partition == branch.partition,
            q.task_attempt == branch.task_attempt,
            q.tag == r.tpc_tag,
        )
        this = (r.tpc_tag == request.tag, r.tpc_row == request.row, of_branch)
        return connection.execute(self.request.delete().where(*this)).rowcount == 1

    def _note_not_taken(self, connection: Connection, key: str) -> None:
        h = self.by_hand.c
        again = self.by_hand.update().where(h.key == key, h.action == AGAIN)
        connection.execute(again.values(not_taken=True))

    def deciding(self) -> AbstractContextManager[Connection]:
        """Open a durable transaction that excludes what senders write."""
        return self._database.write(lock=_LOCK)

    def put_back(
        self, connection: Connection, key: RequestKey, body: str, number: int
    ) -> None:
        """Queue a request once more, in its place, in a transaction of `deciding`.

        `number` is that of the row about it in `by_hand`, which never comes again.
        """
        transaction, branch = key.transaction, key.branch
        if (tag := self._tag_of(connection, key)) is None:
            # Its branch is done with. A tag below 0 is of no branch in the journal.
            # A tag that came twice would let a late answer delete another request.
            tag = -number
            values = {
                **dataclasses.asdict(transaction),
                **dataclasses.asdict(branch),
                "tag": tag,
                "carrier": self._carrier_of(connection, transaction),
                "committed": self._clock(),
            }
            connection.execute(self.queue.insert().values(values))
        request = {"tpc_tag": tag, "tpc_row": key.row, "body": body}
        connection.execute(self.request.insert().values(request))

    def holds(self, connection: Connection, key: RequestKey) -> bool:
        """Whether a request waits to be sent."""
        this = self._waiting(connection, key)
        return connection.scalar(sa.select(sa.exists().where(*this))) or False

    def take_back(self, connection: Connection, key: RequestKey) -> str | None:
        """Take one off its queue again, return its body; it may be sent once more."""
        this = self._waiting(connection, key)
        select = sa.select(self.request.c.body).where(*this)
        body: str | None = connection.scalar(select)
        if body is not None:
            connection.execute(self.request.delete().where(*this))
            self._note_not_taken(connection, str(key))
        return body

    def _waiting(self, connection: Connection, key: RequestKey) -> tuple[Any, ...]:
        r = self.request.c
        return (r.tpc_tag == self._tag_of(connection, key), r.tpc_row == key.row)

    def _tag_of(self, connection: Connection, key: RequestKey) -> int | None:
        """Return the tag of a request's branch, while that is in the queue."""
        q, branch = self.queue.c, key.branch
        this = (
            q.application == key.transaction.application,
            q.batch == key.transaction.batch,
            q.partition == branch.partition,
            q.task_attempt == branch.task_attempt,
        )
        tag: int | None = connection.scalar(sa.select(q.tag).where(*this))
        return tag

    def _carrier_of(self, connection: Connection, transaction: TransactionId) -> str:
        """Return the journal's trace context of a transaction, empty if forgotten."""
        t = self._tables.transaction.c
        this = (
            t.application == transaction.application,
            t.batch == transaction.batch,
            t.attempt == transaction.attempt,
        )
        return connection.scalar(sa.select(t.carrier).where(*this)) or "{}"

    def unfit(self, connection: Connection) -> Sequence[tuple[str, str]]:
        """Return what does not fit where it sends to, each with its cure."""
        return ()

    def count_waiting(self, connection: Connection) -> int:
        """Count requests that are not sent yet."""
        queue, request = self.queue, self.request
        both = sa.join(queue, request, queue.c.tag == request.c.tpc_tag)
        return int(connection.scalar(sa.select(sa.func.count()).select_from(both)) or 0)

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
    here = storable_context()
    commit, prepare = span_of(here), span_of(prepared)
    is_seen = commit.trace_flags.sampled and commit.trace_id == prepare.trace_id
    return here if is_seen else prepared
