"""What is unfinished, the worst first: from one look at the log and around. No I/O."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tracing_2pc.model import DeliveryRecord, TransactionId
from tracing_2pc.operations.console.words import UNDER_WAY, WRONG, counted
from tracing_2pc.operations.observation import BEYOND, CLOCK, LOG
from tracing_2pc.protocol.diagnosis import Diagnosis, held_back
from tracing_2pc.states import Severity, TransactionState
from tracing_2pc.store.overview import MOST, Deliveries, Summary

LINES: Final = 100
"""Transactions that the list shows; of the others it says how many there are."""

FINISHED: Final = 20

_GRAVITY: Final = {what: place for place, what in enumerate(WRONG.values())}
_ID: Final = re.compile(r"(?<![\w.-])([a-z0-9][a-z0-9-]*)\.\d+\.\d+(?!\.?[\w-])")
_RANKS: Final = (str(Severity.CRITICAL), str(Severity.WARNING), "normal")


class Logged(NamedTuple):
    """What the log has just said: newest first, each list bounded."""

    at: float
    open: Sequence[Summary]
    deliveries: Mapping[str, Deliveries]
    newest: Sequence[Summary]


class Observed(NamedTuple):
    """What a look around has brought, or a look at the log alone.

    Args:
        at: when it was over; None: participants have not answered yet.
        diagnoses: what is wrong.
        judged: what was unfinished in the log then.
        unreadable: participants without an address or a whole list, *log*, or *log
            of* an application with a record that cannot be trusted, *name beyond* the
            one application that our token is bound to, *the clock*; and why.
    """

    at: float | None
    diagnoses: Sequence[Diagnosis]
    judged: frozenset[TransactionId]
    unreadable: Mapping[str, str]


class Line(NamedTuple):
    """One transaction of the list."""

    transaction: TransactionId
    rank: str
    what: str
    why: str
    since: float
    whom: tuple[str, ...]
    next_try: float | None
    held_back: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Board:
    """The list, and what to think of it.

    Args:
        headline: one line: all is well, or how many need a person.
        well: nothing needs one, and everybody was asked.
        doubts: why the list may not be all.
        lines: the worst ones.
        more: how many others, by what is wrong.
        finished: the last ones to be closed.
        looked: when participants were asked; None before the first time.
    """

    headline: str
    well: bool
    doubts: tuple[str, ...]
    lines: tuple[Line, ...]
    more: tuple[tuple[str, int], ...]
    finished: tuple[Summary, ...]
    looked: float | None


def board(logged: Logged, observed: Observed, application: str | None = None) -> Board:
    """Put both together; of one application only, if one is given.

    The log is newer than the look around: what it has finished since is left out, if
    its list of what is unfinished is whole.
    """
    lines = [
        one
        for one in _lines(logged, observed)
        if application in (None, one.transaction.application)
    ]
    lines.sort(key=_worst_first)
    held = [one for one in lines if one.held_back]
    need = sum(one.rank != "normal" for one in lines) - len(held)
    doubts = tuple(_doubts(observed, application))
    more = Counter(one.what for one in lines[LINES:])
    closed = [one for one in logged.newest if one.finished is not None]
    closed.sort(key=lambda one: one.finished or 0.0, reverse=True)
    return Board(
        _headline(need, len(lines) - need, held, observed, certain=not doubts),
        need == 0 and not doubts and not held,
        doubts,
        tuple(lines[:LINES]),
        tuple(more.most_common()),
        tuple(closed[:FINISHED]),
        observed.at,
    )


def _headline(
    need: int,
    normal: int,
    held: Sequence[Line],
    observed: Observed,
    *,
    certain: bool,
) -> str:
    if need:
        said = counted(need, "transaction needs you", "transactions need you")
    elif held:
        said, normal = held[0].why.partition(" (")[0], normal - 1
        more = f"; {normal} more unfinished" if normal else ""
        return f"{said}{more}"
    elif observed.at is None:
        said = "Not known yet"
    else:
        said = "All is well" if certain else "Nothing wrong is known"
    if observed.at is None and normal:
        # Not a word of comfort: who holds what is not known.
        return f"{said}; {normal}{' more' if need else ''} unfinished"
    return said + (f"; {normal} under way" if normal else "")


def _doubts(observed: Observed, application: str | None) -> Iterator[str]:
    if observed.at is None:
        yield "Participants are being asked; until they answer, this is the log alone."
    for name, said in observed.unreadable.items():
        why = said if application is None else _without_others(said, application)
        if name == LOG:
            yield "The decision log could not be read when participants were asked."
        elif name == CLOCK:
            yield f"The clock: {why}."
        elif not _is_of_another(name, application):
            yield f"{name} could not be read, so nothing is known of it: {why}"


def _without_others(said: str, application: str) -> str:
    """Take the ids of other applications' transactions out of a text."""
    return _ID.sub(
        lambda found: found[0] if found[1] == application else "a transaction", said
    )


