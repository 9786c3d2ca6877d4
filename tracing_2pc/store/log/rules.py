"""The decision log's rules, free of any database: every implementation asks here."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Final

from tracing_2pc.core.errors import (
    AbortedError,
    ConfigurationError,
    ContractError,
    HeuristicError,
    IllegalTransitionError,
)
from tracing_2pc.core.model import (
    Carrier,
    JournalAt,
    TransactionId,
    TransactionRecord,
    check_application,
    way_back,
    writes_of,
)
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import TransactionEvent, TransactionState, advance

_NOT_COMMITTED: Final = frozenset(
    {TransactionState.ACTIVE, TransactionState.ABORTING, TransactionState.ABORTED}
)
"""Without a commit, and no person has closed it."""


class PassedError(ConfigurationError):
    """A stream has passed a batch that is not committed. It is put on record there."""


@dataclasses.dataclass(frozen=True, slots=True)
class ApplicationStatus:
    """The log's facts about an application, at the begin of one of its batches."""

    application: str
    known: bool  # whether the log knew it before
    participants: tuple[str, ...]
    query: str | None
    query_owner: str | None  # another application that has the query that asks
    forgotten_through: int | None
    durable_forgotten_through: int | None
    quarantined: str | None  # the id of a quarantined transaction
    reason: str | None  # for which it is
    newest_run: str | None
    run_known: bool
    committed: int | None  # the newest batch that is decided commit
    newest: str | None  # the newest transaction, with its `participants`
    state: TransactionState | None  # of the newest
    journals: Mapping[str, JournalAt]  # of the newest
    attempt: int  # the newest of the batch that wants to begin; 0: none
    carrier: Carrier  # of that attempt
    has_active: bool  # some attempt is undecided
    clock: float  # the log's time


def check_start(application: str, from_batch: int) -> int | None:
    """Return forgotten_through of an application that starts at a batch."""
    _check_name(application)
    if from_batch < 0:
        raise ConfigurationError(f"from batch {from_batch}: batches count from 0")
    return from_batch - 1 if from_batch else None


def _check_name(application: str) -> None:
    try:
        check_application(application)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def check_begin(
    status: ApplicationStatus,
    batch: int,
    opening: Opening,
) -> None:
    """Admit a batch of an application, or raise; see `DecisionLog.begin`."""
    run, query, participants = opening.run, opening.query or None, opening.participants
    if len(set(participants)) != len(participants):
        raise ConfigurationError(f"a participant is named twice: {participants}")
    _check_query(status, query)
    if not status.known:
        _check_first_batch(status.application, batch, query)
    if status.quarantined:
        raise HeuristicError(
            f"{status.quarantined} is quarantined: {status.reason}. A person must "
            f"look: `tracing-2pc resolve {status.quarantined}`",
            transaction_id=status.quarantined,
        )
    if status.run_known and status.newest_run != run:
        raise AbortedError(
            f"run {run} of application {status.application!r} was superseded by run "
            f"{status.newest_run}: stop this query"
        )
    _check_age(status, batch, run, query)
    if batch != status.committed:  # else a replay: for the participants on record
        if opening.stream:
            _check_before(status, batch)
        _check_change(status, participants, opening.replaces)
        _check_journals(status, opening.journals, opening.replaces)


def check_attempt(status: ApplicationStatus, batch: int, expected: int | None) -> None:
    """Refuse to supersede an attempt that began after the caller read the log."""
    if expected is not None and expected != status.attempt + 1:
        raise AbortedError(
            f"attempt {status.attempt} at batch {batch} of application "
            f"{status.application!r} began after the log was read: read it again"
        )


def _check_query(status: ApplicationStatus, query: str | None) -> None:
    """Refuse another checkpoint than before, or one that has another name here.

    The batch in flight may be committed under that name: no replay would be noticed.
    """
    if status.query is None and status.query_owner is not None:
        raise ConfigurationError(
            f"application {status.application!r} is query {query}, and this log knows "
            f"that query, from this checkpoint, as application {status.query_owner!r}: "
            "an application is not renamed, its batch in flight could be written "
            f"twice. Go on with application={status.query_owner!r}. To reprocess on "
            f"purpose, start {status.application!r} with a new checkpoint."
        )
    if query and status.query and query != status.query:
        raise ConfigurationError(
            f"application {status.application!r} belongs to query {status.query}, this "
            f"is query {query}, from another checkpoint: restore the checkpoint, or "
            "choose a new application name"
        )


def _check_first_batch(application: str, batch: int, query: str | None) -> None:
    _check_name(application)
    if batch != 0:
        init = f"`tracing-2pc init --application {application} --from-batch {batch}`"
        if query == writes_of(application):
            raise ConfigurationError(
                f"this log does not know application {application!r}, and this is "
                f"batch {batch}. If the log is the wrong one, point `log` at the right "
                f"one. If the application begins with this batch: {init}"
            )
        lost = ""
        if query:  # Spark's, so that there is a checkpoint
            command = f"tracing-2pc adopt --application {application} --checkpoint DIR"
            lost = f"If it is lost: `{command}`, with the checkpoint's folder. "
        raise ConfigurationError(
            f"this log does not know application {application!r}, and this is batch "
            f"{batch}. If the log is the wrong one, point `log` at the right one. "
            f"{lost}If the query ran before without tracing_2pc: {init}. To reprocess "
            "on purpose, choose a new application name and a new checkpoint."
        )


