"""The seams: the protocol's interfaces of a log, a participant, a sink, a clock.

Each method documents when it is called, what it may rely on, and what raising means.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from tracing_2pc.core.model import (
    BeginResult,
    BranchContext,
    Carrier,
    Facts,
    JournalAt,
    Receipt,
    Root,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.states import Decision


class Clock(Protocol):
    """Time and waiting, so that tests decide both."""

    def now(self) -> float:
        """Unix seconds; for records and ages, never for ordering."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        """Unix seconds."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The arguments of `DecisionLog.begin` about an attempt.

    Args:
        run: one life of the query; the newest run wins, once, for ever.
        query: Spark's query id, kept in the checkpoint; None where unknown.
        participants: their names.
        carrier: trace context of the transaction's root.
        timeout: seconds until any process may abort the attempt (`expire`), by the
            log's clock; 0 means never.
        own_sinks: those participants that only the job itself can reach.
        replaces: all of the previous participants, if they changed on purpose. It
            allows no other change, so it may be given for ever; or the present ones, if
            one of them has another journal on purpose.
        stream: Spark counts the batches, and begins none before the one before it is
            done; else the caller may leave one out.
        attempt: the number that a new attempt must get; otherwise another one has begun
            since the caller read the log.
        journals: of the participants whose journal is known, its id and address.
        facts: further facts to record of a new attempt.
        rejects: the participant that keeps the rows that others refused.
    """

    run: str
    query: str | None
    participants: Sequence[str]
    carrier: Carrier
    timeout: float = 0.0
    own_sinks: Collection[str] = ()
    replaces: Collection[str] = ()
    stream: bool = False
    attempt: int | None = None
    journals: Mapping[str, JournalAt] = dataclasses.field(default_factory=dict)
    facts: Facts = dataclasses.field(default_factory=Facts)
    rejects: str | None = None


class DecisionLog(Protocol):
    """The coordinator's durable memory; the only truth about a decision (rule 15).

    Read `begin`, `decide` and `acknowledge_last` first: a batch that meets no trouble
    needs no others. `acknowledge`, `postpone`, `finish` and `quarantine` are for one
    that does, `unfinished` and `expire` for recovery.

    A change is durable when the method returns, and serialised for one application.
    Only the changes by `acknowledge`, `postpone`, `finish` and `forget` may be lost in
    a crash: they are made again. Every method raises `DecisionLogError` when the log
    cannot be reached; only `decide` and `abort` can leave it unknown whether they were
    written: that is `DecisionUnknownError`. `ContractError` means that the record's
    state does not allow it, or that there is no record.

    The methods from `abort` on, except `forget`, are actions of a person. `who` and
    `why` are the person's name and reason; the log keeps them.
    """

    def begin(self, application: str, batch: int, opening: Opening) -> BeginResult:
        """Record the next attempt of a batch, before any participant is asked.

        Every earlier undecided attempt of the application is decided abort in the
        same transaction. An undecided attempt of the same run is joined, so that a
        begin without an answer may be asked again. A batch that is decided commit, with
        no later one, is a replay: its record is returned and nothing is opened.

        Args:
            application: name of the streaming query, for ever.
            batch: Spark's.
            opening: the run that begins it, and the facts to record.

        Raises:
            ConfigurationError: this checkpoint and this log do not belong together, the
                query is known by another application's name, the batch lies below
                what is decided or forgotten, a stream has passed a batch whose newest
                attempt is not committed, the participants are neither those of the
                newest transaction nor declared by `replaces`, or a journal is another
                than there, and `replaces` does not name them all. Nothing is written
                then, and nothing aborted; only that a batch was passed is noted with
                it.
            HeuristicError: a transaction of this application is quarantined.
            AbortedError: another run has superseded this one, or begun `attempt`.
        """

    def decide(
        self,
        transaction: TransactionId,
        wanted: Decision,
        receipts: Sequence[Receipt] = (),
        cause: str | None = None,
        detail: str | None = None,
    ) -> TransactionRecord | None:
        """Decide, once, and return the record with the decision that stands.

        Write-once: it changes an active record and nothing else, so a driver that slept
        through its own replacement is told abort and must obey. Commit is written only
        for the newest attempt of a batch that has no committed one (rules 14 and 18).
        Safe to repeat. `cause` and `detail`, a line without secrets, are recorded with
        an abort.

        Returns:
            The record as it stands. None if there is no record, or the batch is at
            or below forgotten_through: that means abort.

        Raises:
            ContractError: commit without every vote, with more than `MAX_BRANCHES`
                branches for one participant, or with a handle above 64 KiB.
            DecisionUnknownError: no answer; ask again, never take it for a no.
        """

    def note_journals(
        self, transaction: TransactionId, journals: Mapping[str, JournalAt]
    ) -> None:
        """Add journals that were not known at begin, while it is undecided. Idempotent.

        An id that is on record stays.
        """

    def expire(self, transaction: TransactionId) -> TransactionRecord | None:
        """Decide abort if its deadline has passed, and return the record as it stands.

        The log judges by its own clock and the deadline recorded at begin: a caller's
        clock and settings don't count (rule 8). Returns and raises as `decide` does.
        """

    def read(self, transaction: TransactionId) -> TransactionRecord | None:
        """Return the record; None if it was forgotten or never was."""

    def unfinished(self, application: str | None = None) -> list[TransactionRecord]:
        """List what is active, committing, aborting or quarantined, oldest first.

        Cost does not depend on how many finished records the log holds.

        Raises:
            DecisionLogError: the log cannot be reached; or one of the records cannot
                be trusted, and the error has its `transaction_id`.
        """

    def unfinished_applications(self) -> list[str]:
        """List those with something unfinished, sorted; no record is looked into."""

    def acknowledge(
        self, transaction: TransactionId, participant: str, untold: str | None = None
    ) -> None:
        """Record that a participant has obeyed the decision. Idempotent.

        `untold` is the reason why a part of it was not told and never will be.
        """

    def postpone(
        self,
        transaction: TransactionId,
        participant: str,
        error: str,
        retry_at: float | None,
    ) -> None:
        """Record that a try failed, why (a short word), and when the next is due.

        `retry_at` is Unix seconds, at the latest; None where no further try is planned.
        """

    def finish(self, transaction: TransactionId) -> None:
        """Close it, once every participant has acknowledged (rule 11). Idempotent.

        Without those that a person gave up: it is *concluded* then. The receipts of the
        committed batch before it are dropped: that is not begun again.
        """

    def acknowledge_last(
        self, record: TransactionRecord, answers: Mapping[str, str | None]
    ) -> None:
        """Record the acknowledgements that were missing, and close: all in one.

        `record` is as the log returned it; `answers` has the participants, each with
        the reason why a part could not be told, or None. After a crash all is there, or
        it is asked for again; or the acknowledgements alone, if the record has changed
        since.
        """

    def quarantine(self, transaction: TransactionId, reason: str) -> None:
        """Stop automatic work on it until a person resolves it. Idempotent.

        The first reason stays. Its application cannot begin until then.
        """

    def abort(self, transaction: TransactionId, *, who: str, why: str) -> None:
        """Decide abort of an active transaction. Its driver learns it when it asks."""

    def leave(self, transaction: TransactionId, *, who: str, why: str) -> None:
        """Stop reporting an aborted batch as passed: its rows are written nowhere.

        This does not continue its stream, which may be gone.
        """

    def resume(
        self, transaction: TransactionId, decision: Decision, *, who: str, why: str
    ) -> None:
        """Let a quarantined transaction go on: it is delivered again where it pends.

        The person must know the decision: another one is refused.
        """

    def conclude(
        self, transaction: TransactionId, outcome: str, *, who: str, why: str
    ) -> None:
        """Close a quarantined transaction that cannot be made whole: *mixed*, *hazard*.

        Its application may begin again. No participant is told: those still `pending`
        on the record may hold prepared branches for ever.
        """

    def give_up(
        self, transaction: TransactionId, participant: str, *, who: str, why: str
    ) -> None:
        """Wait no more for a participant that is gone for good. It is told nothing.

        A delivery calls it, too, for a sink with `give_up_after_store_timeout`; `who`
        is the sink then. When all others have acknowledged, `finish` closes the
        transaction as *concluded*, because its outcome there is unknown: the
        participant may hold prepared branches for ever.
        """

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
        """Record a person's action elsewhere; changes nothing else.

        `verb` is as in `resolve`; `after` is the order to the transaction, or its new
        state.
        """

    def forget(self, application: str, *, finished_before: float, limit: int) -> int:
        """Drop old finished batches, at most `limit`; return how many transactions.

        forgotten_through is raised past them in the same step and never falls. A batch
        is dropped only when Spark has begun a later one (rule 17), and it and every
        batch below it finished in all attempts before `finished_before`, in Unix
        seconds. A crash may lose all of that: participants are told only what the next
        `begin` has made durable. The cost is that of the slice.
        """

    def initialise(self, application: str, from_batch: int) -> None:
        """Set the first batch of an application that already ran without this log.

        Raises:
            ConfigurationError: the log knows it already.
        """

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
        """Take over an application whose log is lost, on a person's order.

        It starts at the transaction's batch: all below counts as finished. If given,
        `participants` is the complete list, and each has committed this attempt: it
        goes on record as finished, and a begin of the batch is a replay. Without, the
        batch is committed nowhere: the attempts up to this one are used up, and the
        next begin takes the next number. Attempt 0 means that there was none.

        `transaction` is the newest attempt that a participant knows at that batch;
        `receipts` are of the branches that they committed: a replay asks for those.
        `journals` are those of the participants: another one is refused later. Rows
        that `rejects` has committed, if it takes part, are counted as rejected.

        Raises:
            ConfigurationError: the log knows the application already, or its query.
        """

    def close(self) -> None:
        """Release connections. Nothing is lost if it is never called."""


class Participant(Protocol):
    """One participant, as the delivery of a decision sees it. Called from threads."""

    @property
    def name(self) -> str:
        """Its configured name: a closed set, used as a label."""

    def commit(self, record: TransactionRecord) -> None:
        """Make the branches that `record.chosen(name)` names visible, seal the rest.

        Idempotent; called until it returns.

        Raises:
            ParticipantNotToldError: a part of it cannot be told; it is not asked again.
            ParticipantUnavailableError: no trusted answer, so it may have committed.
            ParticipantRefusedError: a definite no, with the state it is in there.
            ParticipantGivenUpError: it may be lost there, and is not asked for again.
        """

    def abort(self, record: TransactionRecord) -> None:
        """Drop all that this transaction prepared there and refuse what comes late.

        Idempotent. Raises as `commit` does.
        """


class Step(Protocol):
    """An open step of the trace."""

    def set(self, attribute: str, value: str | int | float) -> None:
        """Add an attribute of the registry."""

    def end(self) -> None:
        """End it now; it stays the parent of what comes inside.

        For a step that may wait long: a span is exported when it ends, and a process
        that is killed while it waits must not leave the parent of its other spans
        unsent.
        """


class Tracing(Protocol):
    """The protocol's events for traces and metrics. Nothing here raises or blocks."""

    def reserve(self) -> Root:
        """Fix the ids of a transaction's root before it exists.

        Its facts go on record, so that any process exports the same root.
        """

    def step(
        self,
        name: str,
        carrier: Carrier,
        record: TransactionRecord | None = None,
        started: float | None = None,
    ) -> AbstractContextManager[Step]:
        """Open a span of the registry, under the current span or else the carrier.

        The current span is the parent only if it is in the carrier's trace. `record`
        gives the attributes; `started`, in Unix seconds, is for a step that began
        before the record was known.
        """

    def sweep(
        self, records: Sequence[TransactionRecord]
    ) -> AbstractContextManager[Sequence[TransactionRecord]]:
        """Open `tpc.recovery`, a trace of its own, linked to each transaction.

        With nothing to recover no span is opened. Yields the records.
        """

    def export_root(self, record: TransactionRecord, *, taken_over: bool) -> None:
        """Export the root `tpc.transaction`, from begin to decision, with its ids.

        It depends on the record alone, so that two processes export the same span.
        `taken_over`: another process has decided, and may have exported it before it
        was killed. A process does so once.
        """

    def finished(self, record: TransactionRecord, outcome: str) -> None:
        """Export `tpc.finish`, from the decision to now, with the outcome."""

    def quarantined(self, record: TransactionRecord, action: str | None = None) -> None:
        """Export `tpc.quarantine`: it begins, or a person's action ends it."""

    def count_decision(self, record: TransactionRecord) -> None:
        """Count a decision, and why it is abort, in the process that made it."""

    def record_answer(
        self, participant: str, decision: Decision, result: str, seconds: float
    ) -> None:
        """Measure one try to tell a participant the decision.

        `result` is `ok`, `refused`, or `unavailable` where no answer can be trusted.
        """


