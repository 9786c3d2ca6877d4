"""The coordinator: open, write, close or fail. Read `apply` first.

`apply` runs a batch whose writing is one function. A program that is called at each
step, as an operator or a data source is, calls `open`, then `close` or `fail`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from tracing_2pc.core import names
from tracing_2pc.core.errors import (
    AbortedError,
    CommitPendingError,
    ConfigurationError,
    HeuristicError,
    InDoubtError,
    ParticipantRefusedError,
)
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import (
    ADOPTED,
    BeginResult,
    Facts,
    JournalAt,
    Receipt,
    TransactionId,
    TransactionRecord,
    count_rejected,
)
from tracing_2pc.core.ports import Clock, DecisionLog, Opening, Tracing
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision, TransactionState, Vote
from tracing_2pc.protocol.deadline import Expiry, deadline
from tracing_2pc.protocol.decisions import (
    ask_until_answered,
    decide_abort,
    decide_commit,
    describe_cause,
    raise_if_superseded,
)
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.protocol.votes import check_votes, raise_if_refused

logger = logging.getLogger(__name__)

Receipts = Sequence[Receipt]
Journals = Callable[[Collection[str]], Mapping[str, JournalAt]]

_NAMED: Final = 1_000
"""Characters, at most, in which rejected rows are named."""

_ABORTED: Final = (
    "was decided abort before its votes were in: a newer run took over, or it ran out "
    "of time"
)
_GONE: Final = (
    "is not in the decision log any more, which was put back to an older copy, or has "
    "forgotten what a newer run aborted"
)


@dataclasses.dataclass(frozen=True)
class Coordinator:
    """Decides for one application; all that it must not lose is in the log.

    `recovered` is called at a run's first batch, after the transactions of earlier runs
    were delivered and before anything is written. An exception aborts the attempt.
    `describe` returns a failure as a line, which is recorded with the abort. `journals`
    returns those that are known, of the participants that are services; it is given the
    names of those that have voted. `rejects` names the participant that keeps the rows
    which others refused: more than `rejects_at_most` abort the batch.

    Of a `stream` Spark counts the batches: one that it begins after a batch that is not
    committed is refused (`DecisionLog.begin`). `facts` go on record with each attempt.

    Waits end when `retry.stopping` returns True: the batch then stays in the log, and
    the next start goes on with it.
    """

    application: str
    participants: tuple[str, ...]
    log: DecisionLog
    delivery: Delivery
    tracing: Tracing
    clock: Clock
    settings: Settings
    retry: RetryPolicy
    own_sinks: frozenset[str] = frozenset()
    replaces: frozenset[str] = frozenset()
    recovered: Callable[[], None] = lambda: None
    stream: bool = False
    describe: Callable[[BaseException], str] = describe_cause
    facts: Facts = dataclasses.field(default_factory=Facts)
    journals: Journals = lambda voted: {}
    rejects: str | None = None
    rejects_at_most: int = 0

    def apply(
        self,
        batch: int,
        *,
        run: str,
        query: str | None,
        write: Callable[[TransactionRecord], Receipts],
        cancel: Callable[[TransactionRecord], None],
        attempt: int | None = None,
    ) -> bool:
        """Apply a batch at every participant or at none; False if it was a replay.

        `batch`, `run`, `query` and `attempt` are as for `DecisionLog.begin`. `write`
        runs the tasks and returns one receipt per partition and participant; `cancel`
        stops those tasks when the transaction has run out of time.
        """
        begun = self.open(batch, run, query, attempt)
        if begun.replay:
            return False
        record = begun.record
        expiry = Expiry(self.log, record, cancel, self.tracing)
        limit = deadline(self.settings.transaction_timeout, expiry, record)
        receipts: list[Receipt] = []
        try:
            # The deadline has ended when an abort is sent.
            with self._failing(record, receipts), limit:
                failpoint("driver.before_tasks")
                receipts += write(record)
                failpoint("driver.after_votes")
                decided = self.decide(record, receipts)
        except AbortedError as error:
            expiry.raise_with_advice(error)
            raise
        self._deliver(decided)
        return True

    def open(
        self, batch: int, run: str, query: str | None, attempt: int | None = None
    ) -> BeginResult:
        """Finish what is decided, then put the next attempt on record.

        When it returns, the attempt and its participants are durable: branches may be
        prepared for `record.id`, with `record.carrier` as their trace context. A replay
        has been delivered again, and nothing is to be written. After a crash at any
        point, call it again.

        Raises:
            CommitPendingError: an earlier commit is not acknowledged yet.
            TwoPhaseError: as `DecisionLog.begin`.
        """
        failpoint("driver.before_recovery")
        delivered = self.recover()
        failpoint("driver.before_begin")
        begun = self.begin(batch, run, query, attempt)
        if not begun.replay:
            failpoint("driver.after_begin")
        # Rule 18: a batch that is decided commit is not written again.
        elif begun.record.id not in delivered:
            self.deliver(_recovering(begun.record))
        if begun.new_run and begun.replay:
            self.recovered()
        elif begun.new_run:
            with self._failing(begun.record, ()):
                self.recovered()
        return begun

    def join(self, batch: int, run: str) -> TransactionRecord | None:
        """Return the undecided attempt at a batch that this run has on record, if any.

        For tasks that have no driver to `open` for them: the first one opens, and the
        others read. An attempt that is superseded is decided abort, so it is not found.
        """
        unfinished = partial(self.log.unfinished, self.application)
        for record in ask_until_answered(unfinished, self.retry):
            mine = (record.id.batch, record.run) == (batch, run)
            if mine and record.state is TransactionState.ACTIVE:
                return record
        return None

    def read(self, transaction: TransactionId) -> TransactionRecord | None:
        """Return what the log has of a transaction."""
        return ask_until_answered(partial(self.log.read, transaction), self.retry)

    def close(self, record: TransactionRecord, receipts: Receipts) -> None:
        """Decide commit with every vote: the commit point. Then deliver it.

        `record` is what `open` returned; `receipts` are one per branch and participant.
        An empty batch has one branch, about which each votes read_only.

        Raises:
            ContractError: a vote is missing. It was aborted, as by `fail`.
            ParticipantRefusedError: a vote is to abort. It was aborted, as by `fail`.
            AbortedError: the log had decided abort. It was aborted, as by `fail`.
            InDoubtError: it is in the log; the next `open` goes on with it.
            HeuristicError: a participant contradicts the decision.
        """
        with self._failing(record, receipts):
            decided = self.decide(record, receipts)
        self._deliver(decided)

    def fail(
        self, record: TransactionRecord, cause: BaseException, receipts: Receipts = ()
    ) -> None:
        """Ask for abort; send it once, if that stands, for all receipts that are known.

        Returns also where the log did not answer: the next `open` aborts it then.

        Raises:
            CommitPendingError: it is decided commit.
            AbortedError: another process had aborted it, which explains the cause.
        """
        # Rule 8: nobody sends abort without asking the log to decide it.
        step = "at the decision" if receipts else "while it was written"
        if any(receipt.vote is Vote.ABORT for receipt in receipts):
            step = "at prepare"
        detail = f"{step}: {self.describe(cause)}"
        decided = decide_abort(self.log, record, cause, self.tracing, detail)
        if decided is None:
            return
        if decided.decision is Decision.COMMIT:
            raise CommitPendingError(
                f"{record.id} is decided commit although this driver failed after its "
                "votes were in; the next start of the query finishes it",
                transaction_id=str(record.id),
            ) from cause
        self.tracing.export_root(decided, taken_over=False)
        self.delivery.abort(dataclasses.replace(decided, receipts=tuple(receipts)))
        raise_if_superseded(decided, cause)

    def recover(self) -> set[TransactionId]:
        """Finish decided transactions, oldest first; leave undecided ones to `begin`.

        Commits are waited for, so that they reach a participant in batch order. A
        quarantined transaction does not hold up the others.

        Returns:
            The commits that all participants with branches of them have just
            acknowledged. An acknowledgement from before a crash is no proof that it is
            still there: the participant may have been restored to an earlier state
            since.

        Raises:
            CommitPendingError: as `open`; younger transactions were not tried.
            ConfigurationError: one is in another journal than an address leads to.
            HeuristicError: the first that was quarantined, after all were tried.
        """
        unfinished = partial(self.log.unfinished, self.application)
        delivered = set()
        refused: list[HeuristicError] = []
        for record in map(_recovering, ask_until_answered(unfinished, self.retry)):
            self._check_journals(record)
            try:
                if record.state is TransactionState.COMMITTING:
                    # Rule 10: commits not acknowledged are sent again after any start.
                    self.deliver(record)
                    having = {n for n in record.participants if record.chosen(n)}
                    if having and having <= set(record.pending):
                        delivered.add(record.id)
                elif record.state is TransactionState.ABORTING:
                    self.delivery.abort(record)
            except HeuristicError as error:
                refused.append(error)
        if refused:
            raise refused[0]
        return delivered

    def begin(
        self, batch: int, run: str, query: str | None, attempt: int | None = None
    ) -> BeginResult:
        """Put the attempt on record before any participant is asked."""
        root = self.tracing.reserve()  # first: nothing begins before the root
        started = self.clock.now()
        opening = Opening(
            run=run,
            query=query,
            participants=self.participants,
            carrier=root.carrier,
            timeout=self.settings.transaction_timeout,
            own_sinks=self.own_sinks,
            replaces=self.replaces,
            stream=self.stream,
            attempt=attempt,
            facts={**self.facts, **root.facts},
            journals=self.journals(()),
            rejects=self.rejects,
        )
        ask = partial(self.log.begin, self.application, batch, opening)
        begun = ask_until_answered(ask, self.retry)
        record = begun.record
        with self.tracing.step(names.BEGIN, record.carrier, record, started) as step:
            step.set("tpc.replay", begun.replay)
            for superseded in begun.superseded:
                if superseded.newly_decided:
                    self.tracing.count_decision(superseded)
                # Rule 7: begin has decided abort of what was undecided.
                self.delivery.abort(_recovering(superseded))
        return begun

    def decide(
        self, record: TransactionRecord, receipts: Receipts
    ) -> TransactionRecord:
        """Decide commit: the commit point. Its exceptions are for `fail`."""
        raise_if_refused(record, receipts)
        # Rule 1: decide commit only with every vote; the log checks it again.
        check_votes(record, receipts)
        self._check_rejected(record, receipts)
        self._note_journals(record, receipts)
        with self.tracing.step(names.DECIDE, record.carrier, record) as step:
            decided = decide_commit(self.log, record, receipts, self.retry)
            stands = decided.decision if decided else Decision.ABORT
            step.set("tpc.decision", str(stands))
        # Rule 15: the answer of the log counts, not what was asked for.
        if decided is None or stands is not Decision.COMMIT:
            raise AbortedError(
                f"{record.id} {_GONE if decided is None else _ABORTED}. "
                "Nothing was committed",
                transaction_id=str(record.id),
            )
        self.tracing.count_decision(decided)
        self.tracing.export_root(decided, taken_over=False)
        return decided

    def _check_rejected(self, record: TransactionRecord, receipts: Receipts) -> None:
        """Refuse a batch of which all tasks together have rejected too many rows."""
        if not (count := count_rejected(receipts, record.rejects)):
            return
        kept = (r for r in receipts if r.participant == record.rejects and r.rows)
        rows = "; ".join(receipt.reason for receipt in kept)[:_NAMED]
        if count > self.rejects_at_most:
            raise ParticipantRefusedError(
                f"{record.id}: {count} rows are rejected, and rejects_at_most is "
                f"{self.rejects_at_most}: {rows}",
                transaction_id=str(record.id),
                participant=record.rejects,
            )
        text = "rows are rejected: transaction=%s rows=%d rejects=%s: %s"
        logger.warning(text, record.id, count, record.rejects, rows)

    def _note_journals(self, record: TransactionRecord, receipts: Receipts) -> None:
        """Put the journals on record that did not tell their ids before the batch."""
        voted = {r.participant for r in receipts if r.vote is Vote.COMMIT}
        if unknown := voted - self.own_sinks - record.journals.keys():
            journals = self.journals(unknown)
            if new := {n: journals[n] for n in unknown if n in journals}:
                note = partial(self.log.note_journals, record.id, new)
                ask_until_answered(note, self.retry)

    def deliver(self, record: TransactionRecord) -> None:
        """Send the commit until all have acknowledged; then forget what is old."""
        # Of a replay that the log calls finished the participants are asked, too.
        finished = record.finished is not None
        if finished and record.run == ADOPTED:
            self._check_asked(record)
        give_up = self.settings.on_pending == "fail"
        if finished:
            # What a person has replaced has nothing of it: `begin` has looked at that.
            is_replaced = self.replaces == frozenset(record.participants)
            replaced = self._elsewhere(record) if is_replaced else ()
            self.delivery.confirm(record, replaced, give_up=give_up)
        else:
            self.delivery.commit(record, give_up=give_up)
        keep_from = self.clock.now() - self.settings.keep_finished
        self.delivery.forget(self.application, keep_from)

    def _elsewhere(self, record: TransactionRecord) -> list[str]:
        """Return the participants whose journal is another than the record's."""
        known = self.journals(()) if record.journals else {}
        return [
            name
            for name, journal in record.journals.items()
            if name in known and known[name].id != journal.id
        ]

    def _check_journals(self, record: TransactionRecord) -> None:
        """Wait for no acknowledgement from a journal that is not the record's."""
        if record.decision is None:
            return
        for name in sorted({*self._elsewhere(record)} & {*record.pending}):
            is_at, journal = record.journals[name], self.journals(())[name]
            raise ConfigurationError(
                f"{record.id} is decided {record.decision}, and {name} has it in "
                f"journal {is_at.id} at {is_at.url}; {journal.url} is journal "
                f"{journal.id}: either this is not the log of these participants, or "
                f"{name} is another one now. Point `log` and the address of {name} at "
                "the right ones until it is finished; if that journal is gone for "
                f"good: `tracing-2pc resolve {record.id} --give-up {name}`",
                transaction_id=str(record.id),
                participant=name,
            )

    def _check_asked(self, record: TransactionRecord) -> None:
        """Skip no replay for a participant that was not asked at the adoption."""
        had = record.participants
        unasked = ", ".join(name for name in self.participants if name not in had)
        if unasked and self.replaces != frozenset(had):
            raise ConfigurationError(
                f"{record.id} was adopted when its log was lost, and nobody has asked "
                f"{unasked}: see first what is there (`tracing-2pc ls`), and commit or "
                "bring there what is missing. Then, or if it takes part since later: "
                f"two_phase_commit(..., replaces={had!r})",
                transaction_id=str(record.id),
            )

    @contextlib.contextmanager
    def _failing(self, record: TransactionRecord, receipts: Receipts) -> Iterator[None]:
        """Fail the transaction with any exception raised inside, and raise it."""
        try:
            yield
        except InDoubtError:
            raise  # It may be decided commit: the next start asks the log.
        except BaseException as error:
            self.fail(record, error, receipts)
            raise

    def _deliver(self, decided: TransactionRecord) -> None:
        failpoint("driver.after_decide")
        # Rule 2: the decision is durable before the first commit is sent.
        self.deliver(decided)
        failpoint("driver.after_finish")


def _recovering(record: TransactionRecord) -> TransactionRecord:
    return dataclasses.replace(record, recovering=True)
