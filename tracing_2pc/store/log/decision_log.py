"""The decision log, in SQLite or PostgreSQL: its changes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tracing_2pc.core.errors import (
    ConfigurationError,
    ContractError,
    DecisionLogError,
    DecisionUnknownError,
)
from tracing_2pc.core.model import (
    ADOPTED,
    BeginResult,
    Carrier,
    JournalAt,
    Receipt,
    TransactionId,
    TransactionRecord,
    count_rejected,
    count_rows,
)
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import (
    FINAL,
    UNFINISHED,
    Decision,
    TransactionEvent,
    TransactionState,
)
from tracing_2pc.store.engines.database import storable
from tracing_2pc.store.engines.writes import execute
from tracing_2pc.store.lease import LeaseState
from tracing_2pc.store.log import rules, schema
from tracing_2pc.store.log import statements as sql
from tracing_2pc.store.log.facts import checksum_of
from tracing_2pc.store.log.reader import SqlLogReader
from tracing_2pc.store.log.receipts import check_receipts
from tracing_2pc.store.log.records import Change
from tracing_2pc.tracing import instruments

_FINISHING: Final = (TransactionState.COMMITTING, TransactionState.ABORTING)
_RESUME: Final = {
    Decision.COMMIT: TransactionEvent.RESUME_COMMIT,
    Decision.ABORT: TransactionEvent.RESUME_ABORT,
}


class SqlDecisionLog(SqlLogReader):
    """`OperatorLog` on SQLite or PostgreSQL. Safe to use from several threads.

    `core.ports.DecisionLog` has the promise of each method, and which of them a batch
    needs; `rules.py` decides what may begin and move. A change of more than a delivery
    locks its application first: the changes of one application happen one after
    another.
    """

    def __repr__(self) -> str:
        return f"SqlDecisionLog({self._database.address!r})"

    def create(self) -> None:
        """Create the tables that are missing. Idempotent."""
        schema.ensure(self._database)

    @contextlib.contextmanager
    def _durable(self, deciding: TransactionId | None = None) -> Iterator[Change]:
        """Open a change; flushed to disk when the block has been left."""

        def unanswered(text: str) -> DecisionUnknownError:
            return DecisionUnknownError(
                f"{deciding}: decision log {text}. The decision may or may not "
                "be in the log: ask it again",
                transaction_id=str(deciding),
            )

        # Rule 15: an unanswered commit is asked again, never taken for a no.
        unknown = unanswered if deciding else None
        with self._database.write(unanswered=unknown) as connection:
            yield self._change(connection)

    @contextlib.contextmanager
    def _relaxed(self) -> Iterator[Change]:
        with self._database.relaxed() as connection:
            yield self._change(connection)

    def begin(self, application: str, batch: int, opening: Opening) -> BeginResult:
        run, query, timeout = opening.run, opening.query or None, opening.timeout
        with self._noting_passed(batch), self._durable() as change:
            status = change.status(application, batch, run, query)
            new_run = not status.run_known
            rules.check_begin(status, batch, opening)
            # Rule 19: participants are told what this change flushes.
            change.register(status, batch, run, query)
            # Rule 18: a committed batch is delivered again, never written again.
            if status.committed == batch and (
                committed := change.committed(application, batch)
            ):
                return BeginResult(committed, replay=True, new_run=new_run)
            active: list[TransactionRecord] = []
            if status.has_active:
                active = change.in_state(application, TransactionState.ACTIVE)
            for record in active:
                if (record.id.batch, record.run) == (batch, run):
                    aborting = change.in_state(application, TransactionState.ABORTING)
                    return BeginResult(record, replay=False, superseded=tuple(aborting))
            rules.check_attempt(status, batch, opening.attempt)
            # Rule 7: never decided and superseded means abort.
            successor = f"run {run} has begun batch {batch}"
            superseded = tuple(
                change.decide(record, Decision.ABORT, "superseded", detail=successor)
                for record in active
            )
            opened = TransactionRecord(
                # Rule 3: each attempt has its own id.
                id=TransactionId(application, batch, status.attempt + 1),
                run=run,
                state=TransactionState.ACTIVE,
                decision=None,
                participants=tuple(opening.participants),
                acknowledged=frozenset(),
                carrier=opening.carrier,
                started=self._now(),
                forgotten_through=status.forgotten_through,
                timeout=timeout,
                deadline=status.clock + timeout if timeout else None,
                own_sinks=frozenset(opening.own_sinks),
                previous=status.carrier.get("traceparent") if opening.carrier else None,
                journals=rules.journals_of(status, opening),
                rejects=opening.rejects,
                **opening.facts,
            )
            change.add(opened)
            return BeginResult(
                opened, replay=False, superseded=superseded, new_run=new_run
            )

    @contextlib.contextmanager
    def _noting_passed(self, batch: int) -> Iterator[None]:
        """Record, in a change of its own, that a stream has passed a batch."""
        try:
            yield
        except rules.PassedError as error:
            with contextlib.suppress(DecisionLogError), self._durable() as change:
                record = change.read(TransactionId.parse(error.transaction_id or ""))
                if record is not None and record.passed_by is None:
                    change.write(dataclasses.replace(record, passed_by=batch))
            raise

    def decide(
        self,
        transaction: TransactionId,
        wanted: Decision,
        receipts: Sequence[Receipt] = (),
        cause: str | None = None,
        detail: str | None = None,
    ) -> TransactionRecord | None:
        # Rule 2: durable before the first commit is sent.
        with (
            instruments.timed("tpc.decision_log.write"),
            self._durable(transaction) as change,
        ):
            record = change.read(transaction)
            # Rule 17: nothing is decided at or below forgotten_through.
            if record is None or rules.is_forgotten(record):
                return None
            if record.state is not TransactionState.ACTIVE:
                return record  # a decision is written once
            if wanted is Decision.COMMIT:
                # Rule 1: commit only with every vote.
                receipts = check_receipts(record, receipts)
                # Rules 14 and 18: the newest attempt alone commits, and a batch once.
                if change.has_rival(transaction):
                    wanted, cause = Decision.ABORT, "superseded"
            return change.decide(record, wanted, cause, receipts, detail)

    def note_journals(
        self, transaction: TransactionId, journals: Mapping[str, JournalAt]
    ) -> None:
        with self._durable() as change:
            record = change.read(transaction)
            if record is not None and record.state is TransactionState.ACTIVE:
                known = {**journals, **record.journals}
                change.write(dataclasses.replace(record, journals=known))

    def expire(self, transaction: TransactionId) -> TransactionRecord | None:
        with self._durable(transaction) as change:
            record = change.read(transaction)
            if record is None or rules.is_forgotten(record):
                return None
            if record.state is not TransactionState.ACTIVE or record.deadline is None:
                return record
            # Rule 8: by the log's clock, as the deadline was set.
            if change.clock() >= record.deadline:
                return change.decide(record, Decision.ABORT, "recovery")
            return record

    def finish(self, transaction: TransactionId) -> None:
        with self._relaxed() as change:
            record = change.read(transaction)
            if record is not None and record.state not in FINAL:
                event = TransactionEvent.FINISH
                if record.abandoned:
                    event = TransactionEvent.FINISH_WITHOUT
                finished = rules.apply_event(record, event, finished=self._now())
                # Rule 11: finished only after every acknowledgement.
                if record.pending:
                    raise ContractError(
                        f"{transaction} cannot finish: {', '.join(record.pending)} has "
                        "not acknowledged",
                        transaction_id=str(transaction),
                    )
                change.write(finished)
                if finished.state is TransactionState.COMMITTED:
                    change.drop_receipts_before(finished)

    def acknowledge(
        self, transaction: TransactionId, participant: str, untold: str | None = None
    ) -> None:
        row: dict[str, Any] = {"one": str(transaction), "by": [participant]}
        with self._database.relaxed() as connection:
            row["untold"] = untold and storable(connection, untold)
            if connection.execute(sql.ACKNOWLEDGE, {**row, "at": self._now()}).rowcount:
                return
        if (record := self.read(transaction)) is not None:
            rules.check_acknowledge(record, participant)

    def acknowledge_last(
        self, record: TransactionRecord, answers: Mapping[str, str | None]
    ) -> None:
        """Record the last acknowledgements and close the transaction, in one change."""
        is_usual = record.state in _FINISHING and not record.given_up
        if is_usual and not any(answers.values()):
            now = self._now()
            finished = rules.apply_event(record, TransactionEvent.FINISH, finished=now)
            values = {
                "of": record.id.application,
                "one": str(record.id),
                "by": list(answers),
                "untold": None,
                "at": now,
                "state_before": str(record.state),
                "checksum_before": checksum_of(record),
                "state": str(finished.state),
                "checksum": checksum_of(finished),
            }
            with self._database.relaxed() as connection:
                # Rule 11: finished only after every acknowledgement.
                writes = sql.acknowledge_last(connection.dialect.name)
                if execute(connection, writes, values):
                    if finished.state is TransactionState.COMMITTED:
                        self._change(connection).drop_receipts_before(finished)
                    return
        for participant, untold in answers.items():
            self.acknowledge(record.id, participant, untold)
        self.finish(record.id)

    def postpone(
        self,
        transaction: TransactionId,
        participant: str,
        error: str,
        retry_at: float | None,
    ) -> None:
        row = {"one": str(transaction), "by": participant}
        with self._database.relaxed() as connection:
            row["error"] = storable(connection, error)
            connection.execute(sql.POSTPONE, {**row, "retry_at": retry_at})

    def forget(self, application: str, *, finished_before: float, limit: int) -> int:
        """Drop old finished batches; where there are none, nothing is written."""
        asked = {"of": application, "finished_before": finished_before, "slice": limit}
        if not self._ask(sql.FORGETTABLE, **asked):
            return 0
        with self._database.relaxed() as connection:
            connection.execute(sql.LOCK_APPLICATION, asked)
            # Rule 17: only below the newest batch that Spark has begun.
            batches = connection.scalars(sql.FORGETTABLE, asked).all()
            if not batches:
                return 0
            to = {"of": application, "up_to": batches[-1]}
            connection.execute(sql.RAISE_FORGOTTEN_THROUGH, to)
            connection.execute(sql.FORGET_RECEIPTS, to)
            connection.execute(sql.FORGET_DELIVERIES, to)
            connection.execute(sql.FORGET_RUNS, to)
            return connection.execute(sql.FORGET_TRANSACTIONS, to).rowcount

    def quarantine(self, transaction: TransactionId, reason: str) -> None:
        with self._durable() as change:
            record = change.read_known(transaction)
            if record.state is not TransactionState.QUARANTINED:
                event = TransactionEvent.QUARANTINE
                change.write(rules.apply_event(record, event, reason=reason))

    def abort(self, transaction: TransactionId, *, who: str, why: str) -> None:
        with self._durable(transaction) as change:
            before = change.read_known(transaction)
            after = change.decide(before, Decision.ABORT, "operator")
            change.sign("abort", transaction, who, why, before.state, after.state)

    def leave(self, transaction: TransactionId, *, who: str, why: str) -> None:
        with self._durable() as change:
            before = change.read_known(transaction)
            if before.state is not TransactionState.ABORTED or before.passed_by is None:
                raise ContractError(
                    f"{transaction} is {before.state}, and no stream has passed it",
                    transaction_id=str(transaction),
                )
            change.write(dataclasses.replace(before, passed_by=None))
            passed = f"passed by batch {before.passed_by}"
            change.sign("leave", transaction, who, why, passed, before.state)

    def resume(
        self, transaction: TransactionId, decision: Decision, *, who: str, why: str
    ) -> None:
        with self._durable() as change:
            before = change.read_known(transaction)
            after = rules.apply_event(before, _RESUME[decision])
            if before.decision is not decision:
                raise ContractError(
                    f"{transaction} is decided {before.decision}: it cannot {decision}",
                    transaction_id=str(transaction),
                )
            change.write(after)
            change.sign("resume", transaction, who, why, before.state, after.state)

    def conclude(
        self, transaction: TransactionId, outcome: str, *, who: str, why: str
    ) -> None:
        if outcome not in ("mixed", "hazard"):
            raise ContractError(f"outcome {outcome!r}: expected mixed or hazard")
        with self._durable() as change:
            before = change.read_known(transaction)
            event = TransactionEvent.CONCLUDE
            change.write(rules.apply_event(before, event, finished=self._now()))
            after = f"concluded {outcome}"
            change.sign("conclude", transaction, who, why, before.state, after)

    def give_up(
        self, transaction: TransactionId, participant: str, *, who: str, why: str
    ) -> None:
        with self._durable() as change:
            before = change.read_known(transaction)
            if before.state not in UNFINISHED or participant not in before.pending:
                raise ContractError(
                    f"{transaction} is {before.state} and does not wait for "
                    f"{participant}",
                    transaction_id=str(transaction),
                    participant=participant,
                )
            given_up = before.given_up | {participant}
            record = dataclasses.replace(before, given_up=given_up)
            change.write(record, given_up=participant)
            after = f"{before.state} without {participant}"
            stored = storable(change.connection, why)  # a sink's own, perhaps
            change.sign("give up", transaction, who, stored, before.state, after)

    def sign(
        self,
        verb: str,
        about: TransactionId,
        *,
        who: str,
        why: str,
        before: str | None,
        after: str,
    ) -> None:
        with self._durable() as change:
            change.sign(verb, about, who, why, before, after)

    def initialise(
        self, application: str, from_batch: int, *, who: str = "tracing-2pc init"
    ) -> None:
        forgotten_through = rules.check_start(application, from_batch)
        with self._durable() as change:
            if not change.add_application(application, forgotten_through):
                raise ConfigurationError(
                    f"this log knows application {application!r} already: where it "
                    "goes on is in the log. To reprocess on purpose, choose a new "
                    "application name and a new checkpoint."
                )
            change.sign(
                "init",
                application,
                who,
                "it ran before without this log",
                None,
                f"from batch {from_batch}",
            )

    def adopt(
        self,
        transaction: TransactionId,
        query: str,
        participants: Sequence[str],
        receipts: Sequence[Receipt],
        *,
        journals: Mapping[str, JournalAt],
        who: str,
        why: str,
        rejects: str | None = None,
    ) -> None:
        rejects = rejects if rejects in participants else None
        application, batch = transaction.application, transaction.batch
        forgotten_through = rules.check_start(application, batch)
        state, decision = TransactionState.ABORTED, Decision.ABORT
        if participants:
            state, decision = TransactionState.COMMITTED, Decision.COMMIT
        now = self._now()
        record = TransactionRecord(
            id=transaction,
            run=ADOPTED,
            state=state,
            decision=decision,
            participants=tuple(participants),
            acknowledged=frozenset(participants),
            carrier=Carrier(),
            started=now,
            decided=now,
            finished=now,
            receipts=tuple(receipts),
            rows=count_rows(receipts, rejects),
            rejects=rejects,
            rejected=count_rejected(receipts, rejects),
            journals=journals,
        )
        with self._durable() as change:
            if not change.add_application(application, forgotten_through, query):
                raise ConfigurationError(
                    f"this log knows application {application!r} or its query {query} "
                    "already: nothing was written. Run `tracing-2pc adopt` again"
                )
            if transaction.attempt:
                change.add(record)
            about = transaction if transaction.attempt else application
            change.sign("adopt", about, who, why, None, f"from batch {batch}")

    def report_presence(
        self, application: str, run: str, *, host: str, process: int
    ) -> None:
        row = {"of": application, "run": run}
        with self._database.relaxed() as connection:
            now = self._change(connection).clock()
            if not connection.execute(sql.SEE, {**row, "at": now}).rowcount:
                row |= {"host": storable(connection, host)}
                added = {**row, "process": process, "at": now}
                connection.execute(sql.ADD_PRESENCE, added)
                connection.execute(sql.FORGET_PRESENCES, row)

    def report_end(self, application: str, run: str, error: str | None = None) -> None:
        row = {"of": application, "run": run}
        with self._database.relaxed() as connection:
            error = error and storable(connection, error)
            now = self._change(connection).clock()
            connection.execute(sql.END_PRESENCE, {**row, "at": now, "error": error})

    def retire(self, application: str, *, who: str, why: str) -> None:
        with self._durable() as change:
            now, connection = change.clock(), change.connection
            connection.execute(sql.RETIRE_PRESENCES, {"of": application, "at": now})
            change.sign("retire", application, who, why, None, "retired")

    def take_lease(self, application: str, who: str, seconds: float) -> bool:
        this = schema.application.c.name == application
        with self._database.relaxed() as connection:
            state = schema.LEASE.hold(connection, who, seconds, self._now(), this)
        return state is not LeaseState.REFUSED

    def give_leases_back(self, who: str) -> None:
        with self._database.relaxed() as connection:
            schema.LEASE.give_back(connection, who)

    def close(self) -> None:
        self._database.close()
