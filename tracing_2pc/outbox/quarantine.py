"""What an outbox's partner refused, and what a person has decided about it.

A request in quarantine stays until a person has it sent again or drops it. Each of
these is one durable local transaction, which also writes who did it, when and why into
`<name>_tpc_by_hand`. A dropped request is kept there, with its body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.model import QuarantinedRequest, RequestKey
from tracing_2pc.core.states import Refusal, RequestState
from tracing_2pc.outbox.queue import AGAIN, DROP, Queue
from tracing_2pc.participant.requests import RequestOrder, RequestQuery

LONGEST_BODY: Final = 2_000
"""Characters of a body that a list shows."""


class Quarantine:
    """Lists quarantined requests, and does with them what a person decided."""

    def __init__(self, queue: Queue, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        self.by_hand = queue.by_hand

    def page(
        self, connection: Connection, query: RequestQuery
    ) -> Sequence[QuarantinedRequest]:
        """Return a page, oldest first."""
        q, h = self._queue.quarantine.c, self.by_hand.c
        about: tuple[Any, ...] = (sa.null(), sa.null(), sa.null())
        if query.state is RequestState.DROPPED:
            table, at, about = h, h.at, (h.at, h.who, h.reason)
            of = [h.action == DROP]
        else:
            table, at, of = q, q.since, []
        if query.application is not None:
            of.append(table.key.like(f"{query.application}.%"))
        if query.key is not None:
            of.append(table.key == str(query.key))
        other = self.by_hand.alias()
        times = sa.select(sa.func.count()).where(
            other.c.action == AGAIN, other.c.key == table.key
        )
        statement = (
            sa.select(
                table.key,
                table.status,
                table.since,
                sa.func.substr(table.body, 1, LONGEST_BODY),
                sa.func.length(table.body),
                times.scalar_subquery(),
                *about,
                sa.null(),  # no trouble: that is a relay's
                table.answer,
            )
            .where(*of, sa.tuple_(at, table.key) > query.after)
            .order_by(at, table.key)
            .limit(query.limit)
        )
        return [
            QuarantinedRequest(RequestKey.parse(key), query.state, *rest)
            for key, *rest in connection.execute(statement)
        ]

    def trouble(self, connection: Connection) -> str:
        """Return in a word why nothing is sent, empty if it is not known here."""
        return ""

    def again(self, connection: Connection, order: RequestOrder) -> RequestState:
        """Put a request back into its queue; idempotent.

        Raises:
            RefusalError: unknown: it never was in quarantine; conflict: it was dropped.
        """
        if (row := self._take(connection, order.key)) is not None:
            number = self._sign(connection, order, AGAIN, row)
            self._queue.put_back(connection, order.key, row.body, number)
            return RequestState.WAITING
        last = self._last(connection, order.key)
        if last.action == DROP:
            detail = f"request {order.key} was dropped by hand: it is not sent again"
            raise RefusalError(Refusal.CONFLICT, detail)
        if self._queue.holds(connection, order.key):
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
        if (row := self._take(connection, order.key)) is not None:
            self._sign(connection, order, DROP, row, body=row.body)
            return RequestState.DROPPED
        last = self._last(connection, order.key)
        if last.action == DROP:
            return RequestState.DROPPED
        if (body := self._queue.take_back(connection, order.key)) is not None:
            self._sign(connection, order, DROP, last, body=body)
            return RequestState.DROPPED
        _check_taken(last, order.key)
        detail = (
            f"request {order.key} is not in quarantine: a person had it sent again, "
            "and the partner has taken it"
        )
        raise RefusalError(Refusal.CONFLICT, detail)

    def _take(self, connection: Connection, key: RequestKey) -> Any:
        """Take a request out of the quarantine; None if it is not there."""
        table = self._queue.quarantine
        of = table.c.key == str(key)
        row = connection.execute(sa.select(table).where(of)).one_or_none()
        if row is not None:
            connection.execute(table.delete().where(of))
        return row

    def _last(self, connection: Connection, key: RequestKey) -> Any:
        """Return the newest row about what a person decided about a request."""
        h = self.by_hand
        newest = sa.select(h).where(h.c.key == str(key)).order_by(h.c.number.desc())
        row = connection.execute(newest.limit(1)).one_or_none()
        if row is None:
            raise _unknown(key)
        return row

    def _sign(
        self,
        connection: Connection,
        order: RequestOrder,
        action: str,
        row: Any,
        body: str | None = None,
    ) -> int:
        """Put on record what a person decided; return the row's number."""
        signed = {
            "key": str(order.key),
            "action": action,
            "who": order.who,
            "reason": order.reason,
            "at": self._clock(),
            "status": row.status,
            "since": row.since,
            "answer": row.answer,
            "body": body,
            "not_taken": False,
        }
        written = self.by_hand.insert().values(signed).returning(self.by_hand.c.number)
        return int(connection.execute(written).scalar_one())


def _check_taken(last: Any, key: RequestKey) -> None:
    """Raise unless the partner took it: the row that says otherwise was deleted."""
    if last.not_taken:
        raise _unknown(key)


def _unknown(key: RequestKey) -> RefusalError:
    detail = f"no request {key} is in quarantine here, nor was one dropped"
    return RefusalError(Refusal.UNKNOWN, detail)
