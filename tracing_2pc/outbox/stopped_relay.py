"""Transactions that wait at a relay, why, and what a person decides about them.

Where it has stopped, a person draws one line through what waits, in the order of
publication: what is before it is in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from sqlalchemy import Connection

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.model import QuarantinedRequest, TransactionId
from tracing_2pc.core.states import Refusal, RelayTrouble, RequestState
from tracing_2pc.outbox.publications import (
    BEGUN,
    CONFIRMED,
    HIDDEN,
    STOPPED,
    UNREADABLE,
    PositionRow,
    Publications,
    key_of,
)
from tracing_2pc.outbox.quarantine import Quarantine
from tracing_2pc.outbox.queue import AGAIN, DROP
from tracing_2pc.participant.requests import RequestOrder, RequestQuery


class StoppedRelay(Quarantine):
    """Lists what waits for more than its turn, and does what a person decided.

    Each transaction is listed as one request.
    """

    def __init__(self, queue: Publications, clock: Callable[[], float]) -> None:
        super().__init__(queue, clock)
        self._publications = queue

    def page(
        self, connection: Connection, query: RequestQuery
    ) -> Sequence[QuarantinedRequest]:
        """Return a page of what waits, each with why and since when.

        All, where the relay has stopped. Else what the broker refuses; where the
        position cannot be read, the next transaction; where readers are held back, what
        they may not see.
        """
        if query.state is RequestState.DROPPED:
            return super().page(connection, query)
        refused = (
            dataclasses.replace(request, trouble=RelayTrouble.REFUSED)
            for request in super().page(connection, query)
        )
        listed = {request.key: request for request in refused}
        for transaction, since, state, why in self._troubles(connection):
            key = key_of(transaction)
            if (
                query.application in (None, transaction.application)
                and query.key in (None, key)
                and (since, str(key)) > query.after
            ):
                trouble = RelayTrouble(state)
                listed[key] = QuarantinedRequest(
                    key, query.state, 0, since, why, len(why), 0, trouble=trouble
                )
        order = sorted(listed.values(), key=lambda one: (one.since, str(one.key)))
        return order[: query.limit]

    def _troubles(
        self, connection: Connection
    ) -> Iterator[tuple[TransactionId, float, str, str]]:
        """Yield what waits for another reason than a refusal: since when, and why."""
        rows = self._publications.on_record(connection)
        waiting = self._publications.waiting(connection)
        last = _last_of(rows)
        latest = [TransactionId.parse(last)] if last else []
        if (stop := rows.get(STOPPED)) is not None:
            since = 0.0
            for transaction, committed in waiting:
                # They are listed by it: it rises from one to the next.
                since = max(committed, math.nextafter(since, math.inf))
                yield transaction, since, STOPPED, stop.why
            if not waiting:
                yield from ((t, stop.since, STOPPED, stop.why) for t in latest)
            return
        first = [waiting[0].transaction] if waiting else latest
        unseen = self._publications.unseen(connection) or latest
        for state, transactions in ((HIDDEN, unseen), (UNREADABLE, first)):
            if (row := rows.get(state)) is not None:
                yield from ((t, row.since, state, row.why) for t in transactions)

    def trouble(self, connection: Connection) -> str:
        """Return in a word the gravest reason for which something waits."""
        rows = self._publications.on_record(connection)
        found = [state for state in (STOPPED, HIDDEN, UNREADABLE) if state in rows]
        if self._publications.refused_applications(connection):
            found.append(str(RelayTrouble.REFUSED))
        return found[0] if found else ""

    def again(self, connection: Connection, order: RequestOrder) -> RequestState:
        """Try this transaction now, which the broker refuses.

        Or, where the relay has stopped, go on with it: all before it is in, nothing
        else.

        Raises:
            RefusalError: unknown: it does not wait for a person.
        """
        if not self._settle_refused(connection, order, AGAIN):
            self._draw_line(connection, order, AGAIN)
        return RequestState.WAITING

    def drop(self, connection: Connection, order: RequestOrder) -> RequestState:
        """Never publish this transaction, which the broker refuses.

        Or, where the relay has stopped, go on after it: it and all before it are in.

        Raises:
            RefusalError: unknown: it does not wait for a person; not now: it is being
                published.
        """
        if not self._settle_refused(connection, order, DROP):
            self._draw_line(connection, order, DROP)
        return RequestState.DROPPED

    def _settle_refused(
        self, connection: Connection, order: RequestOrder, action: str
    ) -> bool:
        """Do what was decided about one that was refused; False if it was not."""
        rows = self._publications.on_record(connection)
        transaction = order.key.transaction
        if STOPPED in rows:
            return False
        if (row := self._take(connection, key_of(transaction))) is None:
            return False
        if action == DROP:
            if BEGUN in rows and rows[BEGUN].position.transaction == str(transaction):
                detail = f"transaction {transaction} is being published: ask again"
                raise RefusalError(Refusal.NOT_NOW, detail)
            self._publications.give_up(connection, transaction)
        self._sign(connection, order, action, row, body=row.body)
        return True

    def _draw_line(
        self, connection: Connection, order: RequestOrder, action: str
    ) -> None:
        rows, wanted = self._publications.on_record(connection), order.key.transaction
        stop, waiting = rows.get(STOPPED), self._publications.waiting(connection)
        transactions = [w.transaction for w in waiting]
        if stop is None and self._last(connection, order.key).action == action:
            return
        is_last = action == DROP and _last_of(rows) == str(wanted)
        if stop is None or not (wanted in transactions or is_last):
            detail = f"transaction {wanted} does not wait for a person here"
            raise RefusalError(Refusal.UNKNOWN, detail)
        line = transactions.index(wanted) if wanted in transactions else 0
        if wanted in transactions:
            line += action == DROP
        self._sign(connection, order, action, stop, body=stop.why)
        confirmed = rows[CONFIRMED].position
        number = max(confirmed.number, stop.position.number)
        # What is begun next gets a number that is in no copy of the store.
        anew = confirmed._replace(number=number + 1)
        self._publications.go_on(connection, transactions[:line], anew)


def _last_of(rows: Mapping[str, PositionRow]) -> str:
    """Return what the broker has last; where it has no position, what was confirmed."""
    confirmed = rows[CONFIRMED].position.transaction
    return (rows[STOPPED].position.transaction if STOPPED in rows else "") or confirmed