def _check_before(status: ApplicationStatus, batch: int) -> None:
    """Refuse what Spark begins after a batch that it counts as done, and that is not.

    An attempt begun before the query was known had a caller's number. A record that was
    adopted as aborted has no participants: it was no attempt that this log has seen.
    """
    if status.newest is None or status.query is None or not status.participants:
        return
    before = TransactionId.parse(status.newest).batch
    if before >= batch or status.state not in _NOT_COMMITTED:
        return
    raise PassedError(
        f"{status.newest} is not committed, and Spark begins batch {batch}: it counts "
        f"batch {before} as done, because an error of the callback was caught, and "
        f"would never write its rows. The way back: {way_back(before)}. Then batch "
        f"{before} is written anew. If nothing of it is to be written, call the "
        "callback for it with df.limit(0)",
        transaction_id=status.newest,
    )


def _check_change(
    status: ApplicationStatus, participants: Collection[str], replaces: Collection[str]
) -> None:
    before = status.participants
    if not before or set(before) in (set(participants), set(replaces)):
        return
    names = {
        "left out": [name for name in before if name not in participants],
        "new": [name for name in participants if name not in before],
    }
    change = "; ".join(f"{k} {', '.join(v)}" for k, v in names.items() if v)
    raise ConfigurationError(
        f"application {status.application!r}: its participants changed after "
        f"{status.newest}: {change}. A participant that is left out gets no rows "
        "from now on, a new one has none of the earlier batches, and a renamed one is "
        "both. If that is meant, name the earlier ones: two_phase_commit(..., "
        f"replaces={before!r}). If not, go on with those"
    )


def _check_journals(
    status: ApplicationStatus,
    journals: Mapping[str, JournalAt],
    replaces: Collection[str],
) -> None:
    """Refuse another database by an old name; the same one at a new address is it."""
    for name, journal in journals.items():
        before = status.journals.get(name, journal)
        if before.id != journal.id and set(status.participants) != set(replaces):
            raise ConfigurationError(
                f"application {status.application!r}: {name} at {journal.url} is "
                f"journal {journal.id}, and {status.newest} had journal {before.id} "
                f"at {before.url}: what is there is not here. Point the address of "
                f"{name} at that one; it may move, its journal moves with it. If it is "
                "another one on purpose, which has none of the earlier batches: "
                f"two_phase_commit(..., replaces={status.participants!r})"
            )


def journals_of(status: ApplicationStatus, opening: Opening) -> dict[str, JournalAt]:
    """Return those of a new attempt: a silent participant keeps the one on record."""
    if set(status.participants) == set(opening.replaces):
        return dict(opening.journals)
    names = status.journals.keys() & set(opening.participants)
    return {name: status.journals[name] for name in names} | {**opening.journals}


def _check_age(
    status: ApplicationStatus, batch: int, run: str, query: str | None
) -> None:
    # Rule 17: nothing begins at or below forgotten_through.
    if status.forgotten_through is not None and batch <= status.forgotten_through:
        passed = f"everything up to batch {status.forgotten_through} is finished"
    elif status.committed is not None and batch < status.committed:
        passed = f"batch {status.committed} is decided commit"
    else:
        return
    if query == writes_of(status.application):
        raise ConfigurationError(
            f"application {status.application!r} wants batch {batch}, but {passed}: "
            "its numbers rise from batch to batch. Nothing was written; give it a "
            "higher one, or another application"
        )
    other = ""
    if status.newest_run not in (None, run):
        other = (
            f"another driver, run {status.newest_run}, has gone on, and this driver "
            "slept too long or lost the race: stop one of the two, nothing is lost. "
            "If no other has run on it, "
        )
    raise ConfigurationError(
        f"application {status.application!r} wants batch {batch}, but {passed}: "
        f"{other}this checkpoint is older than the log. Restore the newer checkpoint, "
        "or choose a new application name and a new checkpoint."
    )


def is_forgotten(record: TransactionRecord) -> bool:
    """Return whether its batch lies at or below forgotten_through."""
    return (
        record.forgotten_through is not None
        and record.id.batch <= record.forgotten_through
    )


def apply_event(
    record: TransactionRecord, event: TransactionEvent, **changes: Any
) -> TransactionRecord:
    """Return the record after an event, or raise `IllegalTransitionError`."""
    try:
        state = advance(record.state, event)
    except KeyError:
        raise IllegalTransitionError(
            f"{record.id} is {record.state}: it cannot {event}",
            transaction_id=str(record.id),
        ) from None
    return dataclasses.replace(record, state=state, **changes)


def check_acknowledge(record: TransactionRecord, participant: str) -> None:
    """Refuse an acknowledgement without a decision, or without being on record."""
    if record.state is TransactionState.ACTIVE:
        problem = "there is no decision to acknowledge"
    elif participant not in record.participants:
        problem = f"{participant} is not on record"
    else:
        return
    raise ContractError(
        f"{record.id}: {problem}",
        transaction_id=str(record.id),
        participant=participant,
    )
