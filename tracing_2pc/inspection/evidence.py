"""The evidence of a round of reading, and the part about one transaction.

The order of reading makes it evidence: the lists of all participants, then the log,
a pause, then the lists again. Before every prepare a record is written, so that a
branch from the first lists without a record is forgotten or foreign, never too new.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from tracing_2pc.core.addresses import key_of, name_of
from tracing_2pc.core.log_reader import LogReader, TransactionFilter
from tracing_2pc.core.model import (
    DeliveryRecord,
    Listing,
    ParticipantDescription,
    QuarantineListing,
    Shown,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.states import TransactionState
from tracing_2pc.inspection.jobs import Job
from tracing_2pc.inspection.participants import (
    Lists,
    PreparedByParticipant,
    PreparedSummary,
    Source,
)


@dataclasses.dataclass(frozen=True, slots=True)
class LogEvidence:
    """The log's content, read after the first lists and before the second ones."""

    # Of unfinished transactions, as are `deliveries`.
    records: Mapping[TransactionId, TransactionRecord]
    deliveries: Mapping[TransactionId, Mapping[str, DeliveryRecord]]
    # The state of finished transactions that were in a list.
    closed: Mapping[TransactionId, TransactionState]
    # Of every application that the log knows.
    forgotten_by_application: Mapping[str, int | None]
    clock: float  # the log's, by which deadlines are judged
    # Applications with a record that cannot be trusted: nothing is diagnosed of them.
    refused: frozenset[str] = frozenset()
    # What a stream has passed without a commit (`LogReader.passed`).
    passed: Mapping[TransactionId, TransactionRecord] = dataclasses.field(
        default_factory=dict
    )
    # The newest of each application that are finished.
    commits: Mapping[TransactionId, TransactionRecord] = dataclasses.field(
        default_factory=dict
    )
    # By application, as far as its drivers report.
    jobs: Mapping[str, Job] = dataclasses.field(default_factory=dict)
    read_only: str = ""  # why nobody can write the log; empty where that is not known

    @property
    def finished(self) -> Mapping[TransactionId, TransactionRecord]:
        """Records of finished transactions that were read, by their ids."""
        return {**self.commits, **self.passed}


def is_forgotten(transaction: TransactionId, forgotten_through: int | None) -> bool:
    """Whether its record may have been dropped: at or below forgotten_through."""
    return forgotten_through is not None and transaction.batch <= forgotten_through


def may_be_begun(log: LogReader, transaction: TransactionId) -> bool:
    """Whether a driver could still begin an attempt of this id (rules 3 and 19).

    Only for a transaction without a record. Call it before reading the record: a *no*
    stays true afterwards.
    """
    application, known = transaction.application, log.forgotten_by_application()
    if application not in known or is_forgotten(transaction, known[application]):
        return False
    newest = log.transactions(TransactionFilter(application, limit=1))
    return not newest or newest[0].transaction < transaction


def is_newest(log: LogReader, transaction: TransactionId) -> bool:
    """Whether no later transaction of its application is on record."""
    chosen = TransactionFilter(transaction.application, limit=1)
    return all(row.transaction == transaction for row in log.transactions(chosen))


