"""What every decision log does, whatever its records are stored in."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from tracing_2pc.core.errors import (
    ConfigurationError,
    ContractError,
    DecisionLogError,
)
from tracing_2pc.core.model import (
    ADOPTED,
    PREVIOUS,
    BeginResult,
    Carrier,
    Receipt,
    TransactionId,
    TransactionRecord,
    count_rows,
)
from tracing_2pc.core.states import (
    FINAL,
    UNFINISHED,
    Decision,
    TransactionEvent,
    TransactionState,
)
from tracing_2pc.store.log import rules
from tracing_2pc.store.log.receipts import check_receipts
from tracing_2pc.tracing import instruments

_DECIDE: Final = {
    Decision.COMMIT: TransactionEvent.DECIDE_COMMIT,
    Decision.ABORT: TransactionEvent.DECIDE_ABORT,
}
_RESUME: Final = {
    Decision.COMMIT: TransactionEvent.RESUME_COMMIT,
    Decision.ABORT: TransactionEvent.RESUME_ABORT,
}


class Change(Protocol):
    """One change of a log, while it is open: all of it is stored, or nothing.

    `status` and `read` lock the application until the change ends.
    """

    def status(
        self, application: str, batch: int, run: str, query: str | None
    ) -> rules.ApplicationStatus:
        """Return what the log knows of an application."""

    def register(
        self, status: rules.ApplicationStatus, batch: int, run: str, query: str | None
    ) -> None:
        """Store the run and the query, and make forgotten_through durable."""

    def add_application(
        self, application: str, forgotten_through: int | None, query: str | None = None
    ) -> bool:
        """Store an application; False, and nothing, if it or its query is known."""

    def committed(self, application: str, batch: int) -> TransactionRecord | None:
        """Return the attempt of a batch that is decided commit."""

    def in_state(
        self, application: str, state: TransactionState
    ) -> list[TransactionRecord]:
        """Return the unfinished transactions in this state, oldest first."""

    def has_rival(self, transaction: TransactionId) -> bool:
        """Return whether the batch has a newer attempt, or a committed one."""

    def clock(self) -> float:
        """Return the time by which the log judges deadlines; Unix seconds."""

    def read(self, transaction: TransactionId) -> TransactionRecord | None:
        """Return the record, None if there is none."""

    def add(self, record: TransactionRecord) -> None:
        """Store a new record, with its receipts and who has acknowledged it."""

    def write(
        self,
        record: TransactionRecord,
        *,
        reason: str | None = None,
        given_up: str | None = None,
    ) -> None:
        """Store a record's new state, why, and the participant that was given up."""

    def note_passed(self, record: TransactionRecord) -> None:
        """Store which batch was begun after it, if any."""

    def drop_receipts_before(self, record: TransactionRecord) -> None:
        """Drop the receipts of the commit before this one, if that is finished."""

    def sign(
        self, who: str, what: str, why: str, before: str | None, after: str
    ) -> None:
        """Store what a person did."""


