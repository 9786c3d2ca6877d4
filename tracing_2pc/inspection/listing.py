"""A list of transactions, the worst first, of orphans, and of all findings.

An orphan is prepared at a participant, and no record of the log can finish it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
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
from tracing_2pc.inspection.diagnosis import (
    Awaited,
    Finding,
    find_all_awaited,
    why_no_record,
)
from tracing_2pc.inspection.evidence import Evidence, oldest
from tracing_2pc.inspection.findings import find_all, is_of_another
from tracing_2pc.inspection.participants import (
    PreparedByParticipant,
    ReadableParticipant,
)
from tracing_2pc.inspection.survey import survey_all
from tracing_2pc.inspection.wording import describe_votes


class Orphan(NamedTuple):
    """A transaction that is prepared, and that no record of the log can finish."""

    transaction: TransactionId
    held: PreparedByParticipant  # what is prepared, by participant
    old: bool  # it was in doubt for `orphan_after`, by a participant's clock
    why: str  # why no record can

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
    """A list at one time."""

    at: float  # when it was made, in Unix seconds
    unfinished: tuple[TransactionSummary, ...]  # oldest first, at most `MOST`
    finished: tuple[TransactionSummary, ...]  # newest first
    # What a stream has passed without a commit; in no other list.
    lost: tuple[TransactionSummary, ...]
    # Oldest first; by branches that are older than `safety_interval`.
    orphans: tuple[Orphan, ...]
    # Of unfinished transactions, by id and by participant.
    deliveries: Mapping[str, Mapping[str, DeliveryRecord]]
    # Of those not decided: where they are prepared, and where they are not.
    votes: Mapping[TransactionId, str]
    # Who they wait for, where it is not who has not acknowledged.
    awaited: Mapping[TransactionId, Awaited]
    # All that is wrong, whatever the filters of transactions let through, but for what
    # is of another application only.
    findings: tuple[Finding, ...]


def list_transactions(
    log: LogReader,
    participants: Mapping[str, ReadableParticipant],
    filters: TransactionFilter,
    settings: Settings,
) -> TransactionList:
    """List transactions that match the filters, and those prepared without a record.

    Orphans are left out where a state is asked for.
    """
    clock, application = SystemClock(), filters.application
    evidence = survey_all(log, participants, settings, clock, bool)
    findings = find_all(evidence, settings)
    unfinished, finished = list[TransactionSummary](), list[TransactionSummary]()
    if filters.state not in FINAL:
        every = dataclasses.replace(filters, unfinished=True, limit=MOST, beyond=())
        unfinished = log.transactions(every)
    if not filters.open_only:
        rows = log.transactions(filters)
        finished = [row for row in rows if row.state in FINAL]
    now = clock.now()
    lost = list(_find_lost(log, evidence, filters))
    ids = {row.transaction for row in lost}
    orphans = sorted(_find_orphans(evidence, filters, settings), key=lambda o: -o.age)
    return TransactionList(
        now,
        tuple(row for row in unfinished if row.transaction not in ids),
        tuple(row for row in finished if row.transaction not in ids),
        tuple(lost),
        tuple(orphans),
        log.deliveries_of_unfinished(),
        dict(_votes(evidence)),
        find_all_awaited(evidence, settings),
        tuple(f for f in findings if not is_of_another(f.about, application)),
    )


def _votes(evidence: Evidence) -> Iterator[tuple[TransactionId, str]]:
    """Yield the votes of each undecided transaction, from the last lists."""
    for id_, record in (evidence.log.records if evidence.log else {}).items():
        if record.state is TransactionState.ACTIVE:
            yield id_, describe_votes(*evidence.votes_of(record))


def _find_lost(
    log: LogReader, evidence: Evidence, filters: TransactionFilter
) -> Iterator[TransactionSummary]:
    for id_ in evidence.log.passed if evidence.log else ():
        same = filters.application in (None, id_.application)
        if same and filters.batch in (None, id_.batch):
            of_batch = dataclasses.replace(
                filters,
                application=id_.application,
                batch=id_.batch,
                unfinished=False,
                limit=MOST,
                beyond=(),
            )
            rows = log.transactions(of_batch)
            yield from (row for row in rows if row.transaction == id_)


def _find_orphans(
    evidence: Evidence, filters: TransactionFilter, settings: Settings
) -> Iterator[Orphan]:
    """Yield transactions that were listed twice, and have no record or a closed one."""
    if filters.state is not None:
        return
    for case in evidence.transactions(settings.safety_interval):
        id_, prepared = case.transaction, case.prepared
        age = oldest(prepared)
        begun = evidence.now - age
        other = (
            filters.application not in (None, id_.application)
            or filters.batch not in (None, id_.batch)
            or filters.participant not in (None, *prepared)
            or (filters.since is not None and begun < filters.since)
            or (filters.until is not None and begun > filters.until)
        )
        if case.record is None and not other and age >= settings.safety_interval:
            old = oldest(prepared) >= settings.orphan_after
            yield Orphan(id_, prepared, old, why_no_record(case)[1])
