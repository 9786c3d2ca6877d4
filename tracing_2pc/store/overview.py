"""What an operator looks at: lists, one transaction's history, leases."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from tracing_2pc.model import Carrier, DeliveryRecord, TransactionId
from tracing_2pc.states import FINAL, Decision, TransactionState
from tracing_2pc.store import rows
from tracing_2pc.store import statements as sql
from tracing_2pc.store.database import Database

MOST: Final = 1_000
"""Transactions that a list shows, whatever limit it is given."""

SCANNED: Final = 10_000
"""Of each application so many of the newest transactions are looked at."""

_AT_ONCE: Final = 500
"""Ids in one statement."""

DEEDS: Final = ("abort", "deliver", "resume", "conclude", "give up", "resolve")
"""Verbs of the audit that are about one transaction."""

Deliveries = dict[str, DeliveryRecord]


@dataclasses.dataclass(frozen=True, slots=True)
class Filters:
    """Which transactions a list shows; None is any.

    Args:
        application: of this one.
        state: in this state.
        older_than: begun so many seconds ago or more.
        unfinished: only what is not finished.
        limit: how many, at most.
    """

    application: str | None = None
    state: TransactionState | None = None
    older_than: float | None = None
    unfinished: bool = False
    limit: int = 100

    @property
    def open_only(self) -> bool:
        """Whether nothing that is finished can pass."""
        return self.unfinished or (self.state is not None and self.state not in FINAL)

    @property
    def choosy(self) -> bool:
        """Whether some of what is read may not pass."""
        return self.state is not None or self.older_than is not None

    def take(self, found: Summary, now: float) -> bool:
        """Whether a transaction is one of these."""
        young = self.older_than is not None and now - found.started < self.older_than
        return not young and self.state in (None, found.state)


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """A transaction in a list. Not checked against its checksum: nothing is done by it.

    Times are Unix seconds; `rows` is None until it is decided. `own_sinks` are those of
    `pending` that only the job can reach, `untold` those that were told in part only.
    """

    transaction: TransactionId
    state: TransactionState
    decision: Decision | None
    started: float
    decided: float | None
    finished: float | None
    rows: int | None
    reason: str | None
    carrier: Carrier
    pending: tuple[str, ...] = ()
    own_sinks: frozenset[str] = frozenset()
    untold: tuple[str, ...] = ()


class Audited(NamedTuple):
    """What a person did, in their words."""

    at: float
    who: str
    what: str
    why: str
    before: str | None
    after: str | None


class Condition(NamedTuple):
    """What a log's database is like.

    Args:
        shown: its address, without what is secret.
        version: of the schema.
        durability: settings that say whether a commit outlives a crash.
    """

    shown: str
    version: int
    durability: Mapping[str, str]


class Overview:
    """Reads of the decision log that decide nothing, and the watchers' leases.

    Each read is one snapshot. Raises `DecisionLogError` when the log cannot be reached.
    """

    def __init__(
        self, database: Database, *, now: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._now = now

    def transactions(self, filters: Filters) -> list[Summary]:
        """List transactions, newest first; bounded by `MOST` and `SCANNED`."""
        most = min(filters.limit, MOST)
        with self._database.reading() as connection:
            found = [
                summary
                for application in self._applications(connection, filters)
                for summary in self._newest(connection, filters, application)
            ]
            found.sort(key=lambda one: one.started, reverse=True)
            return _with_participants(connection, found[:most])

    def _applications(
        self, connection: sa.Connection, filters: Filters
    ) -> Sequence[str]:
        if filters.application is not None:
            return [filters.application]
        return connection.scalars(sql.APPLICATIONS).all()

    def _newest(
        self, connection: sa.Connection, filters: Filters, application: str
    ) -> Iterable[Summary]:
        statement = sql.OVERVIEW_OPEN if filters.open_only else sql.OVERVIEW
        most = SCANNED if filters.choosy else filters.limit
        asked = {"of": application, "most": most}
        found = map(_summary, connection.execute(statement, asked).mappings())
        wanted = (one for one in found if filters.take(one, self._now()))
        return itertools.islice(wanted, filters.limit)

    def deliveries(self, transaction: TransactionId) -> Deliveries:
        """Return how far a decision has got with each participant, in their order."""
        asked = {"one": str(transaction)}
        with self._database.reading() as connection:
            found = connection.execute(sql.DELIVERIES_OF_ONE, asked).mappings()
            return {row["participant"]: _delivery(row) for row in found}

    def deliveries_of_unfinished(self) -> Mapping[str, Deliveries]:
        """Return the same for each transaction that is not finished, by its id."""
        by_id: dict[str, Deliveries] = defaultdict(dict)
        with self._database.reading() as connection:
            for row in connection.execute(sql.DELIVERIES_OF_OPEN).mappings():
                by_id[row["transaction_id"]][row["participant"]] = _delivery(row)
        return by_id

    def standing(
        self, transactions: Iterable[TransactionId]
    ) -> dict[TransactionId, TransactionState]:
        """Return the state of those of them that are on record."""
        ids = [str(transaction) for transaction in transactions]
        found: dict[TransactionId, TransactionState] = {}
        with self._database.reading() as connection:
            for start in range(0, len(ids), _AT_ONCE):
                asked = {"ids": ids[start : start + _AT_ONCE]}
                for id_, state in connection.execute(sql.STANDING, asked):
                    found[TransactionId.parse(id_)] = TransactionState(state)
        return found

    def clock(self) -> float:
        """Return the time by which the log judges deadlines; Unix seconds."""
        with self._database.reading() as connection:
            clock = self._database.clock(connection)
        return self._now() if clock is None else clock

    def watermarks(self) -> dict[str, int | None]:
        """Return the watermark of every application that the log knows."""
        with self._database.reading() as connection:
            return {
                row.name: row.watermark for row in connection.execute(sql.WATERMARKS)
            }

    def forgettable(
        self, application: str, finished_before: float
    ) -> tuple[int, int | None]:
        """Count what `forget` would drop, and say where the watermark would be."""
        asked = {"of": application, "finished_before": finished_before}
        with self._database.reading() as connection:
            count, watermark = connection.execute(sql.FORGETTABLE_COUNT, asked).one()
            return int(count), watermark

    def condition(self) -> Condition:
        """Say what the database is like that holds the log."""
        with self._database.reading() as connection:
            version = connection.scalar(sql.SCHEMA_VERSION)
        durability = self._database.durability()
        return Condition(self._database.shown, int(version or 0), durability)

    def reason(self, transaction: TransactionId) -> str | None:
        """Say why it was quarantined, if it ever was."""
        with self._database.reading() as connection:
            found = connection.scalar(sql.REASON, {"one": str(transaction)})
            return None if found is None else str(found)

    def audit(self, transaction: TransactionId) -> list[Audited]:
        """Return what persons have done about it, oldest first."""
        whats = [f"{verb} {transaction}" for verb in DEEDS]
        with self._database.reading() as connection:
            found = connection.execute(sql.AUDIT_OF, {"whats": whats})
            return [Audited(*row) for row in found]

    def take_lease(self, application: str, who: str, seconds: float) -> bool:
        """Take an application's lease, or renew our own; False if another holds it.

        Not flushed: a lease that a crash loses only means that two work at once, which
        is safe. It ends by itself, by this clock; one that would last much longer than
        ours is from before a clock was set back, and counts as over.
        """
        now = self._now()
        asked = {"of": application, "who": who, "at": now, "until": now + seconds}
        asked["beyond"] = now + 10 * seconds
        with self._database.relaxed() as connection:
            return bool(connection.execute(sql.TAKE_LEASE, asked).rowcount)

    def give_leases_back(self, who: str) -> None:
        """End the leases of somebody who stops."""
        with self._database.relaxed() as connection:
            connection.execute(sql.GIVE_LEASE_BACK, {"who": who})


def _with_participants(
    connection: sa.Connection, found: list[Summary]
) -> list[Summary]:
    """Add who is waited for, and who was told a part only."""
    pending: dict[str, list[str]] = defaultdict(list)
    untold: dict[str, list[str]] = defaultdict(list)
    own_sinks: dict[str, set[str]] = defaultdict(set)
    open_ = [one for one in found if one.state not in FINAL]
    for row in _rows_of(connection, sql.PENDING_OF, open_):
        pending[row.transaction_id].append(row.participant)
        if row.own_sink:
            own_sinks[row.transaction_id].add(row.participant)
    decided = [one for one in found if one.decision is not None]
    for row in _rows_of(connection, sql.UNTOLD_OF, decided):
        untold[row.transaction_id].append(row.participant)
    return [
        dataclasses.replace(
            one,
            pending=tuple(pending[id_]),
            own_sinks=frozenset(own_sinks[id_]),
            untold=tuple(untold[id_]),
        )
        for one in found
        for id_ in [str(one.transaction)]
    ]


def _rows_of(
    connection: sa.Connection,
    statement: sa.Select[tuple[object, ...]],
    found: list[Summary],
) -> Iterator[Any]:
    ids = [str(one.transaction) for one in found]
    for start in range(0, len(ids), _AT_ONCE):
        yield from connection.execute(statement, {"ids": ids[start : start + _AT_ONCE]})


def _summary(row: rows.Row) -> Summary:
    return Summary(
        TransactionId.parse(row["id"]),
        TransactionState(row["state"]),
        row["decision"] and Decision(row["decision"]),
        row["started"],
        row["decided"],
        row["finished"],
        row["rows"],
        row["reason"],
        rows.carrier_of(row["carrier"]),
    )


def _delivery(row: rows.Row) -> DeliveryRecord:
    return DeliveryRecord(
        row["participant"],
        row["acknowledged"],
        row["retries"],
        row["retry_at"],
        row["error"],
        bool(row["own_sink"]),
        row["untold"],
        row["given_up"],
    )
