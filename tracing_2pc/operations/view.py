"""All that is known of one transaction, from the log and from whoever takes part."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from tracing_2pc.interfaces import Clock, SystemClock
from tracing_2pc.model import (
    BranchId,
    DeliveryRecord,
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.operations.actions import Action, Next, Seen, actions_for, next_steps
from tracing_2pc.operations.observation import Observed
from tracing_2pc.operations.orphans import may_be_begun
from tracing_2pc.operations.said import Said, ask_all
from tracing_2pc.operations.timeline import Event, timeline
from tracing_2pc.protocol.diagnosis import (
    Diagnosis,
    Thresholds,
    held_back,
    judge,
    left_alone,
)
from tracing_2pc.protocol.evidence import Case
from tracing_2pc.settings import Settings
from tracing_2pc.states import Decision, ParticipantState, TransactionState, Word
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.store.overview import Audited

RECEIPTS: Final = 200
"""Receipts that a view shows."""

_NOTHING: Final = frozenset({ParticipantState.UNKNOWN, ParticipantState.FORGOTTEN})


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """One transaction at one time. Times are Unix seconds by our clock.

    Args:
        transaction: which one.
        at: when it was looked at.
        known: the log knows its application.
        forgotten: at or below the watermark: a record may have been dropped.
        watermark: of its application.
        state: in the log; None without a record.
        decision: in the log; None while there is none.
        run: the life of the query that began it.
        started: when it was begun.
        decided: when it was decided.
        finished: when it was closed.
        trace: id of its trace; None where nothing was traced.
        reason: why it was quarantined, if it ever was.
        deliveries: how far the decision has got.
        receipts: the first `RECEIPTS` that a commit keeps; none once a later batch is
            committed.
        receipts_of: how many there are.
        rows: that a commit names, in all branches.
        audit: what persons have done about it.
        participants: what each of them says.
        diagnoses: what is wrong; empty where nothing is.
        left_alone: why nothing is said of what looks wrong.
        held_back: who keeps its application from going on, and since when.
        timeline: what happened, in order.
        next: what comes by itself.
        actions: what a person may do.
    """

    transaction: TransactionId
    at: float
    known: bool
    forgotten: bool
    watermark: int | None
    state: TransactionState | None
    decision: Decision | None
    run: str | None
    started: float | None
    decided: float | None
    finished: float | None
    trace: str | None
    reason: str | None
    deliveries: tuple[DeliveryRecord, ...]
    receipts: tuple[Receipt, ...]
    receipts_of: int
    rows: int
    audit: tuple[Audited, ...]
    participants: tuple[Said, ...]
    diagnoses: tuple[Diagnosis, ...]
    left_alone: tuple[str, ...]
    held_back: str | None
    timeline: tuple[Event, ...]
    next: tuple[Next, ...]
    actions: tuple[Action, ...]

    @property
    def silent(self) -> tuple[str, ...]:
        """Who has not acknowledged a decision, and cannot be read now."""
        told = {one.participant for one in self.deliveries if one.pending}
        open_ = self.decision is not None and self.finished is None
        found = (
            one for one in self.participants if one.error and one.participant in told
        )
        return tuple(one.participant for one in found) if open_ else ()

    @property
    def untold(self) -> tuple[DeliveryRecord, ...]:
        """Who counts as acknowledged although part of it was not told."""
        return tuple(one for one in self.deliveries if one.untold is not None)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON: the same names, ids and words as text."""
        found = plain(self)
        for one in found["participants"]:
            del one["shown"]
        return dict(found)


