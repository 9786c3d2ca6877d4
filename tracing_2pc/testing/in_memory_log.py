"""A decision log without a database: what it promises is what the real one does."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

from tracing_2pc.core.model import TransactionId, TransactionRecord
from tracing_2pc.core.states import FINAL, Decision, TransactionState
from tracing_2pc.store.log import rules
from tracing_2pc.store.log.decision_log import BaseDecisionLog


@dataclasses.dataclass(slots=True)
class _Application:
    forgotten_through: int | None
    durable_forgotten_through: int | None = None
    query: str | None = None
    runs: list[str] = dataclasses.field(default_factory=list)


class _Change:
    """The records; a change is applied at once, under the log's lock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.applications: dict[str, _Application] = {}
        self.records: dict[TransactionId, TransactionRecord] = {}
        self.reasons: dict[TransactionId, str] = {}
        self.audit: list[tuple[str, ...]] = []

    def of(self, application: str | None) -> list[TransactionRecord]:
        """Return the records of an application, or all, oldest first."""
        ids = [i for i in self.records if application in (None, i.application)]
        return [record for i in sorted(ids) if (record := self.read(i))]

    def status(
        self, application: str, batch: int, run: str, query: str | None
    ) -> rules.ApplicationStatus:
        known = self.applications.get(application)
        row = known or _Application(None)
        records = self.of(application)
        attempts = self._attempts(application, batch)
        quarantined = self.in_state(application, TransactionState.QUARANTINED)
        owners = (
            name
            for name, other in self.applications.items()
            if query and name != application and other.query == query
        )
        commits = (r.id.batch for r in records if r.decision is Decision.COMMIT)
        return rules.ApplicationStatus(
            application=application,
            known=known is not None,
            query=row.query,
            query_owner=next(owners, None),
            forgotten_through=row.forgotten_through,
            durable_forgotten_through=row.durable_forgotten_through,
            quarantined=str(quarantined[0].id) if quarantined else None,
            reason=self.reasons[quarantined[0].id] if quarantined else None,
            newest_run=row.runs[-1] if row.runs else None,
            run_known=run in row.runs,
            committed=max(commits, default=None),
            newest=str(records[-1].id) if records else None,
            state=records[-1].state if records else None,
            participants=records[-1].participants if records else (),
            attempt=attempts[-1].id.attempt if attempts else 0,
            carrier=attempts[-1].carrier if attempts else {},
            has_active=bool(self.in_state(application, TransactionState.ACTIVE)),
            clock=self.clock(),
        )

    def register(
        self, status: rules.ApplicationStatus, batch: int, run: str, query: str | None
    ) -> None:
        self.add_application(status.application, None)
        row = self.applications[status.application]
        row.durable_forgotten_through = row.forgotten_through
        row.query = row.query or query
        if not status.run_known:
            row.runs.append(run)

    def add_application(
        self, application: str, forgotten_through: int | None, query: str | None = None
    ) -> bool:
        queries = {row.query for row in self.applications.values()} - {None}
        new = application not in self.applications and query not in queries
        if new:
            row = _Application(forgotten_through, query=query)
            self.applications[application] = row
        return new

    def _attempts(self, application: str, batch: int) -> list[TransactionRecord]:
        return [r for r in self.of(application) if r.id.batch == batch]

    def committed(self, application: str, batch: int) -> TransactionRecord | None:
        attempts = self._attempts(application, batch)
        return next((r for r in attempts if r.decision is Decision.COMMIT), None)

    def in_state(
        self, application: str, state: TransactionState
    ) -> list[TransactionRecord]:
        return [r for r in self.of(application) if r.state is state]

    def has_rival(self, transaction: TransactionId) -> bool:
        return any(
            r.id.attempt > transaction.attempt or r.decision is Decision.COMMIT
            for r in self._attempts(transaction.application, transaction.batch)
        )

    def read(self, transaction: TransactionId) -> TransactionRecord | None:
        if (record := self.records.get(transaction)) is None:
            return None
        through = self.applications[transaction.application].durable_forgotten_through
        return dataclasses.replace(record, forgotten_through=through)

    def add(self, record: TransactionRecord) -> None:
        self.records[record.id] = record

    def write(
        self,
        record: TransactionRecord,
        *,
        reason: str | None = None,
        given_up: str | None = None,
    ) -> None:
        self.records[record.id] = dataclasses.replace(record, newly_decided=False)
        if reason is not None:
            self.reasons[record.id] = reason

    def note_passed(self, record: TransactionRecord) -> None:
        self.write(record)

    def drop_receipts_before(self, record: TransactionRecord) -> None:
        commits = [
            r
            for r in self.of(record.id.application)
            if r.decision is Decision.COMMIT and r.id.batch < record.id.batch
        ]
        if commits and commits[-1].state is TransactionState.COMMITTED:
            self.write(dataclasses.replace(commits[-1], receipts=()))

    def sign(
        self, who: str, what: str, why: str, before: str | None, after: str
    ) -> None:
        self.audit.append((who, what, why, str(before or ""), str(after)))


class InMemoryDecisionLog(BaseDecisionLog):
    """`DecisionLog` that forgets everything with its process: for tests only.

    Refuses and decides as the real one does, one caller at a time.

    Args:
        now: Unix seconds, for the times on record.
    """

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.RLock()
        self._records = _Change(now)

    @property
    def audit(self) -> list[tuple[str, ...]]:
        """What persons did: who, what, why, before, after."""
        return self._records.audit

    @contextlib.contextmanager
    def _durable(self, deciding: TransactionId | None = None) -> Iterator[_Change]:
        with self._lock:
            yield self._records

    _relaxed = _durable

    def read(self, transaction: TransactionId) -> TransactionRecord | None:
        """Return the record; None if it was forgotten or never was."""
        with self._lock:
            return self._records.read(transaction)

    def unfinished(self, application: str | None = None) -> list[TransactionRecord]:
        """List what is not finished, by application, in batch order."""
        with self._lock:
            return [r for r in self._records.of(application) if r.state not in FINAL]

    def unfinished_applications(self) -> list[str]:
        """List the applications with something unfinished, sorted."""
        return sorted({record.id.application for record in self.unfinished()})

    def acknowledge(
        self, transaction: TransactionId, participant: str, untold: str | None = None
    ) -> None:
        """Record that a participant has obeyed the decision. Idempotent."""
        with self._lock:
            if (record := self.read(transaction)) is not None:
                rules.check_acknowledge(record, participant)
                acknowledged = record.acknowledged | {participant}
                changed = dataclasses.replace(record, acknowledged=acknowledged)
                self._records.write(changed)

    def postpone(
        self,
        transaction: TransactionId,
        participant: str,
        error: str,
        retry_at: float | None,
    ) -> None:
        """Do nothing: nobody reads it here."""

    def forget(self, application: str, *, finished_before: float, limit: int) -> int:
        """Drop old finished batches and raise forgotten_through, in one step."""
        with self._lock:
            records = self._records.of(application)
            newest = max((r.id.batch for r in records), default=0)
            end = next(
                (
                    r.id.batch
                    for r in records
                    if r.finished is None or r.finished >= finished_before
                ),
                newest,
            )
            batches = sorted({r.id.batch for r in records if r.id.batch < end})[:limit]
            dropped = [r.id for r in records if r.id.batch in batches]
            for identity in dropped:
                del self._records.records[identity]
            if batches:
                row = self._records.applications[application]
                row.forgotten_through = batches[-1]
            return len(dropped)

    def close(self) -> None:
        """Keep everything: the next user of this object reads it again."""