def _is_of_another(name: str, application: str | None) -> bool:
    """Whether it is about applications only that are not asked for."""
    of, _, bound = name.removeprefix(f"{LOG} of ").partition(BEYOND)
    if application is None:
        return False
    return bound == application if bound else of not in (name, application)


def _lines(logged: Logged, observed: Observed) -> Iterator[Line]:
    said = _worst_of(observed.diagnoses)
    by_id = {one.transaction: one for one in logged.open}
    whole = len(logged.open) < MOST
    for transaction, diagnosis in said.items():
        # Judged unfinished, and no more in the log's whole list: finished since then.
        if transaction in by_id or transaction not in observed.judged or not whole:
            told = logged.deliveries.get(str(transaction), {})
            yield _wrong(diagnosis, told)
    for transaction, one in by_id.items():
        if transaction not in said:
            told = logged.deliveries.get(str(transaction), {})
            yield _normal(one, told, logged.at)


def _worst_of(diagnoses: Iterable[Diagnosis]) -> dict[TransactionId, Diagnosis]:
    worst: dict[TransactionId, Diagnosis] = {}
    for one in diagnoses:
        worst.setdefault(one.transaction, one)  # the gravest comes first
    return worst


def _wrong(one: Diagnosis, told: Deliveries) -> Line:
    return Line(
        one.transaction,
        str(one.severity),
        WRONG[one.diagnosis],
        one.why,
        one.since,
        one.participants,
        _next_try(told.values()),
    )


def _normal(one: Summary, told: Deliveries, now: float) -> Line:
    quarantined = one.state is TransactionState.QUARANTINED
    if one.state is TransactionState.COMMITTING:
        application, waiting = one.transaction.application, told.values()
        if why := held_back(application, one.decided, waiting, now):
            return _held_back(one, why, told)
    active = one.state is TransactionState.ACTIVE
    return Line(
        one.transaction,
        str(Severity.CRITICAL) if quarantined else "normal",
        UNDER_WAY[one.state],
        (one.reason or "") if quarantined else "",
        one.decided or one.started,
        ("its driver",) if active else one.pending,
        None if quarantined else _next_try(told.values()),
    )


def _held_back(one: Summary, why: str, told: Deliveries) -> Line:
    return Line(
        one.transaction,
        str(Severity.WARNING),
        "holds its application back",
        why,
        one.decided or one.started,
        one.pending,
        _next_try(told.values()),
        held_back=True,
    )


def _next_try(deliveries: Iterable[DeliveryRecord]) -> float | None:
    due = [d.retry_at for d in deliveries if d.retry_at and d.pending]
    return min(due, default=None)


def _worst_first(one: Line) -> tuple[int, int, float]:
    # Quarantined without an opinion stands behind what is known to be wrong.
    gravity = _GRAVITY.get(one.what, len(_GRAVITY))
    return _RANKS.index(one.rank), gravity, one.since
