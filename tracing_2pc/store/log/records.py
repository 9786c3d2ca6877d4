"""Records in the tables of the log: rows, and the checksum over them."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from tracing_2pc.core.errors import ContractError, DecisionLogError
from tracing_2pc.core.model import (
    LINKS,
    MOST_LINKS,
    BranchId,
    Carrier,
    Receipt,
    TransactionId,
    TransactionRecord,
    carrier_from_json,
    count_rows,
)
from tracing_2pc.core.states import (
    FINAL,
    Decision,
    TransactionEvent,
    TransactionState,
    Vote,
)
from tracing_2pc.store.engines.database import storable
from tracing_2pc.store.engines.writes import execute
from tracing_2pc.store.log import rules, schema
from tracing_2pc.store.log import statements as sql
from tracing_2pc.store.log.receipts import canonical

_ABORTED: Final = "aborted"
"""Begins the `reason` of an abort, before its cause and what is known of that; any
other reason is that of a quarantine."""

_DECIDE: Final = {
    Decision.COMMIT: TransactionEvent.DECIDE_COMMIT,
    Decision.ABORT: TransactionEvent.DECIDE_ABORT,
}

_PASSED: Final = re.compile(r"(?:^|; )passed by batch (\d+)$")
"""Ends the `reason` of what a stream has passed without a commit."""


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
            "has_active": bool(row.has_active),
            "clock": self._now() if self._dialect == "sqlite" else row.clock,
        }
        names = tuple(r.participant for r in rows if r.participant)
        return rules.ApplicationStatus(application, known, names, **columns)

    def register(
        self, status: rules.ApplicationStatus, batch: int, run: str, query: str | None
    ) -> None:
        """Store the run and the query, and make forgotten_through durable."""
        of = {"of": status.application, "asked": query}
        raised = status.forgotten_through != status.durable_forgotten_through
        if raised or (query and status.query is None):
            self.connection.execute(sql.CHANGE_APPLICATION, of)
        if not status.run_known:
            row = {**of, "asking": run, "at": self._now(), "in_batch": batch}
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
        found = self.load(sql.COMMITTED, of=application, in_batch=batch)
        return found[0] if found else None

    def in_state(
        self, application: str, state: TransactionState
    ) -> list[TransactionRecord]:
        """Return the unfinished transactions in this state, oldest first."""
        condition = sql.as_array_condition(sql.UNFINISHED_IN_STATE, self._dialect)
        return self.load(condition, of=application, state=str(state))

    def has_rival(self, transaction: TransactionId) -> bool:
        """Return whether the batch has a newer attempt, or a committed one."""
        of = {"of": transaction.application, "in_batch": transaction.batch}
        row = {**of, "than_attempt": transaction.attempt}
        return self.connection.execute(sql.RIVALS, row).first() is not None

    def clock(self) -> float:
        """Return the time of all who use this log; of SQLite, that of its machine."""
        if self._dialect == "sqlite":
            return self._now()
        return float(self.connection.scalar(sql.time_by(self._clock)) or 0.0)

    def load(self, which: sa.TextClause, **values: Any) -> list[TransactionRecord]:
        """Return records in batch order; refuse one that fails its checksum."""
        rows = self.connection.execute(sql.load_transactions(which), values).all()
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
            _record(row, deliveries[id_], receipts[id_])
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
        found = self.load(sql.ONE, one=str(transaction))
        return found[0] if found else None

    def add(self, record: TransactionRecord) -> None:
        """Insert a record, its participants and its receipts."""
        row = {
            "id": str(record.id),
            "application": record.id.application,
            "batch": record.id.batch,
            "attempt": record.id.attempt,
            "run": record.run,
            "started": record.started,
            "timeout": record.timeout,
            "deadline": record.deadline,
            "carrier": canonical(record.carrier),
            "reason": None,
            **_changing(record),
        }
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
        writes = sql.add_transaction(self._dialect, len(joined))
        execute(self.connection, writes, {**row, **sql.numbered(joined)})
        if receipts := _receipt_rows(record):
            self.connection.execute(sql.ADD_RECEIPTS, receipts)

    def write(
        self,
        record: TransactionRecord,
        *,
        reason: str | None = None,
        given_up: str | None = None,
    ) -> None:
        """Store a record's new state, why, and the participant that was given up."""
        if record.newly_decided and record.cause is not None:
            reason = ": ".join(filter(None, (_ABORTED, record.cause, record.detail)))
        if reason is not None:
            reason = _with_passed(storable(self.connection, reason), record.passed_by)
        receipts = _receipt_rows(record) if record.newly_decided else []
        joined = self._join_few(sql.ADD_RECEIPTS, receipts)
        writes = sql.update_transaction(self._dialect, len(joined))
        values = {"one": str(record.id), "why": reason, **_changing(record)}
        execute(self.connection, writes, {**values, **sql.numbered(joined)})
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
        links = list(dict.fromkeys(canonical(c) for r in kept for c in r.links))
        if links and record.carrier:
            texts = f"[{','.join(links[:MOST_LINKS])}]"
            record = dataclasses.replace(
                record, carrier=Carrier({**record.carrier, LINKS: texts})
            )
            row = {"one": str(record.id), "carrier": canonical(record.carrier)}
            self.connection.execute(sql.NOTE_LINKS, row)
        decided = rules.apply_event(
            record,
            _DECIDE[decision],
            decision=decision,
            decided=self._now(),
            receipts=kept,
            rows=count_rows(kept),
            cause=cause if decision is Decision.ABORT else None,
            detail=detail if decision is Decision.ABORT else None,
            newly_decided=True,
        )
        self.write(decided)
        return decided

    def note_passed(self, record: TransactionRecord) -> None:
        """Store which batch was begun after it, if any, behind its reason."""
        one = {"one": str(record.id)}
        before = self.connection.scalar(sql.REASON, one)
        reason = _with_passed(said_in(before), record.passed_by)
        self.connection.execute(sql.NOTE_REASON, {**one, "why": reason})

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
        of = {"of": record.id.application, "in_batch": record.id.batch}
        self.connection.execute(sql.FORGET_EARLIER_RECEIPTS, of)

    def sign(
        self, who: str, what: str, why: str, before: str | None, after: str
    ) -> None:
        """Store what a person did."""
        row = {"at": self._now(), "what": what, "who": who, "why": why}
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


