"""What comes next by itself, what a person may do, and what that would cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from tracing_2pc.model import (
    DeliveryRecord,
    Holds,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.operations.said import Said
from tracing_2pc.protocol.diagnosis import GRAVE, Diagnosis, lasting
from tracing_2pc.settings import Settings
from tracing_2pc.states import (
    Decision,
    ParticipantState,
    TransactionState,
)

GIVE_UP: Final = "give up"
"""Wanted of a participant that is gone for good while its answer is waited for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Next:
    """What happens without anybody's help.

    Args:
        what: in plain words.
        at: Unix seconds when it is due; None for never, or not known.
    """

    what: str
    at: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """What a person can do.

    Args:
        command: to type, or the request to send.
        safe: it can only do what is decided, or what the log's rules allow.
        effect: what it does.
        cost: what is lost or kept busy by it, a line each.
        wanted: what `resolve` is asked for: commit, abort, conclude or give up; None
            for another command.
        at: the participant where it is done, or that is given up; None for the log.
    """

    command: str
    safe: bool
    effect: str
    cost: tuple[str, ...] = ()
    wanted: str | None = None
    at: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What actions are chosen by.

    Args:
        transaction: which one.
        record: what the log holds of it.
        deliveries: by participant.
        participants: what each of them says.
        diagnoses: what is wrong.
        settings: in force.
        known: the log knows its application.
        forgotten: at or below the watermark: another attempt may have been committed.
        may_be_begun: there is no record, and the log can still write one.
    """

    transaction: TransactionId
    record: TransactionRecord | None
    deliveries: Mapping[str, DeliveryRecord]
    participants: Sequence[Said]
    diagnoses: Sequence[Diagnosis]
    settings: Settings
    known: bool = True
    forgotten: bool = False
    may_be_begun: bool = False

    @property
    def holding(self) -> list[Said]:
        """Participants with something in doubt."""
        return [one for one in self.participants if one.oldest is not None]


# --- next ----------------------------------------------------------------------------


def next_steps(seen: Seen) -> tuple[Next, ...]:
    """Say what comes next by itself, and when."""
    record = seen.record
    if record is None and seen.may_be_begun:
        return (_begun_later(seen.transaction),)
    if record is None:
        return (Next("nothing: no record of this log can finish it"),)
    if record.state is TransactionState.ACTIVE:
        return tuple(_undecided(record))
    if record.state is TransactionState.QUARANTINED:
        what = "nothing: automatic work has stopped, and its application cannot begin"
        return (Next(what),)
    if record.finished is not None:
        what = "it is forgotten, once Spark has begun a later batch"
        return (Next(what, record.finished + seen.settings.keep_finished),)
    return tuple(_deliveries(record, seen.deliveries))


def _begun_later(transaction: TransactionId) -> Next:
    return Next(
        f"its query, when it begins batch {transaction.batch}, writes a record of it, "
        "and finishes what is prepared: start it"
    )


def _undecided(record: TransactionRecord) -> Iterator[Next]:
    yield Next("its driver decides when all votes are in")
    if record.deadline is not None:
        what = "out of time: its driver, or `tracing-2pc recover`, decides abort"
        yield Next(what, record.deadline)
    yield Next("the next start of the query decides abort, and writes it again")


def _deliveries(
    record: TransactionRecord, deliveries: Mapping[str, DeliveryRecord]
) -> Iterator[Next]:
    for name in record.pending:
        told = deliveries.get(name)
        whom = "by its driver while that lives, by the next start, or by `tracing-2pc "
        whom += "recover`"
        if name in record.own_sinks:
            whom = "by its driver while that lives, or by the next start of the job: "
            whom += "nobody else can tell a sink of its own"
        what = f"{name} is told to {record.decision} again: {whom}"
        yield Next(what, told.retry_at if told else None)


# --- actions -------------------------------------------------------------------------


def actions_for(seen: Seen) -> tuple[Action, ...]:
    """Say what a person may do, safe things first."""
    record = seen.record
    if record is None or record.finished is not None:
        return (*_untold(seen), *_by_hand(seen))
    choose: Callable[[Seen, TransactionRecord], Iterable[Action]] = {
        TransactionState.ACTIVE: _active,
        TransactionState.QUARANTINED: _quarantined,
    }.get(record.state, _decided)
    return tuple(sorted(choose(seen, record), key=lambda action: not action.safe))


def _active(seen: Seen, record: TransactionRecord) -> Iterator[Action]:
    rows = sum(one.holds.rows for one in seen.holding)
    dropped = f"{rows} rows that are prepared are dropped; Spark writes the batch again"
    yield Action(
        f"tracing-2pc resolve {record.id} --abort --reason …",
        safe=True,
        effect="decides abort, once; its driver, if it lives, is told so and obeys",
        cost=(dropped,),
        wanted=str(Decision.ABORT),
    )


def _untold(seen: Seen) -> Iterator[Action]:
    """Say who may hold something that nothing here can ask about."""
    for one in seen.deliveries.values():
        if one.untold is not None:
            yield Action(
                f"look into what {one.participant} keeps of {seen.transaction}",
                safe=True,
                effect="finds what was prepared there and is left; nothing here can "
                "ask it",
            )


def _decided(seen: Seen, record: TransactionRecord) -> Iterator[Action]:
    yield from _untold(seen)
    yield from (_give_up(record, name) for name in record.pending)
    own = [name for name in record.pending if name in record.own_sinks]
    if own:
        yield Action(
            f"start the job of {record.id.application}",
            safe=True,
            effect=f"tells its own sink {' and '.join(own)} to {record.decision} "
            "first; nobody else can",
        )
    services = [name for name in record.pending if name not in own]
    if own and not services:
        return
    whom = " and ".join(services) or "nobody"
    grave = _grave(seen)
    against = " and ".join(name for name in record.pending if name in grave)
    then = f"; {against} will contradict that, and it is quarantined" if against else ""
    yield Action(
        f"tracing-2pc recover --application {record.id.application}",
        safe=True,
        effect=f"tells {whom} to {record.decision} again{then}",
        wanted=str(record.decision),
    )


def _give_up(record: TransactionRecord, name: str) -> Action:
    rows = sum(receipt.rows for receipt in record.chosen(name))
    cost = [f"what {name} has prepared stays there until it is resolved there"]
    if record.decision is Decision.COMMIT and rows:
        cost = [f"{rows} rows of the batch may never be committed at {name}", *cost]
    return Action(
        f"tracing-2pc resolve {record.id} --give-up {name} --reason …",
        safe=False,
        effect=f"where {name} is gone for good: waits for it no more; "
        "ends as concluded",
        cost=tuple(cost),
        wanted=GIVE_UP,
        at=name,
    )


def _quarantined(seen: Seen, record: TransactionRecord) -> Iterator[Action]:
    yield Action(
        f"tracing-2pc resolve {record.id} --{record.decision} --reason …",
        safe=True,
        effect="delivers what was decided again; "
        + (
            "it is quarantined again until the participants agree"
            if _grave(seen)
            else "right where what contradicted it is mended"
        ),
        wanted=str(record.decision),
    )
    yield Action(
        f"tracing-2pc resolve {record.id} --conclude mixed|hazard --reason …",
        safe=False,
        effect="closes it as it is; its application may begin; nobody is told anything",
        cost=tuple(_cost_of_closing(seen, record)),
        wanted="conclude",
    )


def _grave(seen: Seen) -> set[str]:
    """Return at whom something is that no waiting mends."""
    grave = [one for one in seen.diagnoses if one.diagnosis in GRAVE]
    return {name for one in grave for name in one.participants}


def _cost_of_closing(seen: Seen, record: TransactionRecord) -> Iterator[str]:
    for one in seen.participants:
        if one.oldest is not None:
            held = busy(one.holds)
            yield f"{one.participant} keeps {held} until it is resolved there"
    if record.decision is Decision.COMMIT:
        states = {one.participant: one.state for one in seen.participants}
        for name in record.participants:
            rows = sum(receipt.rows for receipt in record.chosen(name))
            if rows and states.get(name) is None:
                yield f"{name} cannot be read: {rows} rows may not be committed there"
            elif rows and states[name] is not ParticipantState.COMMITTED:
                yield f"{rows} rows of the batch are not committed at {name}"
    else:
        for one in seen.participants:
            if one.state is ParticipantState.COMMITTED:
                yield f"{one.participant} shows {one.rows} rows of an aborted batch"


def _by_hand(seen: Seen) -> Iterator[Action]:
    for one in () if seen.may_be_begun else seen.holding:
        if _allows(seen.record, Decision.ABORT):
            yield _abort_there(seen, one)
        if _allows(seen.record, Decision.COMMIT) and not seen.forgotten:
            yield _commit_there(seen, one)


def _allows(record: TransactionRecord | None, outcome: Decision) -> bool:
    """Whether what the log has decided and closed lets a participant do this."""
    if record is None or record.state is TransactionState.CONCLUDED:
        return True
    return record.decision is outcome


def _abort_there(seen: Seen, one: Said) -> Action:
    committed = [o for o in seen.participants if o.state is ParticipantState.COMMITTED]
    lost = f"{one.holds.rows} rows there are lost"
    if committed:
        lost += f", and {committed[0].participant} has committed them"
    decided = seen.record is not None and seen.record.decision is Decision.ABORT
    return Action(
        _at(seen, one, Decision.ABORT),
        safe=decided,
        effect=f"drops what is prepared there; frees {busy(one.holds)}"
        + _not_yet(seen, one),
        cost=() if decided else (lost, *_foreign(seen)),
        wanted=str(Decision.ABORT),
        at=one.participant,
    )


def _commit_there(seen: Seen, one: Said) -> Action:
    shown = "its rows are shown there, whatever the others have done with them"
    return Action(
        _at(seen, one, Decision.COMMIT),
        safe=False,
        effect=f"shows what is prepared there; frees {busy(one.holds)}"
        + _not_yet(seen, one),
        cost=(shown, *_foreign(seen)),
        wanted=str(Decision.COMMIT),
        at=one.participant,
    )


def _at(seen: Seen, one: Said, outcome: Decision) -> str:
    where = f"--at {one.participant} --{outcome}"
    return f"tracing-2pc resolve {seen.transaction} {where} --reason …"


def _not_yet(seen: Seen, one: Said) -> str:
    left = seen.settings.orphan_after - (one.oldest or 0.0)
    return f"; refused for another {lasting(left)} (orphan_after)" if left > 0 else ""


def _foreign(seen: Seen) -> tuple[str, ...]:
    if seen.known:
        return ()
    name = seen.transaction.application
    return (
        f"this log does not know application {name}: if another log owns it, that one "
        "may have decided otherwise",
    )


def busy(holds: Holds) -> str:
    """Say what is kept busy, in plain words."""
    parts = [f"{holds.rows} rows"]
    if holds.slots is not None:
        parts.append(f"{holds.slots} prepared transactions")
    if holds.locks is not None:
        parts.append(f"{holds.locks} locks")
    if holds.horizon:
        parts.append(f"VACUUM back by {holds.horizon} transactions")
    return ", ".join(parts)