def look(
    log: SqlDecisionLog,
    participants: Mapping[str, Observed],
    transaction: TransactionId,
    settings: Settings,
    clock: Clock | None = None,
) -> View:
    """Ask everybody about one transaction; change nothing.

    Participants are asked before the log: what they hold without a record is then
    forgotten or foreign, and never too new. Whoever holds something that the log has
    closed is asked again: it may just have been told.

    Raises:
        DecisionLogError: the log cannot be read, or the record cannot be trusted.
    """
    clock = clock or SystemClock()
    said = ask_all(participants, transaction, clock)
    overview = log.overview
    record = log.read(transaction)
    if record is None or record.finished is not None:
        holding = {n: participants[n] for n, s in said.items() if s.oldest is not None}
        said |= ask_all(holding, transaction, clock)
    watermarks = overview.watermarks()
    deliveries = overview.deliveries(transaction)
    taking_part = _taking_part(record, said)
    case = _case(transaction, record, deliveries, watermarks, taking_part)
    case = dataclasses.replace(case, clock=overview.clock())
    now, limits = clock.now(), Thresholds.of(settings)
    diagnoses = tuple(judge(case, now, limits))
    seen = Seen(
        transaction,
        record,
        deliveries,
        taking_part,
        diagnoses,
        settings,
        known=case.known,
        forgotten=case.forgotten,
        may_be_begun=record is None and may_be_begun(log, transaction),
    )
    audit = tuple(overview.audit(transaction))
    receipts = record.receipts if record else ()
    return View(
        transaction,
        now,
        known=case.known,
        forgotten=case.forgotten,
        watermark=case.watermark,
        state=record.state if record else None,
        decision=record.decision if record else None,
        run=record.run if record else None,
        started=record.started if record else None,
        decided=record.decided if record else None,
        finished=record.finished if record else None,
        trace=record.trace_id if record else None,
        reason=overview.reason(transaction),
        deliveries=tuple(deliveries.values()),
        receipts=receipts[:RECEIPTS],
        receipts_of=len(receipts),
        rows=record.rows if record else 0,
        audit=audit,
        participants=tuple(taking_part),
        diagnoses=diagnoses,
        left_alone=tuple(left_alone(case, now, limits)),
        held_back=_held_back(record, deliveries, now),
        timeline=timeline(record, deliveries, audit, taking_part),
        next=next_steps(seen),
        actions=actions_for(seen),
    )


def _held_back(
    record: TransactionRecord | None,
    deliveries: Mapping[str, DeliveryRecord],
    now: float,
) -> str | None:
    if record is None or record.state is not TransactionState.COMMITTING:
        return None
    application = record.id.application
    return held_back(application, record.decided, deliveries.values(), now)


def _taking_part(
    record: TransactionRecord | None, said: Mapping[str, Said]
) -> list[Said]:
    """Return those on record, and whoever else says something of it."""
    if record is None:
        return list(said.values())
    nowhere = "it has no address here: add it to `participants` in tpc.toml"
    own = {name: Said(name, own_sink=True) for name in record.own_sinks}
    on_record = [
        said.get(name) or own.get(name) or Said(name, error=nowhere)
        for name in record.participants
    ]
    others = [
        one
        for name, one in said.items()
        if name not in record.participants
        and one.state is not None
        and one.state not in _NOTHING
    ]
    return on_record + others


def _case(
    transaction: TransactionId,
    record: TransactionRecord | None,
    deliveries: Mapping[str, DeliveryRecord],
    watermarks: Mapping[str, int | None],
    taking_part: list[Said],
) -> Case:
    closed = record is not None and record.finished is not None
    return Case(
        transaction,
        record=record,
        closed=record.state if record and closed else None,
        deliveries=deliveries,
        known=transaction.application in watermarks,
        watermark=watermarks.get(transaction.application),
        held={s.participant: s.held for s in taking_part if s.held is not None},
        shown={s.participant: s.shown for s in taking_part if s.shown is not None},
    )


def brief(record: TransactionRecord) -> dict[str, Any]:
    """Return a record in a line of JSON."""
    return {
        "transaction_id": str(record.id),
        "state": str(record.state),
        "decision": record.decision and str(record.decision),
        "pending": list(record.pending),
    }


def plain(value: Any) -> Any:
    """Return a value of ours as JSON has it; ids and words as their text."""
    if isinstance(value, (TransactionId, BranchId, Word)):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: plain(getattr(value, name)) for name in names}
    if hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value
