"""Reads of the decision log that decide nothing, by SQL."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import heapq
import itertools
import operator
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from tracing_2pc.core.log_reader import (
    MOST,
    AuditEntry,
    Deliveries,
    LogCondition,
    Presence,
    TransactionFilter,
    TransactionPage,
    TransactionSummary,
)
from tracing_2pc.core.model import (
    DeliveryRecord,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.states import FINAL, TransactionState
from tracing_2pc.store.engines.database import Database
from tracing_2pc.store.log import listing, schema
from tracing_2pc.store.log import statements as sql
from tracing_2pc.store.log.facts import Fact, listed, read
from tracing_2pc.store.log.records import (
    Change,
    is_time,
    readable,
    state_of,
)

_LOOKED_AT: Final = 50_000
"""Transactions that a page looks at, to find a participant's."""

_LAST: Final = 2**62
"""Above each batch and attempt."""

_AT_ONCE: Final = 500  # ids in one statement

_values_of_delivery: Final = operator.attrgetter(
    *(field.name for field in dataclasses.fields(DeliveryRecord))
)


class _Part(NamedTuple):
    """One application's part of a page, and where the search for more stopped."""

    rows: Sequence[Any]
    stopped: TransactionId | None


class SqlLogReader:
    """`LogReader` on SQLite or PostgreSQL. Safe to use from several threads."""

    def __init__(
        self, database: Database, *, now: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._now = now

    def _change(self, connection: sa.Connection) -> Change:
        return Change(connection, self._database.clock, self._now)

    def _ask(self, statement: sa.Executable, **values: Any) -> Sequence[Any]:
        with self._database.look() as connection:
            return connection.execute(statement, values).all()

    @property
    def address(self) -> str:
        return self._database.address

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Change]:
        """Read any of it, all as it is at one moment."""
        with self._database.read() as connection:
            yield self._change(connection)

    def read(self, transaction: TransactionId) -> TransactionRecord | None:
        with self._database.read() as connection:
            return self._change(connection).read_unlocked(transaction)

    def unfinished(self, application: str | None = None) -> list[TransactionRecord]:
        which, parameters = sql.UNFINISHED, {}
        some = sql.SOME_UNFINISHED
        if application is not None:
            which, parameters = sql.UNFINISHED_OF, {"of": application}
            some = sql.SOME_UNFINISHED_OF
        if not self._ask(some, **parameters):
            return []  # as a rule, and one round trip then
        with self._database.read() as connection:
            condition = sql.as_array_condition(which, connection.dialect.name)
            return self._change(connection).load(condition, **parameters)

    def unfinished_applications(self) -> list[str]:
        return [row.application for row in self._ask(sql.UNFINISHED_APPLICATIONS)]

    def applications(self) -> list[str]:
        return [row.name for row in self._ask(listing.APPLICATIONS)]

    def application_of(self, query: str) -> str | None:
        rows = self._ask(listing.APPLICATION_OF, asked=query)
        return rows[0].name if rows else None

    def transactions(self, chosen: TransactionFilter) -> list[TransactionSummary]:
        return self.search(chosen).rows

    def search(self, chosen: TransactionFilter) -> TransactionPage:
        most = min(chosen.limit, MOST)
        with self._database.read() as connection:
            if chosen.application is None:
                applications = connection.scalars(listing.APPLICATIONS).all()
            else:
                applications = [chosen.application]
            each = _LOOKED_AT // max(1, len(applications)) + 1
            parts = {
                name: self._look(connection, chosen, name, most, each)
                for name in applications
            }
            merged = heapq.merge(
                *(part.rows for part in parts.values()),
                key=_started,
                reverse=not chosen.open_only,
            )
            # Only now: of a hundred applications most of the rows are not shown.
            facts = listed(schema.absent_facts(connection))
            first = itertools.islice(merged, most)
            summaries = [_summary(facts, row) for row in first]
            deliveries = defaultdict(list)
            ids = (summary.transaction for summary in summaries)
            for row in _rows_of(connection, listing.OUTSTANDING_OF, ids):
                deliveries[row.transaction_id].append(row)
        rows = [
            _with_participants(summary, deliveries[str(summary.transaction)])
            for summary in summaries
        ]
        return TransactionPage(rows, _beyond(chosen, parts, rows))

    def _look(
        self,
        connection: sa.Connection,
        chosen: TransactionFilter,
        application: str,
        most: int,
        looked_at: int,
    ) -> _Part:
        """Read an application's, one more than fit; and where it stopped to look."""
        order, wanted = "ASC" if chosen.open_only else "DESC", list[str]()
        if chosen.open_only:
            wanted.append("unfinished")
        elif chosen.state not in (None, TransactionState.COMMITTED):
            wanted.append("others")
        asked: dict[str, Any] = {"of": application, "most": most + 1}
        for name in ("state", "since", "until", "participant"):
            if (value := getattr(chosen, name)) is not None:
                wanted.append(name)
                asked[name] = str(value) if name == "state" else value
        low, high = self._batches(connection, chosen, application)
        start = (low, 0) if chosen.open_only else (high, _LAST)
        for id_ in chosen.beyond:
            if id_.application == application:
                further = max if chosen.open_only else min
                start = further(start, (id_.batch, id_.attempt))
        # A bound, too: PostgreSQL begins there, and not at what it is to be beyond.
        low, high = (start[0], high) if chosen.open_only else (low, start[0])
        asked |= {"low": low, "high": high, "looked_at": looked_at}
        asked |= {"from_batch": start[0], "from_attempt": start[1]}
        absent = schema.absent_facts(connection)
        lists = listing.summaries(order, *wanted, absent=absent)
        rows = connection.execute(lists, asked).all()
        if chosen.participant is None or len(rows) > most:
            return _Part(rows, None)
        last = connection.execute(listing.last_looked_at(order, *wanted), asked).first()
        if last is None or last.looked_at < looked_at:
            return _Part(rows, None)
        return _Part(rows, _id(last.id))

    def _batches(
        self, connection: sa.Connection, chosen: TransactionFilter, application: str
    ) -> tuple[int, int]:
        """Return the first and the last batch that can pass.

        Batches are begun one after another: where a time lies among them is found in a
        few steps along the index, and no index of times is kept up for each batch.
        """
        if chosen.batch is not None:
            return chosen.batch, chosen.batch
        if chosen.since is None and chosen.until is None:
            return 0, _LAST

        def begun(statement: sa.Executable) -> Callable[[int], float]:
            parameters = {"of": application}
            return lambda moment: (
                connection.scalar(statement, {**parameters, "at": moment}) or 0.0
            )

        parameters = {"of": application}
        oldest, newest = connection.execute(listing.OLDEST_AND_NEWEST, parameters).one()
        if oldest is None:
            return 0, 0
        all_, low, high = range(oldest, newest + 1), oldest, newest
        if (since := chosen.since) is not None:
            low += bisect.bisect_left(all_, since, key=begun(listing.BEGUN_THROUGH))
        if (until := chosen.until) is not None:
            high = oldest - 1
            high += bisect.bisect_right(all_, until, key=begun(listing.BEGUN_FROM))
        return low, high

    def deliveries(self, transaction: TransactionId) -> Deliveries:
        rows = self._ask(sql.DELIVERIES_OF_ONE, one=str(transaction))
        return {row.participant: _delivery(row) for row in rows}

    def deliveries_at(
        self, participant: str, transactions: Iterable[TransactionId]
    ) -> dict[TransactionId, DeliveryRecord]:
        with self._database.read() as connection:
            rows = _rows_of(
                connection, listing.DELIVERIES_AT, transactions, by=participant
            )
            return {_id(row.transaction_id): _delivery(row) for row in rows}

    def deliveries_of_unfinished(self) -> Mapping[str, Deliveries]:
        by_id: dict[str, Deliveries] = defaultdict(dict)
        condition = sql.as_array_condition(
            sql.UNFINISHED, self._database.engine.dialect.name
        )
        for row in self._ask(sql.load_parts(schema.delivery, condition)):
            # One that is damaged is refused with its record: the others are read.
            by_id[row.transaction_id][row.participant] = _unchecked(row)
        return by_id

    def passed(self) -> list[TransactionRecord]:
        with self._database.read() as connection:
            return self._change(connection).load(listing.PASSED)

    def newest_commits(self, since: float) -> list[TransactionRecord]:
        with self._database.read() as connection:
            return self._change(connection).load(listing.NEWEST_COMMITS, since=since)

    def states_of(
        self, transactions: Iterable[TransactionId]
    ) -> dict[TransactionId, TransactionState]:
        with self._database.read() as connection:
            return {
                _id(row.id): state_of(row.id, row.state)
                for row in _rows_of(connection, listing.STATES_OF, transactions)
            }

    def presences(self, application: str | None = None) -> list[Presence]:
        which, parameters = listing.PRESENCES, {}
        if application is not None:
            which, parameters = listing.PRESENCES_OF, {"of": application}
        with self._database.read() as connection:
            rows = connection.execute(which, parameters).all()
        return [Presence(*row) for row in rows if _is_presence(row)]

    def clock(self) -> float:
        with self._database.read() as connection:
            return self._change(connection).clock()

    def forgotten_by_application(self) -> dict[str, int | None]:
        return {
            row.name: row.forgotten_through for row in self._ask(listing.APPLICATIONS)
        }

    def forgettable(
        self, application: str, finished_before: float
    ) -> tuple[int, int | None]:
        asked = {"of": application, "finished_before": finished_before}
        ((count, forgotten_through),) = self._ask(sql.FORGETTABLE_COUNT, **asked)
        return count, forgotten_through

    def read_only_reason(self) -> str:
        return self._database.read_only_reason()

    def condition(self) -> LogCondition:
        with self._database.read() as connection:
            version = connection.scalar(sa.select(schema.LOG.identity.c.version)) or 0
            lacking = schema.LOG.lacking(connection)
        durability = self._database.durability()
        address = self._database.address
        return LogCondition(address, version, durability, tuple(lacking))

    def audit(self, transaction: TransactionId) -> list[AuditEntry]:
        rows = self._ask(listing.AUDIT_OF, one=str(transaction))
        return [AuditEntry(*row) for row in rows]

    def audits(
        self, application: str | None, before: float, limit: int
    ) -> list[AuditEntry]:
        asked: dict[str, Any] = {"before": before, "most": limit}
        asked |= {"about": application or "", "like": f"{application}.%"}
        if application is None:
            asked["like"] = "%"
        rows = self._ask(listing.AUDIT, **asked)
        return [AuditEntry(*row) for row in rows]


