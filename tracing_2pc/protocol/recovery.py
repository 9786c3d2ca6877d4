"""One sweep over everything unfinished, for whoever is not the driver."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from tracing_2pc.errors import DecisionLogError, TwoPhaseError
from tracing_2pc.failpoints import failpoint
from tracing_2pc.interfaces import DecisionLog, Tracing
from tracing_2pc.model import TransactionRecord
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.states import Decision, TransactionState


@dataclasses.dataclass(frozen=True, slots=True)
class Recovered:
    """What a sweep did about one transaction, and what is left to do.

    `under_way` is an attempt in time, which is its driver's business: nothing is wrong.
    """

    record: TransactionRecord
    done: bool
    remark: str
    under_way: bool = False


@dataclasses.dataclass(frozen=True)
class Recovery:
    """Finishes what the log has decided and aborts what ran out of time.

    Safe beside a living driver: what is decided may be delivered by anybody, and an
    active attempt is aborted only by the log, when the log finds that the deadline that
    its job set has passed (rule 8). Quarantined transactions are left to a person.

    Args:
        log: the decision log; if it cannot be read nothing is touched.
        delivery: sends decisions.
        tracing: where the sweep is shown.
    """

    log: DecisionLog
    delivery: Delivery
    tracing: Tracing

    def sweep(self, application: str | None = None) -> Iterator[Recovered]:
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
                    raise  # the log itself cannot be read
                refused.append(error)
        return records, refused

    def settle(self, record: TransactionRecord) -> Recovered:
        """Finish one transaction if that is safe; everybody is asked once."""
        if record.state is TransactionState.QUARANTINED:
            return Recovered(record, done=False, remark="quarantined: resolve it")
        if record.state is TransactionState.ACTIVE:
            try:
                decided = self.log.expire(record.id)
            except TwoPhaseError as error:
                return Recovered(record, done=False, remark=str(error))
            if decided is None:
                return Recovered(record, done=True, remark="forgotten meanwhile")
            if decided.state is TransactionState.ACTIVE:
                remark = "active: left to its driver"
                return Recovered(decided, done=False, remark=remark, under_way=True)
            if decided.made_here:
                self.tracing.counted(decided, "recovery")
            failpoint("recovery.after_expire")
            record = decided
        try:
            silent = self.delivery.once(record)
        except TwoPhaseError as error:
            return Recovered(record, done=False, remark=str(error))
        if silent:
            return Recovered(record, done=False, remark=_unheard(silent))
        word = "committed" if record.decision is Decision.COMMIT else "aborted"
        if record.abandoned:
            word = f"concluded without {' and '.join(record.abandoned)}"
        return Recovered(record, done=True, remark=word)


def _unheard(silent: Mapping[str, str]) -> str:
    return "not acknowledged: " + "; ".join(
        f"{name} ({why})" for name, why in silent.items()
    )
