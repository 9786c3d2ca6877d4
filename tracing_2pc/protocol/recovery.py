"""Recovery by any process: finish what is decided, abort what ran out of time.

A driver recovers before its next batch, and waits for commits: `Coordinator.recover`.
Here each participant is asked once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tracing_2pc.core.errors import DecisionLogError, TwoPhaseError
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import TransactionRecord
from tracing_2pc.core.ports import DecisionLog, Tracing
from tracing_2pc.core.states import Decision, TransactionState
from tracing_2pc.protocol.delivery import Delivery


@dataclasses.dataclass(frozen=True, slots=True)
class RecoveryResult:
    """Result of a sweep for one transaction, and the work that is left."""

    record: TransactionRecord
    done: bool
    remark: str
    under_way: bool = False  # an attempt in time, left to its driver: nothing is wrong


@dataclasses.dataclass(frozen=True)
class Recovery:
    """Finishes decided transactions and aborts those that ran out of time.

    Safe beside a running driver: any process may deliver a decision, and an active
    attempt is aborted only by the log, when the log finds that the deadline that its
    job set has passed (rule 8). If the log cannot be read, nothing is touched.
    """

    log: DecisionLog
    delivery: Delivery
    tracing: Tracing

    def sweep(self, application: str | None = None) -> Iterator[RecoveryResult]:
        """Yield one item per unfinished transaction, oldest first, as it is handled.

        Raises:
            DecisionLogError: the log could not be read; nothing was done. Or, after
                everything else: some records cannot be trusted, and their
                applications were left alone.
        """
        failpoint("recovery.before_read")
        records, refused = self._read(application)
        failpoint("recovery.after_read")
        with self.tracing.sweep(records) as taken_over:
            for record in taken_over:
                yield self.settle(record)
                failpoint("recovery.between_transactions")
        if refused:
            raise DecisionLogError(
                "; ".join(str(error) for error in refused),
                transaction_id=refused[0].transaction_id,
            )

    def _read(
        self, application: str | None
    ) -> tuple[list[TransactionRecord], list[DecisionLogError]]:
        """Read by application: one that holds a refused record stops no other."""
        records: list[TransactionRecord] = []
        refused: list[DecisionLogError] = []
        every = self.log.unfinished_applications
        for name in every() if application is None else [application]:
            try:
                records += self.log.unfinished(name)
            except DecisionLogError as error:
                if error.transaction_id is None:
                    raise  # Rule 9: a log that cannot be read means leave alone.
                refused.append(error)
        return records, refused

    def settle(self, record: TransactionRecord) -> RecoveryResult:
        """Finish one transaction if that is safe; each participant is asked once."""
        # A quarantined transaction is left to a person, whatever was decided.
        if record.state is TransactionState.QUARANTINED:
            return RecoveryResult(record, done=False, remark="quarantined: resolve it")
        if record.state is TransactionState.ACTIVE:
            try:
                # Rule 8: only the log finds that the deadline has passed.
                decided = self.log.expire(record.id)
            except TwoPhaseError as error:
                return RecoveryResult(record, done=False, remark=str(error))
            if decided is None:
                return RecoveryResult(record, done=True, remark="forgotten meanwhile")
            if decided.state is TransactionState.ACTIVE:
                remark = "active: left to its driver"
                return RecoveryResult(
                    decided, done=False, remark=remark, under_way=True
                )
            if decided.newly_decided:
                self.tracing.count_decision(decided)
            failpoint("recovery.after_expire")
            record = decided
        try:
            recovering = dataclasses.replace(record, recovering=True)
            missing = self.delivery.send_once(recovering)
            if record.own_sinks:  # one of them may just have been given up
                record = self.log.read(record.id) or record
        except TwoPhaseError as error:
            return RecoveryResult(record, done=False, remark=str(error))
        if missing:
            reasons = "; ".join(f"{name} ({cause})" for name, cause in missing.items())
            remark = f"not acknowledged: {reasons}"
            return RecoveryResult(record, done=False, remark=remark)
        word = "committed" if record.decision is Decision.COMMIT else "aborted"
        if record.abandoned:
            word = f"concluded without {' and '.join(record.abandoned)}"
        return RecoveryResult(record, done=True, remark=word)
