"""A decision log without a database: what it promises is what the real one does."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Sequence

from tracing_2pc.model import (
    Begun,
    Carrier,
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.states import FINAL, Decision, TransactionEvent, TransactionState
from tracing_2pc.store import rules
from tracing_2pc.store.receipts import check_receipts


@dataclasses.dataclass(slots=True)
class _Application:
    query: str | None
    watermark: int | None
    durable_watermark: int | None = None
    runs: list[str] = dataclasses.field(default_factory=list)


class InMemoryDecisionLog:
    """`DecisionLog` that forgets everything with its process: for tests only.

    Refuses and decides as the real one does, one caller at a time.

    Args:
        now: Unix seconds, for the times on record.
    """

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.RLock()
        self._applications: dict[str, _Application] = {}
        self._records: dict[TransactionId, TransactionRecord] = {}
        self._reasons: dict[TransactionId, str] = {}
        self.audit: list[tuple[str, ...]] = []
        """What persons did: who, what, why, before, after."""

    def begin(
        self,
        application: str,
        batch: int,
        *,
        run: str,
        query: str | None,
        participants: Sequence[str],
        carrier: Carrier,
        timeout: float = 0.0,
        own_sinks: Collection[str] = (),
        replaces: Collection[str] = (),
    ) -> Begun:
        """Put the next attempt of a batch on record; see `DecisionLog.begin`."""
        names = rules.check_participants(participants)
        with self._lock:
            self._admit(application, batch, run, query, names, replaces)
            mine = [r for r in self._of(application) if r.id.batch == batch]
            for record in mine:
                if record.decision is Decision.COMMIT:
                    return Begun(record, replay=True)
                if record.state is TransactionState.ACTIVE and record.run == run:
                    aborting = tuple(
                        r
                        for r in self._of(application)
                        if r.state is TransactionState.ABORTING
                    )
                    return Begun(record, replay=False, superseded=aborting)
            superseded = tuple(
                self._keep(rules.decided(record, Decision.ABORT, (), self._now()))
                for record in self._of(application)
                if record.state is TransactionState.ACTIVE
            )
            newest = max(mine, key=lambda r: r.id.attempt, default=None)
            attempt = newest.id.attempt + 1 if newest else 1
            opened = rules.opened(
                TransactionId(application, batch, attempt),
                run,
                names,
                carrier,
                previous=newest.carrier if newest else {},
                now=self._now(),
                watermark=None,
                timeout=timeout,
                clock=self._now(),
                own_sinks=own_sinks,
            )
            return Begun(self._keep(opened), replay=False, superseded=superseded)

    def _admit(
        self,
        application: str,
        batch: int,
        run: str,
        query: str | None,
        participants: Collection[str],
        replaces: Collection[str],
    ) -> None:
        for name, other in self._applications.items():
            if query and name != application and other.query == query:
                rules.check_query(application, query, name)
        if (known := self._applications.get(application)) is None:
            rules.check_known(application, batch)
            known = _Application(query, None)
        records = self._of(application)
        quarantined = [
            (str(r.id), self._reasons[r.id])
            for r in records
            if r.state is TransactionState.QUARANTINED
        ]
        committed = [r.id.batch for r in records if r.decision is Decision.COMMIT]
        standing = rules.Standing(
            query=known.query,
            watermark=known.watermark,
            quarantined=quarantined[0] if quarantined else None,
            newest_run=known.runs[-1] if known.runs else None,
            run_known=run in known.runs,
            committed=max(committed, default=None),
            newest=str(records[-1].id) if records else None,
            participants=records[-1].participants if records else (),
        )
        rules.check_begin(
            standing, application, batch, run, query, participants, replaces
        )
        self._applications[application] = known
        known.durable_watermark = known.watermark
        known.query = known.query or query
        if not standing.run_known:
            known.runs.append(run)

    def decide(
        self,
        transaction: TransactionId,
        wanted: Decision,
        receipts: Sequence[Receipt] = (),
    ) -> TransactionRecord | None:
        """Decide, once; its return is the commit point. See `DecisionLog.decide`."""
        with self._lock:
            record = self.read(transaction)
            if record is None or rules.forgotten(record):
                return None
            if record.state is not TransactionState.ACTIVE:
                return record
            kept: tuple[Receipt, ...] = ()
            if wanted is Decision.COMMIT:
                kept = check_receipts(record, receipts)
                if self._has_rival(transaction):
                    wanted = Decision.ABORT
            return self._keep(rules.decided(record, wanted, kept, self._now()))

    def expire(self, transaction: TransactionId) -> TransactionRecord | None:
        """Decide abort if its deadline has passed. See `DecisionLog.expire`."""
        with self._lock:
            record = self.read(transaction)
            if record is None or rules.forgotten(record):
                return None
            if not rules.overdue(record, self._now()):
                return record
            return self._keep(rules.decided(record, Decision.ABORT, (), self._now()))

    def _has_rival(self, transaction: TransactionId) -> bool:
        return any(
            r.id.attempt > transaction.attempt or r.decision is Decision.COMMIT
            for r in self._of(transaction.application)
            if r.id.batch == transaction.batch
        )

    def read(self, transaction: TransactionId) -> TransactionRecord | None:
        """Return the record; None if it was forgotten or never was."""
        with self._lock:
            if (record := self._records.get(transaction)) is None:
                return None
            watermark = self._applications[transaction.application].durable_watermark
            return dataclasses.replace(record, watermark=watermark)

    def unfinished(self, application: str | None = None) -> list[TransactionRecord]:
        """List what is not finished, by application, in batch order."""
        with self._lock:
            return [r for r in self._of(application) if r.state not in FINAL]

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
                heard = record.acknowledged | {participant}
                self._keep(dataclasses.replace(record, acknowledged=heard))

    def postpone(
        self,
        transaction: TransactionId,
        participant: str,
        error: str,
        retry_at: float | None,
    ) -> None:
        """Do nothing: nobody reads it here."""

    def finish(self, transaction: TransactionId) -> None:
        """Close it, once every participant has acknowledged (rule 11). Idempotent."""
        with self._lock:
            record = self.read(transaction)
            if record is not None and record.state not in FINAL:
                finished = self._keep(rules.finished(record, self._now()))
                self._drop_receipts_before(finished)

    def _drop_receipts_before(self, finished: TransactionRecord) -> None:
        commits = [
            r
            for r in self._of(finished.id.application)
            if r.decision is Decision.COMMIT and r.id.batch < finished.id.batch
        ]
        if finished.decision is Decision.COMMIT and commits:
            earlier = max(commits, key=lambda r: r.id.batch)
            if earlier.state is TransactionState.COMMITTED:
                self._keep(dataclasses.replace(earlier, receipts=()))

    def quarantine(self, transaction: TransactionId, reason: str) -> None:
        """Stop automatic work on it until a person resolves it. Idempotent."""
        with self._lock:
            record = self._known(transaction)
            if record.state is not TransactionState.QUARANTINED:
                self._keep(rules.moved(record, TransactionEvent.QUARANTINE))
                self._reasons[transaction] = reason

    def abort(self, transaction: TransactionId, *, who: str, why: str) -> None:
        """Decide abort, because a person says so. Audited."""
        with self._lock:
            before = self._known(transaction)
            after = rules.decided(before, Decision.ABORT, (), self._now())
            states = (str(before.state), str(self._keep(after).state))
            self.audit.append((who, f"abort {transaction}", why, *states))

    def resume(
        self, transaction: TransactionId, decision: Decision, *, who: str, why: str
    ) -> None:
        """Let a quarantined transaction go on, as it was decided. Audited."""
        with self._lock:
            before = self._known(transaction)
            after = self._keep(rules.resumed(before, decision))
            states = (str(before.state), str(after.state))
            self.audit.append((who, f"resume {transaction}", why, *states))

    def conclude(
        self, transaction: TransactionId, outcome: str, *, who: str, why: str
    ) -> None:
        """Close a quarantined transaction that cannot be made whole. Audited."""
        with self._lock:
            before = self._known(transaction)
            self._keep(rules.concluded(before, outcome, self._now()))
            states = (str(before.state), f"concluded {outcome}")
            self.audit.append((who, f"conclude {transaction}", why, *states))

    def give_up(
        self, transaction: TransactionId, participant: str, *, who: str, why: str
    ) -> None:
        """Wait for one participant no more. Audited."""
        with self._lock:
            before = self._known(transaction)
            self._keep(rules.without(before, participant))
            states = (str(before.state), f"{before.state} without {participant}")
            self.audit.append((who, f"give up {transaction}", why, *states))

    def sign(
        self, what: str, *, who: str, why: str, before: str | None, after: str
    ) -> None:
        """Put on record what a person does elsewhere."""
        self.audit.append((who, what, why, before or "", after))

    def forget(self, application: str, *, finished_before: float, limit: int) -> int:
        """Drop old finished batches and raise the watermark, in one step."""
        with self._lock:
            batches: list[int] = []
            held = self._of(application)
            newest = max((r.id.batch for r in held), default=0)
            for record in held:
                old = record.finished is not None and record.finished < finished_before
                if not old or record.id.batch == newest:
                    batches = [b for b in batches if b < record.id.batch]
                    break
                if record.id.batch not in batches:
                    batches.append(record.id.batch)
            dropped = [r.id for r in held if r.id.batch in batches[:limit]]
            for identity in dropped:
                del self._records[identity]
                self._applications[application].watermark = identity.batch
            return len(dropped)

    def initialise(
        self, application: str, from_batch: int, *, who: str = "tracing-2pc init"
    ) -> None:
        """Say where an application starts that already ran without this log."""
        with self._lock:
            watermark = rules.check_start(application, from_batch)
            if application in self._applications:
                rules.refuse_known(application)
            self._applications[application] = _Application(None, watermark)
            why = "it ran before without this log"
            after = f"from batch {from_batch}"
            self.audit.append((who, f"init {application}", why, "", after))

    def close(self) -> None:
        """Keep everything: the next user of this object reads it again."""

    def _of(self, application: str | None) -> list[TransactionRecord]:
        found = [self.read(i) for i in sorted(self._records)]
        return [r for r in found if r and application in (None, r.id.application)]

    def _known(self, transaction: TransactionId) -> TransactionRecord:
        if (record := self.read(transaction)) is None:
            raise rules.unknown(transaction)
        return record

    def _keep(self, record: TransactionRecord) -> TransactionRecord:
        self._records[record.id] = dataclasses.replace(record, made_here=False)
        kept = self.read(record.id) or record
        return dataclasses.replace(kept, made_here=record.made_here)
