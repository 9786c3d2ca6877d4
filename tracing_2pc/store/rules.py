"""The rules of the decision log, free of any database: what may begin, what may move.

Every implementation asks here, so that they cannot differ in what they refuse.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, Final, NoReturn

from tracing_2pc.errors import (
    AbortedError,
    ConfigurationError,
    ContractError,
    HeuristicError,
    IllegalTransitionError,
)
from tracing_2pc.model import (
    PREVIOUS,
    Carrier,
    Receipt,
    TransactionId,
    TransactionRecord,
    check_application,
)
from tracing_2pc.states import (
    TRANSACTION_TABLE,
    UNFINISHED,
    Decision,
    TransactionEvent,
    TransactionState,
    advance,
)

DECIDE: Final = {
    Decision.COMMIT: TransactionEvent.DECIDE_COMMIT,
    Decision.ABORT: TransactionEvent.DECIDE_ABORT,
}
RESUME: Final = {
    Decision.COMMIT: TransactionEvent.RESUME_COMMIT,
    Decision.ABORT: TransactionEvent.RESUME_ABORT,
}
OUTCOMES: Final = ("mixed", "hazard")


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """What the log knows of an application when one of its batches wants to begin.

    Args:
        query: Spark's query id, None if it was never told.
        watermark: everything up to it is finished and forgotten.
        quarantined: id and reason of a quarantined transaction.
        newest_run: the run that registered last.
        run_known: the run that asks has registered before.
        committed: the newest batch that is decided commit.
        newest: id of the newest transaction, whatever became of it.
        participants: those of the newest transaction.
    """

    query: str | None = None
    watermark: int | None = None
    quarantined: tuple[str, str] | None = None
    newest_run: str | None = None
    run_known: bool = False
    committed: int | None = None
    newest: str | None = None
    participants: tuple[str, ...] = ()


def check_known(application: str, batch: int) -> None:
    """Admit an application that the log does not know: only from its first batch."""
    _check_name(application)
    if batch != 0:
        raise ConfigurationError(
            f"this log does not know application {application!r}, and this is batch "
            f"{batch}. If the log is the wrong one, point `log` at the right one. If "
            "the query already ran without tracing_2pc: `tracing-2pc init "
            f"--application {application} --from-batch {batch}`. To reprocess on "
            "purpose, choose a new application name and a new checkpoint."
        )


def check_query(application: str, query: str, owner: str | None) -> None:
    """Refuse a query, that is a checkpoint, that has begun under another name here.

    The batch in flight may be committed under that name: no replay would be noticed.
    """
    if owner is not None:
        raise ConfigurationError(
            f"application {application!r} is query {query}, and this log knows that "
            f"query, from this checkpoint, as application {owner!r}: an application "
            "is not renamed, its batch in flight could be written twice. Go on with "
            f"application={owner!r}. To reprocess on purpose, start {application!r} "
            "with a new checkpoint."
        )


def check_start(application: str, from_batch: int) -> int | None:
    """Return the watermark of an application that starts at a batch."""
    _check_name(application)
    if from_batch < 0:
        raise ConfigurationError(f"from batch {from_batch}: batches count from 0")
    return from_batch - 1 if from_batch else None


def refuse_known(application: str) -> NoReturn:
    """Refuse to start an application that the log knows."""
    raise ConfigurationError(
        f"this log knows application {application!r} already: where it goes on is in "
        "the log. To reprocess on purpose, choose a new application name and a new "
        "checkpoint."
    )


def _check_name(application: str) -> None:
    try:
        check_application(application)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def check_begin(
    standing: Standing,
    application: str,
    batch: int,
    run: str,
    query: str | None,
    participants: Collection[str],
    replaces: Collection[str],
) -> None:
    """Admit a batch of a known application, or say what to do.

    Raises:
        ConfigurationError: this checkpoint and this log do not belong together, or
            the participants changed and `replaces` does not name the earlier ones.
        HeuristicError: a transaction of the application is quarantined.
        AbortedError: a newer run has registered.
    """
    if query and standing.query and query != standing.query:
        raise ConfigurationError(
            f"application {application!r} belongs to query {standing.query}, this is "
            f"query {query}, from another checkpoint: restore the checkpoint, or "
            "choose a new application name"
        )
    if standing.quarantined:
        transaction, reason = standing.quarantined
        raise HeuristicError(
            f"{transaction} is quarantined: {reason}. A person must look: "
            f"`tracing-2pc resolve {transaction}`",
            transaction_id=transaction,
        )
    if standing.run_known and standing.newest_run != run:
        raise AbortedError(
            f"run {run} of application {application!r} was superseded by run "
            f"{standing.newest_run}: stop this query"
        )
    _check_age(standing, application, batch, run)
    if batch != standing.committed:  # else a replay: for the participants on record
        _check_change(standing, application, participants, replaces)


def _check_change(
    standing: Standing,
    application: str,
    participants: Collection[str],
    replaces: Collection[str],
) -> None:
    before = standing.participants
    if not before or set(before) in (set(participants), set(replaces)):
        return
    names = {
        "left out": [name for name in before if name not in participants],
        "new": [name for name in participants if name not in before],
    }
    change = "; ".join(f"{k} {', '.join(v)}" for k, v in names.items() if v)
    raise ConfigurationError(
        f"application {application!r}: its participants changed after "
        f"{standing.newest}: {change}. A participant that is left out gets no rows "
        "from now on, a new one has none of the earlier batches, and a renamed one is "
        "both. If that is meant, name the earlier ones: two_phase_commit(..., "
        f"replaces={before!r}). If not, go on with those"
    )


def _check_age(standing: Standing, application: str, batch: int, run: str) -> None:
    if standing.watermark is not None and batch <= standing.watermark:
        passed = f"everything up to batch {standing.watermark} is finished"
    elif standing.committed is not None and batch < standing.committed:
        passed = f"batch {standing.committed} is decided commit"
    else:
        return
    other = ""
    if standing.newest_run not in (None, run):
        other = (
            f"another driver, run {standing.newest_run}, has gone on, and this driver "
            "slept too long or lost the race: stop one of the two, nothing is lost. "
            "If no other has run on it, "
        )
    raise ConfigurationError(
        f"application {application!r} wants batch {batch}, but {passed}: {other}this "
        "checkpoint is older than the log. Restore the newer checkpoint, or choose a "
        "new application name and a new checkpoint."
    )


def check_participants(participants: Sequence[str]) -> tuple[str, ...]:
    """Return the names, each of them once."""
    if len(set(participants)) != len(participants):
        raise ConfigurationError(f"a participant is named twice: {participants}")
    return tuple(participants)


def opened(
    identity: TransactionId,
    run: str,
    participants: tuple[str, ...],
    carrier: Carrier,
    *,
    previous: Carrier,
    now: float,
    watermark: int | None,
    timeout: float,
    clock: float,
    own_sinks: Collection[str] = (),
) -> TransactionRecord:
    """Return the record of an attempt that begins, linked to the one before it.

    `now` is the writer's time, `clock` the log's, by which the deadline is set.
    """
    before = previous.get("traceparent")
    return TransactionRecord(
        id=identity,
        run=run,
        state=TransactionState.ACTIVE,
        decision=None,
        participants=participants,
        acknowledged=frozenset(),
        carrier={**carrier, PREVIOUS: before} if carrier and before else dict(carrier),
        started=now,
        watermark=watermark,
        timeout=timeout,
        deadline=clock + timeout if timeout else None,
        own_sinks=frozenset(own_sinks),
    )


def overdue(record: TransactionRecord, clock: float) -> bool:
    """Say whether an active attempt's deadline has passed, by the log's clock."""
    active = record.state is TransactionState.ACTIVE
    return active and record.deadline is not None and clock >= record.deadline


def forgotten(record: TransactionRecord) -> bool:
    """Say whether the watermark has passed it: then nothing can be decided."""
    return record.watermark is not None and record.id.batch <= record.watermark


def unknown(transaction: TransactionId) -> ContractError:
    """Make the error for a transaction that must be on record and is not."""
    return ContractError(
        f"{transaction}: the log has no record of it", transaction_id=str(transaction)
    )


def moved(
    record: TransactionRecord, event: TransactionEvent, **changes: Any
) -> TransactionRecord:
    """Return the record after an event, with further changes.

    Raises:
        IllegalTransitionError: its state does not know the event.
    """
    try:
        state = advance(TRANSACTION_TABLE, record.state, event)
    except KeyError:
        raise IllegalTransitionError(
            f"{record.id} is {record.state}: it cannot {event}",
            transaction_id=str(record.id),
        ) from None
    return dataclasses.replace(record, state=state, **changes)


def decided(
    record: TransactionRecord,
    decision: Decision,
    receipts: tuple[Receipt, ...],
    now: float,
) -> TransactionRecord:
    """Return the record with its decision, made here; receipts only with a commit."""
    kept = receipts if decision is Decision.COMMIT else ()
    event = DECIDE[decision]
    rows = sum(receipt.rows for receipt in kept)
    about = {"decided": now, "receipts": kept, "rows": rows, "made_here": True}
    return moved(record, event, decision=decision, **about)


def finished(record: TransactionRecord, now: float) -> TransactionRecord:
    """Return the record closed, once everybody has acknowledged (rule 11).

    Without whom a person gave up; it is concluded then, and not called whole.
    """
    event = TransactionEvent.FINISH
    if record.abandoned:
        event = TransactionEvent.FINISH_WITHOUT
    closed = moved(record, event, finished=now)
    if record.pending:
        raise ContractError(
            f"{record.id} cannot finish: {', '.join(record.pending)} has not "
            "acknowledged",
            transaction_id=str(record.id),
        )
    return closed


def without(record: TransactionRecord, participant: str) -> TransactionRecord:
    """Return a decided record that waits no more for one of its participants."""
    if record.state not in UNFINISHED:
        what = f"{record.id} is {record.state}: it waits for nobody"
    elif participant not in record.pending:
        what = f"{record.id} does not wait for {participant}"
    else:
        given_up = record.given_up | {participant}
        return dataclasses.replace(record, given_up=given_up)
    raise ContractError(what, transaction_id=str(record.id), participant=participant)


def resumed(record: TransactionRecord, decision: Decision) -> TransactionRecord:
    """Return a quarantined record back under way: only as it was decided."""
    after = moved(record, RESUME[decision])
    if record.decision is not decision:
        raise ContractError(
            f"{record.id} is decided {record.decision}: it cannot {decision}",
            transaction_id=str(record.id),
        )
    return after


def concluded(record: TransactionRecord, outcome: str, now: float) -> TransactionRecord:
    """Return a quarantined record closed by a person, as it cannot be made whole."""
    if outcome not in OUTCOMES:
        raise ContractError(f"outcome {outcome!r}: expected {' or '.join(OUTCOMES)}")
    return moved(record, TransactionEvent.CONCLUDE, finished=now)


def check_acknowledge(record: TransactionRecord, participant: str) -> None:
    """Refuse the acknowledgement of something that nobody was told."""
    if record.state is TransactionState.ACTIVE:
        what = "there is no decision to acknowledge"
    elif participant not in record.participants:
        what = f"{participant} is not on record"
    else:
        return
    raise ContractError(
        f"{record.id}: {what}", transaction_id=str(record.id), participant=participant
    )
