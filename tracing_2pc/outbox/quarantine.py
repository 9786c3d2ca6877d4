"""The quarantine, which waits for a person, and persons' decisions: one table of each.

Of a partner these are requests, with its answer; of a relay whole transactions, or all
of them, with the reason. A decision is one durable local transaction, which also writes
name, time and reason into `<name>_tpc_by_hand`. A dropped request is kept there, with
its body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.model import QuarantinedRequest, RequestKey
from tracing_2pc.core.states import Refusal, RelayTrouble, RequestState
from tracing_2pc.outbox.queue import Queue
from tracing_2pc.participant.journal.schema import TAG
from tracing_2pc.participant.requests import RequestOrder, RequestQuery
from tracing_2pc.store.engines.database import storable

LONGEST_ANSWER: Final = 2_000
"""Characters of a partner's answer that are kept."""

LONGEST_BODY: Final = 2_000
"""Characters of a body that a list shows."""

AGAIN: Final = "again"
DROP: Final = "drop"
"""What a person may decide."""

ALL: Final = ""
"""The key of what is the matter with all that a relay has to publish."""


class Quarantine:
    """Lists what waits for a person, and keeps on record what was decided."""

    def __init__(self, queue: Queue) -> None:
        self._clock = queue.clock
        tables = queue.tables
        self.table = tables.add(
            "quarantine",
            sa.Column("key", sa.String(160), primary_key=True),
            sa.Column("trouble", sa.String(12), primary_key=True),
            sa.Column("status", sa.Integer, nullable=False),
            sa.Column("since", sa.Float(53), nullable=False),
            # What the partner answered, or what is the matter at the broker.
            sa.Column("answer", sa.Text),
            # Of a request: it is nowhere else.
            sa.Column("body", sa.Text),
        )
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

    def put(
        self,
        connection: Connection,
        key: str,
        answer: str,
        *,
        trouble: RelayTrouble = RelayTrouble.REFUSED,
        status: int = 0,
        body: str | None = None,
    ) -> None:
        """Note what waits and why; since when it does so stays."""
        table, about = self.table, {"key": key, "trouble": str(trouble)}
        answer = storable(connection, answer)
        this = (table.c.key == key, table.c.trouble == str(trouble))
        again = table.update().where(*this).values(answer=answer, status=status)
        if not connection.execute(again).rowcount:
            row = {
                **about,
                "status": status,
                "since": self._clock(),
                "answer": answer or None,
                "body": body,
            }
            connection.execute(table.insert().values(row))

    def rows(self, connection: Connection, trouble: RelayTrouble) -> Sequence[Any]:
        """Return what waits for this reason, oldest first."""
        q = self.table.c
        query = sa.select(self.table).where(q.trouble == str(trouble))
        return connection.execute(query.order_by(q.since)).all()

    def clear(self, connection: Connection, key: str, *troubles: RelayTrouble) -> None:
        """Take notes back."""
        q = self.table.c
        gone = self.table.delete().where(
            q.key == key, q.trouble.in_([*map(str, troubles)])
        )
        connection.execute(gone)

    def count(self, connection: Connection, trouble: RelayTrouble) -> int:
        """Count what waits for this reason."""
        condition = self.table.c.trouble == str(trouble)
        counted = sa.select(sa.func.count()).select_from(self.table).where(condition)
        return int(connection.execute(counted).scalar_one())

    def page(
        self, connection: Connection, query: RequestQuery
    ) -> Sequence[QuarantinedRequest]:
        """Return a page of refused, or of dropped, requests; oldest first."""
        q, h = self.table.c, self.by_hand.c
        about: tuple[Any, ...] = (sa.null(), sa.null(), sa.null())
        table: Any = q
        if query.state is RequestState.DROPPED:
            table, time, answer = h, h.at, h.answer
            about = (h.at, h.who, h.reason)
            conditions = [h.action == DROP]
        else:
            time, answer = q.since, q.answer
            conditions = [q.trouble == str(RelayTrouble.REFUSED)]
        if query.application is not None:
            conditions.append(table.key.like(f"{query.application}.%"))
        if query.key is not None:
            conditions.append(table.key == str(query.key))
        other = self.by_hand.alias()
        times = sa.select(sa.func.count()).where(
            other.c.action == AGAIN, other.c.key == table.key
        )
        body = sa.func.coalesce(table.body, "")
        statement = (
            sa.select(
                table.key,
                table.status,
                table.since,
                sa.func.substr(body, 1, LONGEST_BODY),
                sa.func.length(body),
                times.scalar_subquery(),
                *about,
                sa.null(),  # no trouble: that is a relay's
                answer,
            )
            .where(*conditions, sa.tuple_(time, table.key) > query.after)
            .order_by(time, table.key)
            .limit(query.limit)
        )
        return [
            QuarantinedRequest(RequestKey.parse(key), query.state, *rest)
            for key, *rest in connection.execute(statement)
        ]

    def take(self, connection: Connection, key: RequestKey) -> Any:
        """Take out what was refused; None if it is not there."""
        table = self.table
        conditions = (
            table.c.key == str(key),
            table.c.trouble == str(RelayTrouble.REFUSED),
        )
        row = connection.execute(sa.select(table).where(*conditions)).one_or_none()
        if row is not None:
            connection.execute(table.delete().where(*conditions))
        return row

    def last(self, connection: Connection, key: RequestKey) -> Any:
        """Return the newest row about a person's decision on it.

        Raises:
            RefusalError: unknown: there is no decision.
        """
        h = self.by_hand
        newest = sa.select(h).where(h.c.key == str(key)).order_by(h.c.number.desc())
        row = connection.execute(newest.limit(1)).one_or_none()
        if row is None:
            raise unknown(key)
        return row

    def sign(
        self,
        connection: Connection,
        order: RequestOrder,
        action: str,
        row: Any,
        body: str | None = None,
    ) -> int:
        """Put on record what a person decided; return the row's number.

        `row` is what waited, or the newest row about it.
        """
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

    def note_not_taken(self, connection: Connection, key: str) -> None:
        """Note that a request which a person had sent again has left in another way."""
        h = self.by_hand.c
        again = self.by_hand.update().where(h.key == key, h.action == AGAIN)
        connection.execute(again.values(not_taken=True))


def unknown(key: RequestKey) -> RefusalError:
    """Return the refusal of a request that is neither quarantined nor dropped."""
    detail = f"no request {key} is in quarantine here, nor was one dropped"
    return RefusalError(Refusal.UNKNOWN, detail)
