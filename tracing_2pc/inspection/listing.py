"""A list of transactions, the worst first, and of orphans.

An orphan is prepared at a participant, and no record of the log can finish it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from tracing_2pc.core.log_reader import (
    MOST,
    LogReader,
    TransactionFilter,
    TransactionSummary,
)
from tracing_2pc.core.model import DeliveryRecord, TransactionId
from tracing_2pc.core.ports import SystemClock
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import FINAL, TransactionState
from tracing_2pc.inspection.evidence import (
    in_both_lists,
    is_forgotten,
    oldest,
    sum_prepared,
)
from tracing_2pc.inspection.participants import (
    Lists,
    PreparedByParticipant,
    ReadableParticipant,
    Source,
    SourceKind,
    list_prepared,
)
from tracing_2pc.inspection.survey import source_problems


class Orphan(NamedTuple):
    """A transaction that is prepared, and that no record of the log can finish.

    Args:
        held: what is prepared, by participant.
        old: it was in doubt for `orphan_after`, by a participant's clock.
        why: why no record can.
    """

    transaction: TransactionId
    held: PreparedByParticipant
    old: bool
    why: str

    @property
    def age(self) -> float:
        """Seconds of its oldest branch."""
        return oldest(self.held)

    @property
    def rows(self) -> int:
        """Prepared, at all participants."""
        return sum(prepared.rows for prepared in self.held.values())


@dataclasses.dataclass(frozen=True, slots=True)
class TransactionList:
    """A list at one time.

    Args:
        at: when it was made, in Unix seconds.
        unfinished: oldest first, at most `MOST`.
        finished: newest first.
        lost: what a stream has passed without a commit; in no other list.
        orphans: oldest first; by branches that are older than `safety_interval`.
        deliveries: of unfinished transactions, by id and by participant.
        unreadable: participants without an address or a whole list, and why.
    """

    at: float
    unfinished: tuple[TransactionSummary, ...]
    finished: tuple[TransactionSummary, ...]
    lost: tuple[TransactionSummary, ...]
    orphans: tuple[Orphan, ...]
    deliveries: Mapping[str, Mapping[str, DeliveryRecord]]
    unreadable: Mapping[Source, str]


def list_transactions(
    log: LogReader,
    participants: Mapping[str, ReadableParticipant],
    filters: TransactionFilter,
    settings: Settings,
) -> TransactionList:
    """List what the filters let through, and what is prepared without a record.

    Participants are asked before the log: what they list without a record is then
    never too new. Orphans are left out where a state is asked for.

    Raises:
        DecisionLogError: the log cannot be read.
    """
    unreadable: dict[Source, str] = {}
    lists = list_prepared(participants, unreadable)
    for name in participants:  # bound to what is asked for: nothing is hidden
        source = Source(SourceKind.SCOPE, name, filters.application or "")
        unreadable.pop(source, None)
    unfinished, finished, orphans = [], [], []
    if filters.state not in FINAL:
        every = dataclasses.replace(filters, unfinished=True, limit=MOST)
        unfinished = log.transactions(every)
    if not filters.open_only:
        rows = log.transactions(filters)
        finished = [row for row in rows if row.state in FINAL]
    now = SystemClock().now()
    lost = _find_lost(log, filters, now)
    ids = {row.transaction for row in lost}
    unfinished = [row for row in unfinished if row.transaction not in ids]
    finished = [row for row in finished if row.transaction not in ids]
    by_id = {row.transaction: row for row in unfinished}
    for source, problem in source_problems(by_id, participants, settings, now).items():
        if source.kind is SourceKind.PARTICIPANT:
            unreadable[source] = ": ".join(problem)
    if filters.state is None:
        orphans = _find_orphans(log, participants, lists, filters, settings)
    return TransactionList(
        now,
        tuple(unfinished),
        tuple(finished),
        tuple(lost),
        tuple(orphans),
        log.deliveries_of_unfinished(),
        unreadable,
    )


def _find_lost(
    log: LogReader, filters: TransactionFilter, now: float
) -> list[TransactionSummary]:
    newest = (
        row
        for record in log.passed()
        if filters.application in (None, record.id.application)
        for row in log.transactions(TransactionFilter(record.id.application, limit=1))
    )
    return [row for row in newest if filters.matches(row, now)]


def _find_orphans(
    log: LogReader,
    participants: Mapping[str, ReadableParticipant],
    lists: Lists,
    filters: TransactionFilter,
    settings: Settings,
) -> list[Orphan]:
    """Return what was listed and has no record, or a closed one; oldest first.

    What the log has closed is listed once more, as it may just have been told.
    """
    least = max(settings.safety_interval, filters.older_than or 0.0)
    listed = {
        transaction: prepared
        for transaction, prepared in sum_prepared(lists).items()
        if filters.application in (None, transaction.application)
        and oldest(prepared) >= least
    }
    states = log.states_of(listed)
    closed = {t: state for t, state in states.items() if state in FINAL}
    if closed:
        again = list_prepared(participants, {})
        still = sum_prepared(in_both_lists(lists, again))
        listed |= {t: still.get(t, {}) for t in closed}
    forgotten_by_application = log.forgotten_by_application()
    orphans = [
        Orphan(
            transaction,
            prepared,
            oldest(prepared) >= settings.orphan_after,
            _why(transaction, closed.get(transaction), forgotten_by_application),
        )
        for transaction, prepared in listed.items()
        if prepared and (transaction not in states or transaction in closed)
    ]
    return sorted(orphans, key=lambda orphan: orphan.age, reverse=True)


def _why(
    transaction: TransactionId,
    closed: TransactionState | None,
    forgotten_by_application: Mapping[str, int | None],
) -> str:
    application = transaction.application
    if application not in forgotten_by_application:
        return f"this log does not know {application}"
    if closed is not None:
        return f"the log has closed it as {closed}"
    forgotten_through = forgotten_by_application[application]
    if is_forgotten(transaction, forgotten_through):
        return f"the log has forgotten it (forgotten_through {forgotten_through})"
    return "no record of it"