class BaseDecisionLog(abc.ABC):
    """The part of `DecisionLog` that decides. Promises are those of `DecisionLog`."""

    _now: Callable[[], float]

    @abc.abstractmethod
    def _durable(
        self, deciding: TransactionId | None = None
    ) -> AbstractContextManager[Change]:
        """Open a change; flushed to disk when the block has been left.

        If nobody knows whether a decision of `deciding` was stored, it raises
        `DecisionUnknownError`.
        """

    @abc.abstractmethod
    def _relaxed(self) -> AbstractContextManager[Change]:
        """Open a change that a crash may lose."""

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
        stream: bool = False,
    ) -> BeginResult:
        """Put the next attempt of a batch on record; see `DecisionLog.begin`."""
        query = query or None
        with self._noting_passed(batch), self._durable() as change:
            status = change.status(application, batch, run, query)
            new_run = not status.run_known
            rules.check_begin(
                status, batch, run, query, participants, replaces, stream=stream
            )
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
            # Rule 7: never decided and superseded means abort.
            superseded = tuple(
                self._write_decision(change, record, Decision.ABORT, "superseded")
                for record in active
            )
            previous = status.carrier.get("traceparent") if carrier else None
            opened = TransactionRecord(
                # Rule 3: each attempt has its own id.
                id=TransactionId(application, batch, status.attempt + 1),
                run=run,
                state=TransactionState.ACTIVE,
                decision=None,
                participants=tuple(participants),
                acknowledged=frozenset(),
                carrier={**carrier, PREVIOUS: previous} if previous else dict(carrier),
                started=self._now(),
                forgotten_through=status.forgotten_through,
                timeout=timeout,
                deadline=status.clock + timeout if timeout else None,
                own_sinks=frozenset(own_sinks),
            )
            change.add(opened)
            return BeginResult(
                opened, replay=False, superseded=superseded, new_run=new_run
            )

    @contextlib.contextmanager
    def _noting_passed(self, batch: int) -> Iterator[None]:
        """Put on record, in a change of its own, what a stream has passed."""
        try:
            yield
        except rules.PassedError as error:
            with contextlib.suppress(DecisionLogError), self._durable() as change:
                record = change.read(TransactionId.parse(error.transaction_id or ""))
                if record is not None and record.passed_by is None:
                    change.note_passed(dataclasses.replace(record, passed_by=batch))
            raise

    def decide(
        self,
        transaction: TransactionId,
        wanted: Decision,
        receipts: Sequence[Receipt] = (),
        cause: str | None = None,
    ) -> TransactionRecord | None:
        """Decide, once; its return is the commit point. See `DecisionLog.decide`."""
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
            return self._write_decision(change, record, wanted, cause, receipts)

    def expire(self, transaction: TransactionId) -> TransactionRecord | None:
        """Decide abort if its deadline has passed. See `DecisionLog.expire`."""
        with self._durable(transaction) as change:
            record = change.read(transaction)
            if record is None or rules.is_forgotten(record):
                return None
            if record.state is not TransactionState.ACTIVE or record.deadline is None:
                return record
            # Rule 8: by the log's clock, as the deadline was set.
            if change.clock() >= record.deadline:
                return self._write_decision(change, record, Decision.ABORT, "recovery")
            return record

    def finish(self, transaction: TransactionId) -> None:
        """Close it, once every participant has acknowledged. Idempotent."""
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

    @abc.abstractmethod
    def acknowledge(
        self, transaction: TransactionId, participant: str, untold: str | None = None
    ) -> None:
        """Record an acknowledgement; see `DecisionLog.acknowledge`."""

    def acknowledge_last(
        self, record: TransactionRecord, told: Mapping[str, str | None]
    ) -> None:
        """Record the last ones, and close; see `DecisionLog.acknowledge_last`."""
        for participant, untold in told.items():
            self.acknowledge(record.id, participant, untold)
        self.finish(record.id)

    def quarantine(self, transaction: TransactionId, reason: str) -> None:
        """Stop automatic work on it until a person resolves it. Idempotent."""
        with self._durable() as change:
            record = _read_known(change, transaction)
            if record.state is not TransactionState.QUARANTINED:
                after = rules.apply_event(record, TransactionEvent.QUARANTINE)
                change.write(after, reason=reason)

    def abort(self, transaction: TransactionId, *, who: str, why: str) -> None:
        """Decide abort, because a person says so. See `DecisionLog.abort`."""
        with self._durable(transaction) as change:
            before = _read_known(change, transaction)
            after = self._write_decision(change, before, Decision.ABORT, "operator")
            change.sign(who, f"abort {transaction}", why, before.state, after.state)

    def leave(self, transaction: TransactionId, *, who: str, why: str) -> None:
        """Note no more that it is passed. See `DecisionLog.leave`."""
        with self._durable() as change:
            before = _read_known(change, transaction)
            if before.state is not TransactionState.ABORTED or before.passed_by is None:
                raise ContractError(
                    f"{transaction} is {before.state}, and no stream has passed it",
                    transaction_id=str(transaction),
                )
            change.note_passed(dataclasses.replace(before, passed_by=None))
            passed = f"passed by batch {before.passed_by}"
            change.sign(who, f"leave {transaction}", why, passed, before.state)

    def resume(
        self, transaction: TransactionId, decision: Decision, *, who: str, why: str
    ) -> None:
        """Let a quarantined transaction go on. See `DecisionLog.resume`."""
        with self._durable() as change:
            before = _read_known(change, transaction)
            after = rules.apply_event(before, _RESUME[decision])
            if before.decision is not decision:
                raise ContractError(
                    f"{transaction} is decided {before.decision}: it cannot {decision}",
                    transaction_id=str(transaction),
                )
            change.write(after)
            change.sign(who, f"resume {transaction}", why, before.state, after.state)

    def conclude(
        self, transaction: TransactionId, outcome: str, *, who: str, why: str
    ) -> None:
        """Close what cannot be made whole. See `DecisionLog.conclude`."""
        if outcome not in ("mixed", "hazard"):
            raise ContractError(f"outcome {outcome!r}: expected mixed or hazard")
        with self._durable() as change:
            before = _read_known(change, transaction)
            event = TransactionEvent.CONCLUDE
            change.write(rules.apply_event(before, event, finished=self._now()))
            after = f"concluded {outcome}"
            change.sign(who, f"conclude {transaction}", why, before.state, after)

    def give_up(
        self, transaction: TransactionId, participant: str, *, who: str, why: str
    ) -> None:
        """Wait for one participant no more. See `DecisionLog.give_up`."""
        with self._durable() as change:
            before = _read_known(change, transaction)
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
            change.sign(who, f"give up {transaction}", why, before.state, after)

    def sign(
        self, what: str, *, who: str, why: str, before: str | None, after: str
    ) -> None:
        """Put on record what a person does elsewhere. See `DecisionLog.sign`."""
        with self._durable() as change:
            change.sign(who, what, why, before, after)

    def initialise(
        self, application: str, from_batch: int, *, who: str = "tracing-2pc init"
    ) -> None:
        """Say where an application starts that already ran without this log. Audited.

        Raises:
            ConfigurationError: the log knows the application already.
        """
        forgotten_through = rules.check_start(application, from_batch)
        with self._durable() as change:
            if not change.add_application(application, forgotten_through):
                raise ConfigurationError(
                    f"this log knows application {application!r} already: where it "
                    "goes on is in the log. To reprocess on purpose, choose a new "
                    "application name and a new checkpoint."
                )
            what, why = f"init {application}", "it ran before without this log"
            change.sign(who, what, why, None, f"from batch {from_batch}")

    def adopt(
        self,
        transaction: TransactionId,
        query: str,
        participants: Sequence[str],
        receipts: Sequence[Receipt],
        *,
        who: str,
        why: str,
    ) -> None:
        """Take over an application whose log is lost. See `DecisionLog.adopt`."""
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
            carrier={},
            started=now,
            decided=now,
            finished=now,
            receipts=tuple(receipts),
            rows=count_rows(receipts),
        )
        with self._durable() as change:
            if not change.add_application(application, forgotten_through, query):
                raise ConfigurationError(
                    f"this log knows application {application!r} or its query {query} "
                    "already: nothing was written. Run `tracing-2pc adopt` again"
                )
            if transaction.attempt:
                change.add(record)
            what = f"adopt {transaction if transaction.attempt else application}"
            change.sign(who, what, why, None, f"from batch {batch}")

    def _write_decision(
        self,
        change: Change,
        record: TransactionRecord,
        decision: Decision,
        cause: str | None,
        receipts: Sequence[Receipt] = (),
    ) -> TransactionRecord:
        kept = tuple(receipts) if decision is Decision.COMMIT else ()
        decided = rules.apply_event(
            record,
            _DECIDE[decision],
            decision=decision,
            decided=self._now(),
            receipts=kept,
            rows=count_rows(kept),
            cause=cause if decision is Decision.ABORT else None,
            newly_decided=True,
        )
        change.write(decided)
        return decided


def _read_known(change: Change, transaction: TransactionId) -> TransactionRecord:
    if (record := change.read(transaction)) is None:
        raise ContractError(
            f"{transaction}: the log has no record of it",
            transaction_id=str(transaction),
        )
    return record
