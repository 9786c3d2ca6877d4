"""A list of transactions, the worst first, and of what participants hold besides."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tracing_2pc.interfaces import Clock, SystemClock
from tracing_2pc.model import DeliveryRecord, InDoubt, Listing, TransactionId
from tracing_2pc.operations.observation import (
    BEYOND,
    Observed,
    list_all,
    nowhere,
    own_sinks_of,
    without_address,
)
from tracing_2pc.protocol.evidence import Held, Lists, add, both
from tracing_2pc.settings import Settings
from tracing_2pc.states import FINAL, TransactionState
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.store.overview import MOST, Filters, Overview, Summary


class Orphan(NamedTuple):
    """What is prepared and no record of the log can finish.

    Args:
        transaction: which one.
        held: by participant.
        old: it was in doubt for `orphan_after`, by a participant's clock.
        why: why no record can.
    """

    transaction: TransactionId
    held: Mapping[str, Held]
    old: bool
    why: str

    @property
    def age(self) -> float:
        """Seconds of its oldest branch."""
        return max(held.age for held in self.held.values())

    @property
    def rows(self) -> int:
        """Prepared, at all participants."""
        return sum(held.rows for held in self.held.values())


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """A list at one time.

    Args:
        at: when it was made, in Unix seconds.
        unfinished: oldest first.
        finished: newest first.
        orphans: oldest first; by branches that are older than `safety_interval`.
        deliveries: of what is unfinished, by its id and by participant.
        unreadable: participants without an address or a whole list, and why.
    """

    at: float
    unfinished: tuple[Summary, ...]
    finished: tuple[Summary, ...]
    orphans: tuple[Orphan, ...]
    deliveries: Mapping[str, Mapping[str, DeliveryRecord]]
    unreadable: Mapping[str, str]


def list_transactions(
    log: SqlDecisionLog,
    participants: Mapping[str, Observed],
    filters: Filters,
    settings: Settings,
    clock: Clock | None = None,
) -> Listed:
    """List what the filters let through, and what is prepared without a record.

    Participants are asked once, at once, and before the log: what they list without a
    record is then never too new. Only what the log has closed is asked for again, as it
    may just have been told. Orphans are left out where a state is asked for.

    Raises:
        DecisionLogError: the log cannot be read.
    """
    clock, overview = clock or SystemClock(), log.overview
    unreadable: dict[str, str] = {}
    lists = list_all(participants, unreadable)
    if filters.application is not None:
        for name in participants:
            unreadable.pop(name + BEYOND + filters.application, None)
    unfinished = _unfinished(overview, filters)
    before = clock.now() - settings.safety_interval
    own = own_sinks_of(unfinished)
    for name, ids in without_address(unfinished, participants, before).items():
        unreadable[name] = nowhere(ids, own_sink=name in own)
    orphans: Iterable[Orphan] = ()
    if filters.state is None:
        orphans = _orphans(overview, participants, lists, filters, settings)
    return Listed(
        clock.now(),
        tuple(unfinished),
        tuple(_finished(overview, filters)),
        tuple(orphans),
        overview.deliveries_of_unfinished(),
        unreadable,
    )


def _unfinished(overview: Overview, filters: Filters) -> list[Summary]:
    if filters.state in FINAL:
        return []
    open_ = dataclasses.replace(filters, unfinished=True, limit=MOST)
    return sorted(overview.transactions(open_), key=lambda one: one.started)


def _finished(overview: Overview, filters: Filters) -> list[Summary]:
    if filters.open_only:
        return []
    return [one for one in overview.transactions(filters) if one.state in FINAL]


def _orphans(
    overview: Overview,
    participants: Mapping[str, Observed],
    lists: Lists,
    filters: Filters,
    settings: Settings,
) -> list[Orphan]:
    least = max(settings.safety_interval, filters.older_than or 0.0)
    found = {
        transaction: held
        for transaction, held in _held(lists).items()
        if filters.application in (None, transaction.application)
        and max(one.age for one in held.values()) >= least
    }
    standing = overview.standing(found)
    closed = {t: state for t, state in standing.items() if state in FINAL}
    if closed:
        again = list_all(participants, {})
        still = _held({n: _in_both(lists[n], again.get(n)) for n in lists})
        found |= {t: still.get(t, {}) for t in closed}
    watermarks = overview.watermarks()
    orphans = [
        Orphan(
            transaction,
            held,
            max(one.age for one in held.values()) >= settings.orphan_after,
            _why(transaction, closed.get(transaction), watermarks),
        )
        for transaction, held in found.items()
        if held and (transaction not in standing or transaction in closed)
    ]
    return sorted(orphans, key=lambda orphan: orphan.age, reverse=True)


def _held(lists: Lists) -> dict[TransactionId, dict[str, Held]]:
    found: dict[TransactionId, dict[str, Held]] = {}
    for name, listing in lists.items():
        for one in _branches(listing):
            of = found.setdefault(one.transaction, {})
            of[name] = add(of.get(name), one)
    return found


def _branches(listing: Listing | None) -> tuple[InDoubt, ...]:
    return () if listing is None else listing.branches


def _in_both(first: Listing | None, second: Listing | None) -> Listing:
    return Listing(tuple(both(first, second)))


def _why(
    transaction: TransactionId,
    closed: TransactionState | None,
    watermarks: Mapping[str, int | None],
) -> str:
    application = transaction.application
    if application not in watermarks:
        return f"this log does not know {application}"
    watermark = watermarks[application]
    if closed is not None:
        return f"the log has closed it as {closed}"
    if watermark is not None and transaction.batch <= watermark:
        return f"the log has forgotten it (watermark {watermark})"
    return "no record of it"
