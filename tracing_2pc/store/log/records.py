"""Records in the tables of the log: rows, and the checksum over them."""

from __future__ import annotations

import collections
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from tracing_2pc.core.errors import ContractError, DecisionLogError
from tracing_2pc.core.model import (
    MOST_LINKS,
    BranchId,
    JournalAt,
    Receipt,
    TransactionId,
    TransactionRecord,
    carrier_from_json,
    count_rejected,
    count_rows,
)
from tracing_2pc.core.states import (
    FINAL,
    Decision,
    TransactionEvent,
    TransactionState,
    Vote,
)
from tracing_2pc.store.engines.writes import execute
from tracing_2pc.store.log import facts, rules, schema
from tracing_2pc.store.log import statements as sql
from tracing_2pc.store.log.facts import checksum_of
from tracing_2pc.store.log.receipts import canonical

_DECIDE: Final = {
    Decision.COMMIT: TransactionEvent.DECIDE_COMMIT,
    Decision.ABORT: TransactionEvent.DECIDE_ABORT,
}


class Change:
    """One change of the log, in an open transaction: all of it is stored, or nothing.

    `status` and `read` lock the application until it ends.
    """

    def __init__(
        self, connection: sa.Connection, clock: str, now: Callable[[], float]
    ) -> None:
        self.connection = connection
        self._clock = clock
        self._now = now
        self._dialect = connection.dialect.name

    def status(
        self, application: str, batch: int, run: str, query: str | None
    ) -> rules.ApplicationStatus:
        """Return what the log knows of an application, which is on record then."""
        ask = self.connection.execute
        asked = {"of": application, "in_batch": batch, "asking": run, "asked": query}
        known = ask(sql.LOCK_APPLICATION, asked).first() is not None
        if not known:
            self.add_application(application, None)
            ask(sql.LOCK_APPLICATION, asked)
        rows = ask(sql.status(self._clock), asked).all()
        row = rows[0]
        columns = {k: v for k, v in row._mapping.items() if k != "participant"}
        columns |= {
            "run_known": bool(row.run_known),
            "state": row.state and state_of(row.newest, row.state),
            "attempt": row.attempt or 0,
            "carrier": carrier_from_json(row.carrier or "{}"),
            "journals": _journals(row),
            "has_active": bool(row.has_active),
            "clock": self._now() if self._dialect == "sqlite" else row.clock,
        }
        names = tuple(r.participant for r in rows if r.participant)
        return rules.ApplicationStatus(application, known, names, **columns)

    def register(
        self, status: rules.ApplicationStatus, batch: int, run: str, query: str | None
    ) -> None:
        """Store the run and the query, and make forgotten_through durable."""
        keys = {"of": status.application, "asked": query}
        raised = status.forgotten_through != status.durable_forgotten_through
        if raised or (query and status.query is None):
            self.connection.execute(sql.CHANGE_APPLICATION, keys)
        if not status.run_known:
            row = {**keys, "asking": run, "at": self._now(), "in_batch": batch}
            self.connection.execute(sql.REGISTER_RUN, row)

    def add_application(
        self, application: str, forgotten_through: int | None, query: str | None = None
    ) -> bool:
        """Store an application; False, and nothing, if it or its query is known."""
        row = {"of": application, "forgotten_through": forgotten_through}
        row |= {"asked": query}
        return bool(self.connection.execute(sql.ADD_APPLICATION, row).rowcount)

    def committed(self, application: str, batch: int) -> TransactionRecord | None:
        """Return the attempt of a batch that is decided commit."""
        records = self.load(sql.COMMITTED, of=application, in_batch=batch)
        return records[0] if records else None

    def in_state(
        self, application: str, state: TransactionState
    ) -> list[TransactionRecord]:
        """Return the unfinished transactions in this state, oldest first."""
        condition = sql.as_array_condition(sql.UNFINISHED_IN_STATE, self._dialect)
        return self.load(condition, of=application, state=str(state))

    def has_rival(self, transaction: TransactionId) -> bool:
        """Return whether the batch has a newer attempt, or a committed one."""
        keys = {"of": transaction.application, "in_batch": transaction.batch}
        row = {**keys, "than_attempt": transaction.attempt}
        return self.connection.execute(sql.RIVALS, row).first() is not None

    def clock(self) -> float:
        """Return the time of all who use this log; of SQLite, that of its machine."""
        if self._dialect == "sqlite":
            return self._now()
        return float(self.connection.scalar(sql.time_by(self._clock)) or 0.0)

    def load(self, which: sa.TextClause, **values: Any) -> list[TransactionRecord]:
        """Return records in batch order; refuse one that fails its checksum."""
        absent = schema.absent_facts(self.connection)
        known, loads = facts.present(absent), sql.load_transactions(which, absent)
        rows = self.connection.execute(loads, values).all()
        if not rows:
            return []
        transactions: dict[str, Any] = {}
        deliveries: dict[str, list[Any]] = collections.defaultdict(list)
        for row in rows:
            transactions[row.id] = row
            if row.participant is not None:
                deliveries[row.id].append(row)
        receipts: dict[str, list[Any]] = collections.defaultdict(list)
        if any(row.decision is not None for row in rows):  # they come with it
            parts = sql.load_parts(schema.receipt, which)
            for part in self.connection.execute(parts, values):
                receipts[part.transaction_id].append(part)
        return [
            _record(known, row, deliveries[id_], receipts[id_])
            for id_, row in transactions.items()
        ]

    def read(self, transaction: TransactionId) -> TransactionRecord | None:
        """Lock the application, then return the record, None if there is none."""
        self.connection.execute(sql.LOCK_APPLICATION, {"of": transaction.application})
        return self.read_unlocked(transaction)

    def read_known(self, transaction: TransactionId) -> TransactionRecord:
        """Lock the application, then return the record; refuse where there is none."""
        if (record := self.read(transaction)) is None:
            raise ContractError(
                f"{transaction}: the log has no record of it",
                transaction_id=str(transaction),
            )
        return record

    def read_unlocked(self, transaction: TransactionId) -> TransactionRecord | None:
        """Return the record, None if there is none."""
        records = self.load(sql.ONE, one=str(transaction))
        return records[0] if records else None

    def add(self, record: TransactionRecord) -> None:
        """Insert a record, its participants and its receipts."""
        absent = schema.absent_facts(self.connection)
        row = facts.stored(self.connection, record, facts.present(absent))
        deliveries = [
            {
                "transaction_id": str(record.id),
                "participant": participant,
                "position": position,
                "acknowledged": (
                    record.finished if participant in record.acknowledged else None
                ),
                "retries": 0,
                "own_sink": participant in record.own_sinks,
                **dict.fromkeys(("retry_at", "error", "untold", "given_up")),
            }
            for position, participant in enumerate(record.participants)
        ]
        joined = self._join_few(sql.ADD_DELIVERIES, deliveries)
        writes = sql.add_transaction(self._dialect, len(joined), absent)
        execute(self.connection, writes, {**row, **sql.numbered(joined)})
        if receipts := _receipt_rows(record):
            self.connection.execute(sql.ADD_RECEIPTS, receipts)

    def write(self, record: TransactionRecord, *, given_up: str | None = None) -> None:
        """Store a record's new state, and the participant that was given up."""
        receipts = _receipt_rows(record) if record.newly_decided else []
        joined = self._join_few(sql.ADD_RECEIPTS, receipts)
        absent = schema.absent_facts(self.connection)
        changing = facts.present(absent, only_changes=True)
        writes = sql.update_transaction(self._dialect, len(joined), absent)
        values = facts.stored(self.connection, record, changing)
        values |= {"one": str(record.id), **sql.numbered(joined)}
        execute(self.connection, writes, values)
        if given_up is not None:
            row = {"one": str(record.id), "by": given_up, "at": self._now()}
            self.connection.execute(sql.GIVE_UP, row)

    def decide(
        self,
        record: TransactionRecord,
        decision: Decision,
        cause: str | None,
        receipts: Sequence[Receipt] = (),
        detail: str | None = None,
    ) -> TransactionRecord:
        """Store a decision with the receipts that a commit keeps; return the record."""
        kept = tuple(receipts) if decision is Decision.COMMIT else ()
        links = {canonical(c): c for r in kept for c in r.links if record.carrier}
        decided = rules.apply_event(
            record,
            _DECIDE[decision],
            decision=decision,
            decided=self._now(),
            receipts=kept,
            rows=count_rows(kept, record.rejects),
            rejected=count_rejected(kept, record.rejects),
            cause=cause if decision is Decision.ABORT else None,
            detail=detail if decision is Decision.ABORT else None,
            links=tuple(links.values())[:MOST_LINKS],
            newly_decided=True,
        )
        self.write(decided)
        return decided

    def _join_few(
        self, add: sa.Insert, rows: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return a few rows, to be added with another write; add more at once."""
        if len(rows) <= sql.MOST_JOINED:
            return rows
        self.connection.execute(add, rows)
        return []

    def drop_receipts_before(self, record: TransactionRecord) -> None:
        """Drop the receipts of the commit before this one, if that is finished."""
        keys = {"of": record.id.application, "in_batch": record.id.batch}
        self.connection.execute(sql.FORGET_EARLIER_RECEIPTS, keys)

    def sign(
        self,
        verb: str,
        about: TransactionId | str,
        who: str,
        reason: str,
        before: str | None,
        after: str,
    ) -> None:
        """Store what a person did."""
        row = {"at": self._now(), "verb": verb, "about": str(about)}
        row |= {"who": who, "why": reason}
        row |= {"before": before and str(before), "after": str(after)}
        self.connection.execute(sql.ADD_AUDIT, row)


def _receipt_rows(record: TransactionRecord) -> list[dict[str, Any]]:
    return [
        {
            "transaction_id": str(record.id),
            "participant": receipt.participant,
            "branch": str(receipt.branch),
            "position": position,
            "vote": str(receipt.vote),
            "rows": receipt.rows,
            "digest": receipt.digest,
            "handle": canonical(receipt.handle),
        }
        for position, receipt in enumerate(record.receipts)
    ]


def _record(
    known: Iterable[facts.Fact],
    row: Any,
    deliveries: list[Any],
    receipts: Iterable[Any],
) -> TransactionRecord:
    """Put a record together, and refuse it if it does not match its checksum."""
    try:
        record = TransactionRecord(
            id=TransactionId(row.application, row.batch, row.attempt),
            participants=tuple(d.participant for d in deliveries),
            acknowledged=_names(d for d in deliveries if d.acknowledged is not None),
            receipts=tuple(_receipt(receipt) for receipt in receipts),
            forgotten_through=row.forgotten_through,
            own_sinks=_names(d for d in deliveries if d.own_sink),
            given_up=_names(d for d in deliveries if d.given_up is not None),
            tries=max((d.retries for d in deliveries), default=0),
            **facts.read(known, row),
        )
        # Rule 9: a record that cannot be trusted is not read as something else.
        if str(record.id) == row.id and checksum_of(record) == row.checksum:
            # What is stored by itself is not in it: no single bit makes it so.
            is_final = record.state in FINAL
            decided = (record.decided is not None) == (record.decision is not None)
            if (
                decided
                and is_final == (record.finished is not None)
                and all(is_time(d.acknowledged) for d in deliveries)
                and (record.passed_by is None or record.passed_by > record.id.batch)
            ):
                return record
    except (TypeError, ValueError):
        pass  # not even readable: refused like any other mismatch
    raise _damaged(row.id)


def is_time(stored: float | None) -> bool:
    """Whether it is no time, or one that no damaged bit has made of a NULL."""
    return stored is None or stored > schema.EPOCH


def state_of(id_: str, state: str) -> TransactionState:
    """Return the state in a row that is read without its record, if there is one."""
    with readable(id_):
        return TransactionState(state)


@contextlib.contextmanager
def readable(id_: str) -> Iterator[None]:
    """Refuse, by `DecisionLogError`, a row that is read alone and is damaged."""
    try:
        yield
    except (TypeError, ValueError):
        raise _damaged(id_) from None


def _damaged(id_: str) -> DecisionLogError:
    return DecisionLogError(
        f"record {id_} does not match its checksum: refused",
        transaction_id=str(id_),
    )


def _journals(row: Any) -> dict[str, JournalAt]:
    """Return the journals of the newest transaction."""
    with readable(row.newest):
        return facts.journals_from_json(row.journals)


def _names(deliveries: Iterable[Any]) -> frozenset[str]:
    return frozenset(delivery.participant for delivery in deliveries)


def _receipt(row: Any) -> Receipt:
    return Receipt(
        branch=BranchId.parse(row.branch),
        participant=row.participant,
        rows=row.rows,
        digest=row.digest,
        vote=Vote(row.vote),
        handle=json.loads(row.handle),
    )