def checksum_of(record: TransactionRecord) -> str:
    """Return SHA-256 over what the protocol reads: a torn or edited record is noticed.

    The receipts of what is committed everywhere are dropped later: not over those.
    """
    committed = record.state is TransactionState.COMMITTED
    read = {
        "id": str(record.id),
        "batch": record.id.batch,
        "attempt": record.id.attempt,
        "run": record.run,
        "state": str(record.state),
        "decision": record.decision and str(record.decision),
        "participants": record.participants,
        "deadline": record.deadline,
        "own_sinks": sorted(record.own_sinks),
        "given_up": sorted(record.given_up),
        "receipts": [
            [str(r.branch), r.participant, r.rows, r.digest, str(r.vote), r.handle]
            for r in (() if committed else record.receipts)
        ],
    }
    return hashlib.sha256(canonical(read).encode()).hexdigest()


def _changing(record: TransactionRecord) -> dict[str, Any]:
    """Return the columns that a change of state may change, checksum included."""
    return {
        "state": str(record.state),
        "decision": record.decision and str(record.decision),
        "decided": record.decided,
        "finished": record.finished,
        "rows": record.rows if record.decision else None,
        "checksum": checksum_of(record),
    }


def _record(
    row: Any, deliveries: list[Any], receipts: Iterable[Any]
) -> TransactionRecord:
    """Put a record together, and refuse it if it does not match its checksum."""
    try:
        record = TransactionRecord(
            id=TransactionId(row.application, row.batch, row.attempt),
            run=row.run,
            state=TransactionState(row.state),
            decision=row.decision and Decision(row.decision),
            participants=tuple(d.participant for d in deliveries),
            acknowledged=_names(d for d in deliveries if d.acknowledged is not None),
            carrier=Carrier.from_json(row.carrier),
            started=row.started,
            decided=row.decided,
            finished=row.finished,
            receipts=tuple(_receipt(receipt) for receipt in receipts),
            rows=row.rows or 0,
            forgotten_through=row.forgotten_through,
            timeout=row.timeout,
            deadline=row.deadline,
            own_sinks=_names(d for d in deliveries if d.own_sink),
            given_up=_names(d for d in deliveries if d.given_up is not None),
            cause=cause_of(row.reason)[0],
            detail=cause_of(row.reason)[1],
            passed_by=passed_by_of(row.reason),
            tries=max((d.retries for d in deliveries), default=0),
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


def cause_of(reason: str | None) -> tuple[str | None, str | None]:
    """Return cause and detail of an abort that was not quarantined since."""
    aborted, _, said = (said_in(reason) or "").partition(": ")
    if aborted != _ABORTED:
        return None, None
    cause, _, detail = said.partition(": ")
    return cause or None, detail or None


def said_in(reason: str | None) -> str | None:
    """Return a reason without the batch that has passed."""
    return reason and (_PASSED.sub("", reason) or None)


def passed_by_of(reason: str | None) -> int | None:
    """Return the batch that was begun after it, and refused."""
    found = _PASSED.search(reason or "")
    return int(found[1]) if found else None


def _with_passed(reason: str | None, batch: int | None) -> str | None:
    passed = None if batch is None else f"passed by batch {batch}"
    return "; ".join(filter(None, (reason, passed))) or None


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
