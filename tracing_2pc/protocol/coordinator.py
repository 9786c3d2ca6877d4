"""The coordinator: recover, begin, write, decide, deliver. Read `apply` first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from tracing_2pc import names
from tracing_2pc.errors import AbortedError, CommitPendingError, InDoubtError
from tracing_2pc.failpoints import failpoint
from tracing_2pc.interfaces import Clock, DecisionLog, Tracing
from tracing_2pc.model import Begun, Receipt, TransactionId, TransactionRecord
from tracing_2pc.protocol.asking import (
    Expiry,
    ask_abort,
    ask_commit,
    say_if_replaced,
    until_answered,
)
from tracing_2pc.protocol.deadline import Deadline
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.patience import Patience
from tracing_2pc.settings import Settings
from tracing_2pc.states import Decision, TransactionState

Receipts = Sequence[Receipt]


@dataclasses.dataclass(frozen=True)
class Coordinator:
    """Decides for one application; all that it must not lose is in the log."""

    application: str
    participants: tuple[str, ...]
    log: DecisionLog
    delivery: Delivery
    tracing: Tracing
    clock: Clock
    settings: Settings
    patience: Patience
    own_sinks: frozenset[str] = frozenset()
    replaces: frozenset[str] = frozenset()

    def apply(
        self,
        batch: int,
        *,
        run: str,
        query: str | None,
        write: Callable[[TransactionRecord], Receipts],
        cancel: Callable[[TransactionRecord], None],
    ) -> bool:
        """Apply a batch at every participant or at none; False if it was a replay.

        Args:
            batch: Spark's batch id.
            run: one life of the query; the newest wins.
            query: Spark's query id, None where unknown.
            write: runs the tasks; returns one receipt per partition, all votes in.
            cancel: stops those tasks, when the transaction has run out of time.
        """
        failpoint("driver.before_recovery")
        delivered = self.recover()
        failpoint("driver.before_begin")
        begun = self.begin(batch, run, query)
        record = begun.record
        if begun.replay:
            if record.id not in delivered:
                self.deliver(record)
            return False
        failpoint("driver.after_begin")
        expire = Expiry(self.log, record, cancel, self.tracing)
        receipts: Receipts = ()
        try:
            with Deadline(self.settings.transaction_timeout, expire, record.id):
                failpoint("driver.before_tasks")
                receipts = write(record)
                failpoint("driver.after_votes")
                record = self.decide(record, receipts)
        except InDoubtError:
            raise
        except BaseException as error:
            self.abort(record, error, receipts)
            expire.raise_with_advice(error)
            raise
        failpoint("driver.after_decide")
        self.deliver(record)
        failpoint("driver.after_finish")
        return True

    def recover(self) -> set[TransactionId]:
        """Finish what is decided, oldest first. What is undecided is begin's business.

        Commits are waited for, so that they reach a participant in batch order.

        Returns:
            The commits that all who have branches of them have acknowledged just now.
            An acknowledgement from before a crash is no proof that it is still there:
            the participant may have been put back to an earlier state since.
        """
        delivered = set()
        unfinished = partial(self.log.unfinished, self.application)
        for record in until_answered(unfinished, self.patience):
            if record.state is TransactionState.COMMITTING:
                self.deliver(record)
                having = {name for name in record.participants if record.chosen(name)}
                if having and having <= set(record.pending):
                    delivered.add(record.id)
            elif record.state is TransactionState.ABORTING:
                self.delivery.abort(record)
        return delivered

    def begin(self, batch: int, run: str, query: str | None) -> Begun:
        """Put the attempt on record before anybody is asked anything.

        Asked again without an answer, the log returns the attempt that it has opened.
        """
        started = self.clock.now()
        ask = partial(
            self.log.begin,
            self.application,
            batch,
            run=run,
            query=query,
            participants=self.participants,
            carrier=self.tracing.reserve(),
            timeout=self.settings.transaction_timeout,
            own_sinks=self.own_sinks,
            replaces=self.replaces,
        )
        begun = until_answered(ask, self.patience)
        record = begun.record
        with self.tracing.step(names.BEGIN, record.carrier, record, started) as step:
            step.set("tpc.replay", begun.replay)
            for old in begun.superseded:
                if old.made_here:
                    self.tracing.counted(old, "superseded")
                self.delivery.abort(old)
        return begun

    def decide(
        self, record: TransactionRecord, receipts: Receipts
    ) -> TransactionRecord:
        """Decide commit: the commit point is the return of `DecisionLog.decide`."""
        with self.tracing.step(names.DECIDE, record.carrier, record) as step:
            decided = ask_commit(self.log, record, receipts, self.patience)
            stands = decided.decision if decided else Decision.ABORT
            step.set("tpc.decision", str(stands))
        if decided is None or stands is not Decision.COMMIT:
            raise AbortedError(
                f"{record.id} was decided abort before its votes were in: a newer run "
                "took over, or it ran out of time. Nothing was committed",
                transaction_id=str(record.id),
            )
        self.tracing.counted(decided)
        self.tracing.decided(decided, reconstructed=False)
        return decided

    def deliver(self, record: TransactionRecord) -> None:
        """Send the commit until all have acknowledged; then forget what is old.

        Of a replay that the log calls finished the participants are asked, too.
        """
        finished = record.finished is not None
        deliver = self.delivery.confirm if finished else self.delivery.commit
        deliver(record, give_up=self.settings.on_pending == "fail")
        keep_from = self.clock.now() - self.settings.keep_finished
        self.delivery.forget(self.application, keep_from)

    def abort(
        self, record: TransactionRecord, cause: BaseException, known: Receipts
    ) -> None:
        """Ask for abort; send it once, if that stands, for all that is known."""
        decided = ask_abort(self.log, record, cause, self.tracing)
        if decided is not None and decided.decision is Decision.COMMIT:
            raise CommitPendingError(
                f"{record.id} is decided commit although this driver failed after its "
                "votes were in; the next start of the query finishes it",
                transaction_id=str(record.id),
            ) from cause
        if decided is not None:
            self.tracing.decided(decided, reconstructed=False)
            self.delivery.abort(dataclasses.replace(decided, receipts=tuple(known)))
            say_if_replaced(decided, cause)
