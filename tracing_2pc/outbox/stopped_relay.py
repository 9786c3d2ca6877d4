"""Transactions that wait at a relay, the reasons, and a person's decisions.

Where it has stopped, a person draws one line through the waiting transactions, in the
order of publication: those before it are in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.model import QuarantinedRequest, TransactionId
from tracing_2pc.core.states import Refusal, RelayTrouble, RequestState
from tracing_2pc.outbox.publications import (
    BEGUN,
    CONFIRMED,
    FOUND,
    HIDDEN,
    REFUSED,
    STOPPED,
    UNREADABLE,
    Publications,
)
from tracing_2pc.outbox.quarantine import AGAIN, DROP
from tracing_2pc.outbox.queue import key_of
from tracing_2pc.participant.requests import RequestOrder, RequestQuery


class StoppedRelay:
    """Lists transactions that wait for more than their turn; executes decisions.

    Each transaction is listed as one request, whose body is the reason.
    """

    def __init__(self, publications: Publications) -> None:
        self._publications = publications
        self._quarantine = publications.quarantine

    def page(
        self, connection: Connection, query: RequestQuery
    ) -> Sequence[QuarantinedRequest]:
        """Return a page of waiting transactions, each with its reason and time.

        All, where the relay has stopped. Else those that the broker refuses; where the
        position cannot be read, the next one; where readers are held back, those that
        they may not see.
        """
        requests = self._quarantine.page(connection, query)
        if query.state is RequestState.DROPPED:
            return [dataclasses.replace(request, answer=None) for request in requests]
        if self._quarantine.count(connection, STOPPED):
            requests = []  # all that waits is listed by that
        listed = {request.key: _refused(request) for request in requests}
        for transaction, since, trouble, cause in self._troubles(connection):
            key = key_of(transaction)
            if (
                query.application in (None, transaction.application)
                and query.key in (None, key)
                and (since, str(key)) > query.after
            ):
                listed[key] = QuarantinedRequest(
                    key, query.state, 0, since, cause, len(cause), 0, trouble=trouble
                )
        order = sorted(
            listed.values(), key=lambda request: (request.since, str(request.key))
        )
        return order[: query.limit]

    def _troubles(
        self, connection: Connection
    ) -> Iterator[tuple[TransactionId, float, RelayTrouble, str]]:
        """Yield what waits for another reason than a refusal: since when, and why."""
        waiting = self._publications.waiting(connection)
        last = self._last(connection)
        latest = [TransactionId.parse(last)] if last else []
        for stop in self._quarantine.rows(connection, STOPPED):
            since = 0.0
            for transaction, committed in waiting:
                # They are listed by it: it rises from one to the next.
                since = max(committed, math.nextafter(since, math.inf))
                yield transaction, since, STOPPED, stop.answer
            if not waiting:
                yield from ((t, stop.since, STOPPED, stop.answer) for t in latest)
            return
        first = [waiting[0].transaction] if waiting else latest
        unseen = self._publications.unseen(connection) or latest
        for trouble, transactions in ((HIDDEN, unseen), (UNREADABLE, first)):
            for row in self._quarantine.rows(connection, trouble):
                yield from ((t, row.since, trouble, row.answer) for t in transactions)

    def unreadable(self, connection: Connection) -> list[str]:
        """Return why nothing can be published now, also where nothing waits."""
        rows = self._quarantine.rows(connection, UNREADABLE)
        return [f"nothing is published: {row.answer}" for row in rows]

    def trouble(self, connection: Connection) -> str:
        """Return in a word the gravest reason for which something waits."""
        for trouble in (STOPPED, HIDDEN, UNREADABLE, REFUSED):
            if self._quarantine.count(connection, trouble):
                return str(trouble)
        return ""

    def again(self, connection: Connection, order: RequestOrder) -> RequestState:
        """Try this transaction now, which the broker refuses.

        Or, where the relay has stopped, go on with it: all before it is in, nothing
        else.

        Raises:
            RefusalError: unknown: it does not wait for a person.
        """
        self._decide(connection, order, AGAIN)
        return RequestState.WAITING

    def drop(self, connection: Connection, order: RequestOrder) -> RequestState:
        """Never publish this transaction, which the broker refuses.

        Or, where the relay has stopped, go on after it: it and all before it are in.

        Raises:
            RefusalError: unknown: it does not wait for a person; not now: it is being
                published.
        """
        self._decide(connection, order, DROP)
        return RequestState.DROPPED

    def _decide(self, connection: Connection, order: RequestOrder, action: str) -> None:
        transaction = order.key.transaction
        if stopped := self._quarantine.rows(connection, STOPPED):
            self._draw_line(connection, order, action, stopped[0])
        elif (row := self._quarantine.take(connection, key_of(transaction))) is None:
            # As asked again; else nothing waits for a person here.
            if not self._was_decided(connection, order, action):
                raise _unknown(transaction)
        else:
            if action == DROP:
                self._give_up(connection, transaction)
            self._quarantine.sign(connection, order, action, row, body=row.answer)

    def _was_decided(
        self, connection: Connection, order: RequestOrder, action: str
    ) -> bool:
        return bool(self._quarantine.last(connection, order.key).action == action)

    def _give_up(self, connection: Connection, transaction: TransactionId) -> None:
        begun = self._publications.positions_in(connection).get(BEGUN)
        if begun is not None and begun.transaction == str(transaction):
            detail = f"transaction {transaction} is being published: ask again"
            raise RefusalError(Refusal.NOT_NOW, detail)
        self._publications.give_up(connection, transaction)

    def _draw_line(
        self, connection: Connection, order: RequestOrder, action: str, stop: Any
    ) -> None:
        wanted = order.key.transaction
        waiting = self._publications.waiting(connection)
        transactions = [w.transaction for w in waiting]
        is_last = action == DROP and self._last(connection) == str(wanted)
        if not (wanted in transactions or is_last):
            raise _unknown(wanted)
        line = transactions.index(wanted) if wanted in transactions else 0
        if wanted in transactions:
            line += action == DROP
        self._quarantine.sign(connection, order, action, stop, body=stop.answer)
        positions = self._publications.positions_in(connection)
        number = max(positions[CONFIRMED].number, positions[FOUND].number)
        # What is begun next gets a number that is in no copy of the store.
        anew = positions[CONFIRMED]._replace(number=number + 1)
        self._publications.go_on(connection, transactions[:line], anew)

    def _last(self, connection: Connection) -> str:
        """Return the broker's last transaction, or without a position the confirmed."""
        positions = self._publications.positions_in(connection)
        transaction = positions[FOUND].transaction if FOUND in positions else ""
        return transaction or positions[CONFIRMED].transaction


def _refused(request: QuarantinedRequest) -> QuarantinedRequest:
    answer = request.answer or ""
    return dataclasses.replace(
        request, trouble=REFUSED, body=answer, length=len(answer), answer=None
    )


def _unknown(transaction: TransactionId) -> RefusalError:
    detail = f"transaction {transaction} does not wait for a person here"
    return RefusalError(Refusal.UNKNOWN, detail)