def oldest(prepared: PreparedByParticipant) -> float:
    """Return the age of the oldest branch, by its participant's clock; 0 for none."""
    return max((summary.age for summary in prepared.values()), default=0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class TransactionEvidence:
    """All that is known of one transaction."""

    transaction: TransactionId
    now: float  # our clock, for the log's times
    # What the log holds; of a finished one only where it was asked for.
    record: TransactionRecord | None = None
    closed: TransactionState | None = None  # its state in the log, if it is finished
    deliveries: Mapping[str, DeliveryRecord] = dataclasses.field(default_factory=dict)
    known: bool = True  # the log knows its application
    forgotten_through: int | None = None
    # By participant, only from lists that were whole, twice.
    prepared: PreparedByParticipant = dataclasses.field(default_factory=dict)
    # What participants that were asked about it have answered.
    answers: Mapping[str, Shown] = dataclasses.field(default_factory=dict)
    # Seconds for which it was watched without a step, whatever the clocks are set to.
    standstill: float = 0.0
    clock: float = 0.0  # the log's, by which deadlines are judged
    passed: bool = False  # a stream has passed its batch, and has not gone back to it
    # Before its decision: participants that have prepared nothing of it as far as is
    # known, and cannot now; and why.
    silent: Mapping[str, str] = dataclasses.field(default_factory=dict)
    job: Job | None = None  # of its application; None where nothing is known

    @property
    def forgotten(self) -> bool:
        """Whether its record may have been dropped."""
        return is_forgotten(self.transaction, self.forgotten_through)

    @property
    def last_step(self) -> float:
        """The time of its begin, decision or last acknowledgement, by the log."""
        if self.record is None:
            return 0.0
        times = [d.acknowledged for d in self.deliveries.values() if d.acknowledged]
        return max([self.record.started, self.record.decided or 0.0, *times])

    @property
    def idle(self) -> float:
        """Seconds since its last step on record."""
        return max(0.0, self.now - self.last_step, self.standstill)

    @property
    def oldest(self) -> float:
        """Age of the oldest branch in doubt, by its participant's clock."""
        return oldest(self.prepared)


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """One round. `log` is None where the log could not be read: nothing follows."""

    now: float  # our clock, for the log's times
    first: Lists  # what participants listed before the log was read
    log: LogEvidence | None
    second: Lists  # what they listed after the pause
    # Of single transactions, asked after the log was read.
    answers: Mapping[TransactionId, Mapping[str, Shown]]
    # What could not be read, or not whole, and why: participants without an answer, the
    # log.
    unreadable: Mapping[Source, str] = dataclasses.field(default_factory=dict)
    # Seconds by transaction; for which each was watched without a step.
    standstill: Mapping[TransactionId, float] = dataclasses.field(default_factory=dict)
    participants: Collection[str] = ()  # those with an address here
    # Seconds that a participant's clock is ahead of ours.
    skews: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # How each of them is, as far as they can be asked that.
    descriptions: Mapping[str, ParticipantDescription] = dataclasses.field(
        default_factory=dict
    )
    # What partners of their outboxes did not take.
    refused: Mapping[str, QuarantineListing] = dataclasses.field(default_factory=dict)

    def transactions(self, safety_interval: float) -> Iterator[TransactionEvidence]:
        """Yield the unfinished, oldest first, then the rest that is not too young."""
        if (log := self.log) is None:
            return
        prepared = sum_prepared(in_both_lists(self.first, self.second), safety_interval)
        finished = log.finished
        others = (prepared.keys() | finished.keys()) - log.records.keys()
        for id_ in [*log.records, *sorted(others)]:
            if id_.application not in log.refused:
                yield TransactionEvidence(
                    id_,
                    self.now,
                    record=log.records.get(id_) or finished.get(id_),
                    closed=log.closed.get(id_),
                    deliveries=log.deliveries.get(id_, {}),
                    known=id_.application in log.forgotten_by_application,
                    forgotten_through=log.forgotten_by_application.get(id_.application),
                    prepared=prepared.get(id_, {}),
                    answers=self.answers.get(id_, {}),
                    standstill=self.standstill.get(id_, 0.0),
                    clock=log.clock,
                    passed=id_ in log.passed,
                    silent=self._silent(log.records.get(id_)),
                    job=log.jobs.get(id_.application),
                )

    def votes_of(self, record: TransactionRecord) -> Votes:
        """Return the participants of an attempt by their vote, from the last lists."""
        id_, votes = record.id, Votes([], [], [])
        for name in record.participants:
            listing = self.second.get(key_of(self.second, id_.application, name))
            if listing is None:
                votes.unread.append(name)
            elif any(branch.transaction == id_ for branch in listing.branches):
                votes.prepared.append(name)
            elif listing.complete and not listing.is_blind_to(id_.application):
                votes.missing.append(name)
            else:
                votes.unread.append(name)
        return votes

    def _silent(self, record: TransactionRecord | None) -> Mapping[str, str]:
        if record is None or record.state is not TransactionState.ACTIVE:
            return {}
        prepared = self.votes_of(record).prepared
        return find_silent(record, prepared, self.descriptions)


class Votes(NamedTuple):
    """Participants of an attempt that is not decided, in the record's order."""

    prepared: list[str]
    missing: list[str]  # they answer, and hold nothing of it
    unread: list[str]  # it is not known of them


def find_silent(
    record: TransactionRecord,
    prepared: Collection[str],
    descriptions: Mapping[str, ParticipantDescription],
) -> dict[str, str]:
    """Return participants that have prepared nothing and are not ready, with causes.

    One that does not answer is not ready. By their state now: one that has voted
    before, and went down then, is named, too, unless it was read meanwhile.
    """
    silent = dict[str, str]()
    for name in record.participants:
        key = key_of(descriptions, record.id.application, name)
        description = descriptions.get(key)
        if description is None or not description.answers or name in prepared:
            continue
        if problem := description.unreachable or description.unready:
            silent[name] = problem
    return silent


def in_both_lists(first: Lists, second: Lists) -> Lists:
    """Return the branches that are in both, as the second has them.

    None of a list that failed or came back in part: it proves nothing.
    """
    return {name: _in_both(listing, second[name]) for name, listing in first.items()}


def _in_both(first: Listing, second: Listing) -> Listing:
    if not (first.complete and second.complete):
        return Listing(())
    before = {(branch.transaction, branch.branch) for branch in first.branches}
    both = (b for b in second.branches if (b.transaction, b.branch) in before)
    return Listing(tuple(both))


def sum_prepared(
    lists: Lists, least: float = 0.0
) -> dict[TransactionId, dict[str, PreparedSummary]]:
    """Sum up branches of at least `least` seconds by transaction and participant."""
    sums: dict[TransactionId, dict[str, PreparedSummary]] = {}
    for key, listing in lists.items():
        name = name_of(key)
        for branch in listing.branches:
            if branch.age >= least:
                by_name = sums.setdefault(branch.transaction, {})
                age, count, rows = by_name.get(name, (0.0, 0, 0))
                age, rows = max(age, branch.age), rows + branch.rows
                by_name[name] = PreparedSummary(age, count + 1, rows)
    return sums
