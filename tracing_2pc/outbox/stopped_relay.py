"""A relay that has stopped, and what a person decides: which transactions are in.

A person draws one line through what waits, in the order of publication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import Connection

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.model import (
    WHOLE,
    BranchId,
    QuarantinedRequest,
    RequestKey,
    TransactionId,
)
from tracing_2pc.core.states import Refusal, RequestState
from tracing_2pc.outbox.publications import (
    CONFIRMED,
    HIDDEN,
    STOPPED,
    UNREADABLE,
    PositionRow,
    Publications,
    Waiting,
)
from tracing_2pc.outbox.quarantine import Quarantine
from tracing_2pc.outbox.queue import AGAIN, DROP
from tracing_2pc.participant.requests import RequestOrder, RequestQuery


class StoppedRelay(Quarantine):
    """Lists what waits while the relay has stopped, and lets it go on.

    Each transaction is listed as one request, by the key of its first record.

    Args:
        queue: of publications.
        clock: Unix seconds.
    """

    def __init__(self, queue: Publications, clock: Callable[[], float]) -> None:
        super().__init__(queue, clock)
        self._publications = queue

    def page(
        self, connection: Connection, query: RequestQuery
    ) -> Sequence[QuarantinedRequest]:
        """Return a page of what waits, while the relay has stopped.

        Where its position cannot be read, or readers do not see what is published, it
        is one transaction, with why and since when: the next one, or the last.
        """
        if query.state is RequestState.DROPPED:
            return super().page(connection, query)
        rows = self._publications.on_record(connection)
        said = [rows[state] for state in (STOPPED, HIDDEN, UNREADABLE) if state in rows]
        if not said:
            return ()
        stop = said[0]
        listed = [
            QuarantinedRequest(
                key,
                query.state,
                WHOLE,
                at,
                stop.why,
                len(stop.why),
                0,
                None,
                None,
                None,
            )
            for key, at in self._keys(connection, rows)
            if query.application in (None, key.transaction.application)
            and query.key in (None, key)
            and (at, str(key)) > query.after
        ]
        listed.sort(key=lambda request: (request.since, str(request.key)))
        return listed[: query.limit]

    def _keys(
        self, connection: Connection, rows: Mapping[str, PositionRow]
    ) -> list[tuple[RequestKey, float]]:
        waiting = self._publications.waiting(connection)
        if STOPPED not in rows:
            since = min(rows[s].since for s in (HIDDEN, UNREADABLE) if s in rows)
            first = [] if HIDDEN in rows else waiting[:1]
            waiting = [w._replace(committed=since) for w in first]
        last = rows.get(STOPPED, rows[CONFIRMED])
        if not waiting and (name := last.position.transaction):
            since = max(row.since for row in rows.values())
            transaction = TransactionId.parse(name)
            waiting = [Waiting(transaction, BranchId(0, 0), since)]
        return [(RequestKey(w.transaction, w.branch, 0), w.committed) for w in waiting]

    def again(self, connection: Connection, order: RequestOrder) -> RequestState:
        """Go on with this transaction: all that is before it is in, nothing else.

        Raises:
            RefusalError: unknown: the relay has not stopped, or it does not wait.
        """
        self._draw_line(connection, order, AGAIN)
        return RequestState.WAITING

    def drop(self, connection: Connection, order: RequestOrder) -> RequestState:
        """Go on after this transaction: it and all that is before it are in.

        Raises:
            RefusalError: unknown: the relay has not stopped, or it does not wait.
        """
        self._draw_line(connection, order, DROP)
        return RequestState.DROPPED

    def _draw_line(
        self, connection: Connection, order: RequestOrder, action: str
    ) -> None:
        rows, wanted = self._publications.on_record(connection), order.key.transaction
        stop, waiting = rows.get(STOPPED), self._publications.waiting(connection)
        transactions = [w.transaction for w in waiting]
        if stop is None and self._last(connection, order.key).action == action:
            return
        is_last = action == DROP and stop and stop.position.transaction == str(wanted)
        if stop is None or not (wanted in transactions or is_last):
            detail = f"the relay has not stopped at transaction {wanted}"
            raise RefusalError(Refusal.UNKNOWN, detail)
        line = transactions.index(wanted) if wanted in transactions else 0
        if wanted in transactions:
            line += action == DROP
        self._sign_stop(connection, order, action, stop)
        confirmed = rows[CONFIRMED].position
        number = max(confirmed.number, stop.position.number)
        # What is begun next gets a number that is in no copy of the store.
        anew = confirmed._replace(number=number + 1)
        self._publications.go_on(connection, transactions[:line], anew)

    def _sign_stop(
        self,
        connection: Connection,
        order: RequestOrder,
        action: str,
        stop: PositionRow,
    ) -> None:
        signed = {
            "key": str(order.key),
            "action": action,
            "who": order.who,
            "reason": order.reason,
            "at": self._clock(),
            "status": WHOLE,
            "since": stop.since,
            "body": stop.why,
            "not_taken": False,
        }
        connection.execute(self.by_hand.insert().values(signed))