@runtime_checkable
class TwoPhaseCommitSink(Protocol):
    """A sink of one's own: any class with these five methods is one.

    A handle is plain JSON (a mapping, or a frozen dataclass of plain fields), is all
    that recovery gets, and is small after `pre_commit`. `begin()` without context is
    accepted, and so are the names of Flink's methods (`names.SINK_METHODS`). Optional
    members of a sink are in `SinkOptions`.

    An exception from `commit`, `abort` or their likes means "not now": all are called
    again. `errors.ParticipantRefusedError` means that it will never be done: the
    transaction is quarantined, for a person.
    """

    def begin(self, context: BranchContext) -> Any:
        """Open a branch, on an executor. Returns its handle."""

    def invoke(self, handle: Any, record: Any) -> None:
        """Write one record; or have `invoke_batch(handle, arrow_batch)` instead."""

    def pre_commit(self, handle: Any) -> None:
        """Make the branch durable, on an executor. Raising is a vote to abort."""

    def commit(self, handle: Any) -> None:
        """Make it visible. On the driver; for each chosen branch; idempotent."""

    def abort(self, handle: Any) -> None:
        """Drop it. Executor on its own failure, driver for branches it knows."""


class SinkOptions(TwoPhaseCommitSink, Protocol):
    """Optional members of a sink, looked up by these names, and no other.

    The values here are the defaults. Do not inherit from this class or from
    `TwoPhaseCommitSink`: inherited methods count as not implemented.
    """

    name: str | None = None
    """The participant's; None: the name of the sink's class."""
    handle_type: type[Any] | None = None
    """The dataclass that a handle is made of again; None: it stays plain JSON. If a
    handle has an attribute `receipt_branch`, the branch of its receipt is put there."""
    driver_path: bool = False
    """Whether the driver may write a small batch: nothing interrupts a phase there."""
    store_timeout: float | None = None
    """Seconds for which the store keeps what is prepared; None: for ever."""
    store_timeout_warning: float | None = None
    """The part of them, 0 to 1, after which a commit is warned of; None: never."""
    give_up_after_store_timeout: bool = False
    """Whether a recovered commit that fails after them is given up, and data lost."""

    def check_job(self, application: str) -> None:
        """Refuse a job by raising: in the driver, once, where the job is set up."""

    def check_store(self, handles: Sequence[Any]) -> None:
        """Refuse another store than that of these, the newest commit: at each start."""

    def before_tasks(self, schema: Any) -> None:
        """Make room for rows of this Arrow schema: in the driver, before their tasks.

        It is called for each attempt at a batch. An exception aborts the attempt.
        """

    def invoke_batch(self, handle: Any, batch: Any) -> None:
        """Write an Arrow batch: instead of `invoke`."""

    def commit_transaction(self, transaction_id: str, handles: Sequence[Any]) -> None:
        """Commit these and drop the rest: instead of `commit`, `abort_transaction`."""

    def abort_transaction(self, transaction_id: str, keep: Sequence[Any]) -> None:
        """Drop all that the transaction prepared but for these: none after an abort.

        A sink that can leave data behind when a task dies, or has a twin, must have it:
        a branch that never reported is unknown everywhere else. It cannot stop a task
        that prepares later still: the other side must refuse that.
        """

    def recover_and_commit(self, handle: Any) -> None:
        """Commit, where the decision was found in the log: instead of `commit`.

        After a start, before a later batch, in a replay: it may be committed already.
        """

    def recover_and_abort(self, handle: Any) -> None:
        """Flink's. Never called: the log has no handle of an aborted transaction."""

    def finish_recovery(self, handles: Sequence[Any]) -> None:
        """At each start, when all that was left is delivered; these were committed.

        An exception ends the query before anything is written.
        """


@runtime_checkable
class DistributedSink(Protocol):
    """A sink in front of several participants; each is told the decision separately.

    Its `begin`, `invoke` or `invoke_batch`, `pre_commit` and `abort` are those of
    `TwoPhaseCommitSink`; instead of `commit` it names its participants, so that the log
    can keep each acknowledgement.
    """

    @property
    def participants(self) -> Mapping[str, Participant]:
        """Those that a decision is delivered to, by name."""

    def begin(self, context: BranchContext) -> Any:
        """Open a branch, on an executor."""

    def pre_commit(self, handle: Any) -> Sequence[Receipt]:
        """Make the branch durable at every participant; return the vote of each."""

    def abort(self, handle: Any) -> None:
        """Drop a branch, on its executor."""
