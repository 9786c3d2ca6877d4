"""The decision log in SQLite or PostgreSQL."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import sqlalchemy as sa

from tracing_2pc.errors import ConfigurationError, DecisionLogError
from tracing_2pc.model import (
    Begun,
    Carrier,
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.states import FINAL, Decision, TransactionEvent, TransactionState
from tracing_2pc.store import records, rows, rules, schema
from tracing_2pc.store import statements as sql
from tracing_2pc.store.database import Database, absent, connect
from tracing_2pc.store.overview import Overview
from tracing_2pc.store.receipts import check_receipts
from tracing_2pc.telemetry import metrics


def open_log(
    reference: str,
    *,
    must_exist: bool = False,
    may_be_down: bool = False,
    now: Callable[[], float] = time.time,
) -> SqlDecisionLog:
    """Open the decision log, making it (and a SQLite file's folder) where missing.

    Args:
        reference: `sqlite:///folder/decisions.db`, `postgresql://user@host/database`
            (psycopg 3), or `env:NAME` of a variable that holds one. Only the URL of
            such a variable may hold a password.
        must_exist: make nothing: an operator must not be told that all is well by a
            log that was not there.
        may_be_down: one that must exist and cannot be reached is returned all the
            same: whoever reads it is told, and it may come back.
        now: Unix seconds, for the times on record.

    Raises:
        ConfigurationError: not such a URL, a log made by a newer release, or none
            where one must exist.
        DecisionLogError: it cannot be reached.
    """
    log = SqlDecisionLog(connect(reference, must_exist=must_exist), now=now)
    try:
        if must_exist:
            log.require()
        else:
            log.create()
    except DecisionLogError:
        if must_exist and may_be_down:
            return log
        log.close()
        raise
    except BaseException:
        log.close()
        raise
    return log


class SqlDecisionLog:
    """`DecisionLog` on SQLite or PostgreSQL. Safe to use from several threads.

    Whatever changes more than a delivery locks the application first, so that for one
    application they happen one after another.
    """

    def __init__(
        self, database: Database, *, now: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._now = now

    def __repr__(self) -> str:
        return f"SqlDecisionLog({self._database.shown!r})"

    @property
    def overview(self) -> Overview:
        """What an operator looks at, from the same database."""
        return Overview(self._database, now=self._now)

    def create(self) -> None:
        """Create the tables that are missing. Idempotent."""
        with self._database.translated():
            schema.ensure(self._database.reading_engine, self._database.durable_engine)

    def require(self) -> None:
        """Refuse a database that holds no log."""
        with self._database.translated():
            if not schema.exists(self._database.reading_engine):
                raise ConfigurationError(absent(self._database.shown))

    def applications(self) -> list[str]:
        """Name the applications that the log knows."""
        with self._database.reading() as connection:
            return list(connection.scalars(sql.APPLICATIONS))

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
        of = {"of": application, "in_batch": batch}
        with self._database.durable() as connection:
            standing = self._admit(
                connection, application, batch, run, query, names, replaces
            )
            if replayed := records.load(connection, sql.COMMITTED, of):
                return Begun(replayed[0], replay=True)
            active = records.load(connection, sql.ACTIVE_OF, of)
            for record in active:
                if (record.id.batch, record.run) == (batch, run):
                    aborting = records.load(connection, sql.ABORTING_OF, of)
                    return Begun(record, replay=False, superseded=tuple(aborting))
            superseded = tuple(
                self._write_decision(connection, record, Decision.ABORT, ())
                for record in active
            )
            newest = connection.execute(sql.NEWEST_ATTEMPT, of).first()
            opened = rules.opened(
                TransactionId(application, batch, newest.attempt + 1 if newest else 1),
                run,
                names,
                carrier,
                previous=rows.carrier_of(newest.carrier if newest else "{}"),
                now=self._now(),
                watermark=standing.watermark,
                timeout=timeout,
                clock=self._clock(connection),
                own_sinks=own_sinks,
            )
            records.add(connection, opened)
            return Begun(opened, replay=False, superseded=superseded)

    def _admit(
        self,
        connection: sa.Connection,
        application: str,
        batch: int,
        run: str,
        query: str | None,
        participants: Collection[str],
        replaces: Collection[str],
    ) -> rules.Standing:
        """Refuse the batch, or register its run and query."""
        of = {"of": application}
        known = connection.execute(sql.LOCK_APPLICATION, of).first()
        if query and (known is None or known.query is None):
            asked = {**of, "asked": query}
            owner = connection.scalar(sql.QUERY_OWNER, asked)
            rules.check_query(application, query, owner)
        if known is None:
            rules.check_known(application, batch)
            new = {"name": application, "query": None, "watermark": None}
            connection.execute(sql.ADD_APPLICATION, new)
            known = connection.execute(sql.LOCK_APPLICATION, of).one()
        runs = connection.execute(sql.RUNS, {**of, "asking": run}).all()
        quarantined = connection.execute(sql.QUARANTINED, of).first()
        before = connection.execute(sql.PARTICIPANTS_BEFORE, of).all()
        standing = rules.Standing(
            query=known.query,
            watermark=known.watermark,
            quarantined=quarantined and (quarantined.id, quarantined.reason),
            newest_run=runs[-1].run if runs else None,
            run_known=any(row.run == run for row in runs),
            committed=connection.scalar(sql.NEWEST_COMMITTED, of),
            newest=before[0].transaction_id if before else None,
            participants=tuple(row.participant for row in before),
        )
        rules.check_begin(
            standing, application, batch, run, query, participants, replaces
        )
        if known.watermark != known.durable_watermark:
            connection.execute(sql.MAKE_DURABLE, of)
        if query and known.query is None:
            connection.execute(sql.BIND_QUERY, {**of, "asked": query})
        if not standing.run_known:
            sequence = runs[-1].sequence + 1 if runs else 1
            row = {"application": application, "run": run, "registered": self._now()}
            row |= {"sequence": sequence, "batch": batch}
            connection.execute(sql.REGISTER_RUN, row)
        return standing

    def decide(
        self,
        transaction: TransactionId,
        wanted: Decision,
        receipts: Sequence[Receipt] = (),
    ) -> TransactionRecord | None:
        """Decide, once; its return is the commit point. See `DecisionLog.decide`."""
        with metrics.timed("tpc_decision_log_write_seconds"):
            return self._decide(transaction, wanted, receipts)

    def _decide(
        self,
        transaction: TransactionId,
        wanted: Decision,
        receipts: Sequence[Receipt],
    ) -> TransactionRecord | None:
        with self._database.deciding(transaction) as connection:
            record = records.locked(connection, transaction)
            if record is None or rules.forgotten(record):
                return None
            if record.state is not TransactionState.ACTIVE:
                return record
            kept: tuple[Receipt, ...] = ()
            if wanted is Decision.COMMIT:
                kept = check_receipts(record, receipts)
                if _has_rival(connection, transaction):
                    wanted = Decision.ABORT
            return self._write_decision(connection, record, wanted, kept)

    def expire(self, transaction: TransactionId) -> TransactionRecord | None:
        """Decide abort if its deadline has passed. See `DecisionLog.expire`."""
        with self._database.deciding(transaction) as connection:
            record = records.locked(connection, transaction)
            if record is None or rules.forgotten(record):
                return None
            if not rules.overdue(record, self._clock(connection)):
                return record
            return self._write_decision(connection, record, Decision.ABORT, ())

    def _clock(self, connection: sa.Connection) -> float:
        """Return the log's time: PostgreSQL's, or that of a SQLite file's machine."""
        clock = self._database.clock(connection)
        return self._now() if clock is None else clock

    def _write_decision(
        self,
        connection: sa.Connection,
        record: TransactionRecord,
        decision: Decision,
        receipts: tuple[Receipt, ...],
    ) -> TransactionRecord:
        after = rules.decided(record, decision, receipts, self._now())
        records.decide(connection, after)
        return after

    def read(self, transaction: TransactionId) -> TransactionRecord | None:
        """Return the record; None if it was forgotten or never was."""
        with self._database.reading() as connection:
            return records.one(connection, transaction)

    def unfinished(self, application: str | None = None) -> list[TransactionRecord]:
        """List what is not finished, by application, in batch order.

        Cost does not depend on how many finished records the log holds.
        """
        which = sql.UNFINISHED if application is None else sql.UNFINISHED_OF
        with self._database.reading() as connection:
            return records.load(connection, which, {"of": application})

    def unfinished_applications(self) -> list[str]:
        """List the applications with something unfinished, sorted."""
        with self._database.reading() as connection:
            return list(connection.scalars(sql.UNFINISHED_APPLICATIONS))

    def counts(self, application: str) -> Counter[TransactionState]:
        """Count transactions by state; the cost grows with the log."""
        with self._database.reading() as connection:
            found = connection.execute(sql.COUNTS, {"of": application}).all()
        return Counter({TransactionState(state): count for state, count in found})

    def acknowledge(
        self, transaction: TransactionId, participant: str, untold: str | None = None
    ) -> None:
        """Record that a participant has obeyed the decision. Idempotent.

        Raises:
            ContractError: it is not decided, or the participant is not on record.
        """
        about = {"one": str(transaction), "by": participant}
        row = {**about, "at": self._now(), "left": untold}
        with self._database.relaxed() as connection:
            if connection.execute(sql.ACKNOWLEDGE, row).rowcount:
                return
        if (record := self.read(transaction)) is not None:
            rules.check_acknowledge(record, participant)

    def postpone(
        self,
        transaction: TransactionId,
        participant: str,
        error: str,
        retry_at: float | None,
    ) -> None:
        """Record that a try failed, why (a short word), and when the next is due."""
        row = {"one": str(transaction), "by": participant}
        with self._database.relaxed() as connection:
            connection.execute(sql.POSTPONE, {**row, "why": error, "due": retry_at})

    def finish(self, transaction: TransactionId) -> None:
        """Close it, once every participant has acknowledged (rule 11). Idempotent.

        Raises:
            ContractError: somebody on record has not acknowledged.
        """
        with self._database.relaxed() as connection:
            record = records.locked(connection, transaction)
            if record is not None and record.state not in FINAL:
                records.finish(connection, rules.finished(record, self._now()))

    def quarantine(self, transaction: TransactionId, reason: str) -> None:
        """Stop automatic work on it until a person resolves it. Idempotent."""
        with self._database.durable() as connection:
            record = records.locked_known(connection, transaction)
            if record.state is not TransactionState.QUARANTINED:
                after = rules.moved(record, TransactionEvent.QUARANTINE)
                records.change(connection, after, reason=reason)

    def abort(self, transaction: TransactionId, *, who: str, why: str) -> None:
        """Decide abort, because a person says so. See `DecisionLog.abort`."""
        with self._database.deciding(transaction) as connection:
            before = records.locked_known(connection, transaction)
            after = self._write_decision(connection, before, Decision.ABORT, ())
            what = f"abort {transaction}"
            self._audit(connection, what, who, why, before.state, after.state)

    def resume(
        self, transaction: TransactionId, decision: Decision, *, who: str, why: str
    ) -> None:
        """Let a quarantined transaction go on. See `DecisionLog.resume`."""
        with self._database.durable() as connection:
            before = records.locked_known(connection, transaction)
            after = rules.resumed(before, decision)
            records.change(connection, after)
            what = f"resume {transaction}"
            self._audit(connection, what, who, why, before.state, after.state)

    def conclude(
        self, transaction: TransactionId, outcome: str, *, who: str, why: str
    ) -> None:
        """Close what cannot be made whole. See `DecisionLog.conclude`."""
        with self._database.durable() as connection:
            before = records.locked_known(connection, transaction)
            records.change(connection, rules.concluded(before, outcome, self._now()))
            what, after = f"conclude {transaction}", f"concluded {outcome}"
            self._audit(connection, what, who, why, before.state, after)

    def give_up(
        self, transaction: TransactionId, participant: str, *, who: str, why: str
    ) -> None:
        """Wait for one participant no more. See `DecisionLog.give_up`."""
        with self._database.durable() as connection:
            before = records.locked_known(connection, transaction)
            records.change(connection, rules.without(before, participant))
            row = {"one": str(transaction), "by": participant, "at": self._now()}
            connection.execute(sql.GIVE_UP, row)
            what = f"give up {transaction}"
            after = f"{before.state} without {participant}"
            self._audit(connection, what, who, why, before.state, after)

    def sign(
        self, what: str, *, who: str, why: str, before: str | None, after: str
    ) -> None:
        """Put on record what a person does elsewhere. See `DecisionLog.sign`."""
        with self._database.durable() as connection:
            self._audit(connection, what, who, why, before, after)

    def _audit(
        self,
        connection: sa.Connection,
        what: str,
        who: str,
        why: str,
        before: str | None,
        after: str,
    ) -> None:
        row = {"at": self._now(), "what": what, "who": who, "why": why}
        row |= {"before": before and str(before), "after": str(after)}
        connection.execute(sql.ADD_AUDIT, row)

    def forget(self, application: str, *, finished_before: float, limit: int) -> int:
        """Drop old finished batches and raise the watermark, in one step.

        Where there is nothing to forget, nothing is written. See `DecisionLog.forget`.
        """
        asked = {"of": application, "finished_before": finished_before, "slice": limit}
        with self._database.reading() as connection:
            if not connection.scalars(sql.FORGETTABLE, asked).all():
                return 0
        with self._database.relaxed() as connection:
            connection.execute(sql.LOCK_APPLICATION, asked)
            batches = connection.scalars(sql.FORGETTABLE, asked).all()
            if not batches:
                return 0
            to = {"of": application, "up_to": batches[-1]}
            connection.execute(sql.RAISE_WATERMARK, to)
            connection.execute(sql.FORGET_RECEIPTS, to)
            connection.execute(sql.FORGET_DELIVERIES, to)
            connection.execute(sql.FORGET_RUNS, to)
            return connection.execute(sql.FORGET_TRANSACTIONS, to).rowcount

    def initialise(
        self, application: str, from_batch: int, *, who: str = "tracing-2pc init"
    ) -> None:
        """Say where an application starts that already ran without this log. Audited.

        Raises:
            ConfigurationError: the log knows the application already.
        """
        watermark = rules.check_start(application, from_batch)
        row = {"name": application, "query": None, "watermark": watermark}
        with self._database.durable() as connection:
            if not connection.execute(sql.ADD_APPLICATION, row).rowcount:
                rules.refuse_known(application)
            what, why = f"init {application}", "it ran before without this log"
            after = f"from batch {from_batch}"
            self._audit(connection, what, who, why, None, after)

    def close(self) -> None:
        """Release connections. Nothing is lost if it is never called."""
        self._database.close()


def _has_rival(connection: sa.Connection, transaction: TransactionId) -> bool:
    """Say whether a newer or a committed attempt stands against a commit."""
    of = {"of": transaction.application, "in_batch": transaction.batch}
    row = {**of, "than_attempt": transaction.attempt}
    return connection.execute(sql.RIVALS, row).first() is not None