def _beyond(
    chosen: TransactionFilter,
    parts: Mapping[str, _Part],
    shown: Iterable[TransactionSummary],
) -> tuple[TransactionId, ...]:
    """Return where the next page begins in each application; nothing at the end."""
    ends = {id_.application: id_ for id_ in chosen.beyond}
    count = Counter[str]()
    for summary in shown:
        ends[summary.transaction.application] = summary.transaction
        count[summary.transaction.application] += 1
    more = False
    for name, part in parts.items():
        if count[name] < len(part.rows):
            more = True
        elif part.stopped is not None:
            more, ends[name] = True, part.stopped
    return tuple(ends.values()) if more else ()


def _rows_of(
    connection: sa.Connection,
    statement: sa.Executable,
    transactions: Iterable[TransactionId],
    **values: str,
) -> Iterator[Any]:
    ids = [str(transaction) for transaction in transactions]
    for start in range(0, len(ids), _AT_ONCE):
        some = {"ids": ids[start : start + _AT_ONCE], **values}
        yield from connection.execute(statement, some)


def _with_participants(
    summary: TransactionSummary, deliveries: list[Any]
) -> TransactionSummary:
    """Add the participants that are waited for, and those told a part only."""
    pending = [row for row in deliveries if _delivery(row).pending]
    if summary.state in FINAL:
        pending = []
    return dataclasses.replace(
        summary,
        pending=tuple(row.participant for row in pending),
        own_sinks=frozenset(row.participant for row in pending if row.own_sink),
        untold=tuple(row.participant for row in deliveries if row.untold is not None),
    )


def _is_presence(row: Any) -> bool:
    """Whether each value is of its type: a damaged row is left out."""
    times = [row.since, row.seen, *([] if row.ended is None else [row.ended])]
    texts = [row.application, row.host, "" if row.error is None else row.error]
    return (
        all(isinstance(time, float) and time > schema.EPOCH for time in times)
        and all(isinstance(text, str) for text in texts)
        and isinstance(row.process, int)
    )


def _id(text: str) -> TransactionId:
    with readable(text):
        return TransactionId.parse(text)


def _started(row: Any) -> float:
    with readable(row.id):
        return float(row.started)


def _summary(facts: Iterable[Fact], row: Any) -> TransactionSummary:
    with readable(row.id):
        id_ = TransactionId.parse(row.id)
        return TransactionSummary(transaction=id_, **read(facts, row))


def _delivery(row: Any) -> DeliveryRecord:
    with readable(row.transaction_id):
        times = is_time(row.acknowledged) and is_time(row.given_up)
        if not times or row.untold == 0:
            raise ValueError(row)
        return _unchecked(row)


def _unchecked(row: Any) -> DeliveryRecord:
    return DeliveryRecord(*_values_of_delivery(row))
