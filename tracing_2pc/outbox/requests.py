"""Requests to a partner, one by one, and their progress: all of that SQL.

A branch in the queue has a cursor: the first of its requests that is not settled yet.
Requests behind it are deleted many at a time. One that is settled before its turn, or
is in quarantine, is deleted by itself. A request that a person has sent again is in the
queue as a branch of its own, with the number of the row about it in place of a tag.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.model import (
    BranchId,
    Carrier,
    QuarantinedRequest,
    RequestKey,
    TransactionId,
    Unfit,
    carrier_from_json,
)
from tracing_2pc.core.states import Refusal, RelayTrouble, RequestState, UnfitKind
from tracing_2pc.outbox.quarantine import (
    AGAIN,
    DROP,
    LONGEST_ANSWER,
    Quarantine,
    unknown,
)
from tracing_2pc.outbox.queue import LOCK, Queue, carrier_on_record
from tracing_2pc.participant.answers import BranchRow, TransactionRow
from tracing_2pc.participant.journal.database import Database
from tracing_2pc.participant.journal.schema import Tables
from tracing_2pc.participant.requests import RequestOrder, RequestQuery
from tracing_2pc.store.engines.database import storable

MOST_REFUSALS: Final = 10
"""Requests of an application that are quarantined in a row at most."""

_SLICE: Final = 20
_BEHIND: Final = 200
"""Requests that are read at once, and that are behind a cursor at most."""


_CURE: Final = "start the partner, or correct its address; all is sent then, in order"


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


class Requests:
    """The requests of one outbox to its partner.

    `bulk` requests may be sent together; `clock` gives Unix seconds.
    """

    def __init__(
        self,
        tables: Tables,
        database: Database,
        clock: Callable[[], float],
        bulk: int = 1,
    ) -> None:
        self.bulk = bulk
        cursor = sa.Column("next_row", sa.BigInteger, nullable=False)
        self.queue = Queue(tables, database, clock, cursor)
        self.quarantine = Quarantine(self.queue)
        self._database = database
        self._row = self.queue.row
        self._branch = self.queue.branch
        self.refusals = tables.add(
            "refusals",
            sa.Column("application", sa.String(40), primary_key=True),
            sa.Column("in_a_row", sa.Integer, nullable=False),
            # What the partner answered last, while it takes nothing of it.
            sa.Column("answer", sa.Text),
        )

    def set_up(self, connection: Connection) -> None:
        """Put on record what is there from the beginning."""
        self.queue.set_up(connection)

    def add(
        self, connection: Connection, row: TransactionRow, kept: Iterable[BranchRow]
    ) -> None:
        """Queue branches, in the local transaction that commits them."""
        self.queue.add(connection, row, kept, lambda _: {"next_row": 0})

    # --- the sender's turn -----------------------------------------------------------

    def next(self, application: str, after: Request | None = None) -> list[Request]:
        """Return its first requests, or the first after one; none if all are sent."""
        q = self._branch.c
        place = (q.batch, q.partition, q.task_attempt)
        conditions = [q.application == application]
        if after is not None:
            task = after.branch
            first = (after.transaction.batch, task.partition, task.task_attempt)
            conditions.append(sa.tuple_(*place) >= first)
        # What was put back comes before the rest of its branch.
        order = (*place, sa.case((q.tag < 0, 0), else_=1), q.next_row)
        statement = sa.select(self._branch).order_by(*order).limit(1)
        while True:
            with self._database.read() as connection:
                branch = connection.execute(statement.where(*conditions)).one_or_none()
                if branch is None:
                    return []
                if requests := self._requests(connection, branch, after):
                    return requests
            if after is not None and branch.tag == after.tag:
                conditions.append(q.tag != branch.tag)
            else:
                self._end(branch.tag)

    def _requests(
        self, connection: Connection, branch: Any, after: Request | None
    ) -> list[Request]:
        r, first = self._row.c, branch.next_row
        if after is not None and after.tag == branch.tag:
            first = after.row + 1
        waiting = sa.select(r.tpc_row, r.body).where(
            r.tpc_tag == branch.tag, r.tpc_row >= first
        )
        slice_ = waiting.order_by(r.tpc_row).limit(max(self.bulk, _SLICE))
        transaction = TransactionId(branch.application, branch.batch, branch.attempt)
        task = BranchId(branch.partition, branch.task_attempt)
        carrier, name = carrier_from_json(branch.carrier), self.queue.name
        return [
            Request(branch.tag, row, body, transaction, task, carrier, name)
            for row, body in connection.execute(slice_)
        ]

    def _end(self, tag: int) -> None:
        """Take a branch off the queue, unless something of it waits after all."""
        q, r = self._branch.c, self._row.c
        waits = sa.exists().where(r.tpc_tag == tag, r.tpc_row >= q.next_row)
        with self._database.relaxed(lock=LOCK) as connection:
            self._take_off(connection, tag, ~waits)

    def _take_off(
        self, connection: Connection, tag: int, *only_if: sa.ColumnElement[bool]
    ) -> None:
        """Delete a branch and its requests, where the conditions hold."""
        ended = self._branch.delete().where(self._branch.c.tag == tag, *only_if)
        if connection.execute(ended).rowcount:
            condition = self._row.c.tpc_tag == tag
            connection.execute(self._row.delete().where(condition))

    def confirmed(
        self,
        *requests: Request,
        in_turn: bool = True,
        after_refusals: bool = True,
    ) -> None:
        """Settle requests that were taken; if a crash undoes it, they are sent again.

        They are neighbours in one branch. `in_turn`: nothing before them waits.
        `after_refusals`: some may have been counted since the last one was taken.
        """
        application = requests[0].transaction.application
        condition = self.refusals.c.application == application
        with self._database.relaxed(lock=LOCK) as connection:
            if not (in_turn and self._advance(connection, requests)):
                for request in requests:
                    self._remove(connection, request)
            if after_refusals:
                connection.execute(self.refusals.delete().where(condition))

    def _advance(self, connection: Connection, requests: Sequence[Request]) -> bool:
        """Put the cursor behind requests; delete what is behind that, now and then.

        False if it stays: a sender that took over has had an answer to them; or others
        wait before them again, as where a replica that is behind has taken over.
        """
        q, r = self._branch.c, self._row.c
        first, last = requests[0].row, requests[-1]
        taken = [request.row for request in requests]
        others = sa.exists().where(
            r.tpc_tag == last.tag,
            r.tpc_row.between(q.next_row, last.row),
            r.tpc_row.not_in(taken),
        )
        conditions = (*self._this(last), q.next_row <= first, ~others)
        moved = self._branch.update().where(*conditions).values(next_row=last.row + 1)
        rows = connection.execute(moved.returning(q.rows)).scalar()
        if rows is None:
            return False
        if last.row + 1 >= rows:
            self._take_off(connection, last.tag)
        elif (last.row + 1) // _BEHIND > (first - 1) // _BEHIND:
            behind = (r.tpc_tag == last.tag, r.tpc_row <= last.row)
            connection.execute(self._row.delete().where(*behind))
        return True

    def _this(self, request: Request) -> tuple[Any, ...]:
        # Its tag was of no other branch, ever; this would show if it was.
        q, transaction = self._branch.c, request.transaction
        conditions = self.queue.of(transaction, request.branch)
        return (*conditions, q.attempt == transaction.attempt, q.tag == request.tag)

    def _remove(self, connection: Connection, request: Request) -> bool:
        """Take out a request, wherever the cursor is; False if it was settled."""
        q, r = self._branch.c, self._row.c
        waits = sa.exists().where(*self._this(request), q.next_row <= request.row)
        this = (r.tpc_tag == request.tag, r.tpc_row == request.row, waits)
        return connection.execute(self._row.delete().where(*this)).rowcount == 1

    def count_refusal(self, request: Request) -> int:
        """Count one more refusal of its application; return how many in a row.

        0 for a request that a person had sent again: its refusal is known, and is no
        evidence about the others.
        """
        application = request.transaction.application
        c, h = self.refusals.c, self.quarantine.by_hand.c
        more = self.refusals.update().where(c.application == application)
        first = {"application": application, "in_a_row": 1}
        count = sa.select(c.in_a_row).where(c.application == application)
        again = sa.select(h.number).where(h.key == request.key, h.action == AGAIN)
        with self._database.relaxed(lock=LOCK) as connection:
            if connection.execute(again.limit(1)).first() is not None:
                return 0
            if not connection.execute(more.values(in_a_row=c.in_a_row + 1)).rowcount:
                connection.execute(self.refusals.insert().values(first))
            return int(connection.execute(count).scalar_one())

    def note_answer(self, application: str, answer: str) -> None:
        """Note why the partner takes nothing now, until it takes a request again."""
        condition = self.refusals.c.application == application
        with self._database.relaxed(lock=LOCK) as connection:
            answer = storable(connection, answer[:LONGEST_ANSWER])
            noted = self.refusals.update().where(condition).values(answer=answer)
            if not connection.execute(noted).rowcount:
                first = {"application": application, "in_a_row": 0, "answer": answer}
                connection.execute(self.refusals.insert().values(first))

    def resume(self) -> None:
        """Count the refusals of every application from 0 again."""
        with self.queue.deciding() as connection:
            connection.execute(self.refusals.delete())

    def move_to_quarantine(
        self, request: Request, status: int, answer: str = ""
    ) -> bool:
        """Quarantine a request, durably, for a person, with the partner's answer.

        Of a long answer the beginning is kept.

        False if a sender that took over has had an answer to it: that one counts.
        """
        with self.queue.deciding() as connection:
            if was_waiting := self._remove(connection, request):
                about: dict[str, Any] = {"status": status, "body": request.body}
                kept = storable(connection, answer[:LONGEST_ANSWER])
                self.quarantine.put(
                    connection, request.key, kept[:LONGEST_ANSWER], **about
                )
                self.quarantine.note_not_taken(connection, request.key)
        return was_waiting

    # --- what a person decides -------------------------------------------------------

    def page(
        self, connection: Connection, query: RequestQuery
    ) -> Sequence[QuarantinedRequest]:
        """Return a page of quarantined, or of dropped, requests; oldest first."""
        return self.quarantine.page(connection, query)

    def trouble(self, connection: Connection) -> str:
        """Return in a word why nothing is sent, empty if it is not known here."""
        return ""

    def unfit(self, connection: Connection) -> Sequence[Unfit]:
        """Return the applications that wait for the partner, with its last answer."""
        r, b = self.refusals.c, self._branch.c
        is_waiting = sa.exists().where(b.application == r.application)
        waiting = sa.select(self.refusals).where(r.answer.is_not(None), is_waiting)
        return [
            Unfit(
                f"{row.application} waits for its partner: {row.answer}",
                _CURE,
                UnfitKind.PARTNER,
                row.application,
            )
            for row in connection.execute(waiting.order_by("application"))
        ]

    def again(self, connection: Connection, order: RequestOrder) -> RequestState:
        """Put a request back into its queue; idempotent.

        Raises:
            RefusalError: unknown: it never was in quarantine; conflict: it was dropped.
        """
        if (row := self.quarantine.take(connection, order.key)) is not None:
            number = self.quarantine.sign(connection, order, AGAIN, row)
            self._put_back(connection, order.key, row.body, number)
            return RequestState.WAITING
        last = self.quarantine.last(connection, order.key)
        if last.action == DROP:
            detail = f"request {order.key} was dropped by hand: it is not sent again"
            raise RefusalError(Refusal.CONFLICT, detail)
        if self._waiting(connection, order.key) is not None:
            return RequestState.WAITING
        _check_taken(last, order.key)
        return RequestState.SENT

    def drop(self, connection: Connection, order: RequestOrder) -> RequestState:
        """Take a request out of quarantine for ever, and keep it on record; idempotent.

        One that waits to be sent again is taken off its queue. If a sender is at work
        on it, it may still be sent once.

        Raises:
            RefusalError: unknown: it never was in quarantine; conflict: it was put
                back into its queue, and the partner has taken it.
        """
        key = order.key
        if (row := self.quarantine.take(connection, key)) is not None:
            self.quarantine.sign(connection, order, DROP, row, body=row.body)
            return RequestState.DROPPED
        last = self.quarantine.last(connection, key)
        if last.action == DROP:
            return RequestState.DROPPED
        if (waiting := self._waiting(connection, key)) is not None:
            self._take_off(connection, waiting.tag)
            self.quarantine.note_not_taken(connection, str(key))
            self.quarantine.sign(connection, order, DROP, last, body=waiting.body)
            return RequestState.DROPPED
        _check_taken(last, key)
        detail = (
            f"request {key} is not in quarantine: a person had it sent again, and the "
            "partner has taken it"
        )
        raise RefusalError(Refusal.CONFLICT, detail)

    def _put_back(
        self, connection: Connection, key: RequestKey, body: str, number: int
    ) -> None:
        """Queue a request once more, in its place.

        `number` is that of the row about it in `by_hand`, which never comes again. A
        tag below 0 is of no branch in the journal; if one came twice, a late answer
        would settle another request.
        """
        tag, transaction = -number, key.transaction
        values = {
            **dataclasses.asdict(transaction),
            **dataclasses.asdict(key.branch),
            "tag": tag,
            "carrier": carrier_on_record(connection, self.queue.tables, transaction),
            "committed": self.queue.clock(),
            "next_row": key.row,
            "rows": key.row + 1,
        }
        connection.execute(self._branch.insert().values(values))
        request = {"tpc_tag": tag, "tpc_row": key.row, "body": body}
        connection.execute(self._row.insert().values(request))

    def _waiting(self, connection: Connection, key: RequestKey) -> Any:
        """Return the tag and the body of one that waits to be sent again, or None."""
        q, r = self._branch.c, self._row.c
        put_back = (*self.queue.of(key.transaction, key.branch), q.tag < 0)
        query = sa.select(q.tag, r.body).join_from(
            self._branch, self._row, q.tag == r.tpc_tag
        )
        return connection.execute(query.where(*put_back, r.tpc_row == key.row)).first()

    # --- figures ---------------------------------------------------------------------

    def _backlog(self, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
        q, r = self._branch.c, self._row.c
        both = (q.tag == r.tpc_tag, r.tpc_row >= q.next_row)
        return sa.select(*columns).join_from(self._branch, self._row, sa.and_(*both))

    def count_waiting(self, connection: Connection) -> int:
        """Count requests that are not sent yet."""
        return int(connection.scalar(self._backlog(sa.func.count())) or 0)

    def gauges(self, connection: Connection) -> dict[str, float]:
        """Measure waiting and quarantined requests, and where sending has stopped."""
        oldest = sa.func.min(self._branch.c.committed)
        backlog, since = connection.execute(
            self._backlog(sa.func.count(), oldest)
        ).one()
        many = self.refusals.c.in_a_row > MOST_REFUSALS
        stopped = sa.select(sa.func.count()).select_from(self.refusals).where(many)
        age = self.queue.clock() - since if backlog else 0.0
        return {
            "tpc.outbox.backlog": backlog,
            "tpc.outbox.oldest_age": max(0.0, age),
            "tpc.outbox.quarantined": self.quarantine.count(
                connection, RelayTrouble.REFUSED
            ),
            "tpc.outbox.stopped": connection.execute(stopped).scalar_one(),
        }


def _check_taken(last: Any, key: RequestKey) -> None:
    """Raise unless the partner took it: the row that says otherwise was deleted."""
    if last.not_taken:
        raise unknown(key)
