"""Queries to a decision log beyond the protocol: by inspection and operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from tracing_2pc.core.model import (
    Carrier,
    DeliveryRecord,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.ports import DecisionLog
from tracing_2pc.core.states import FINAL, Decision, TransactionState

MOST: Final = 1_000  # transactions that a list shows, whatever limit it is given

Deliveries = dict[str, DeliveryRecord]
"""How far one decision has got, by participant, in their order."""


@dataclasses.dataclass(frozen=True, slots=True)
class TransactionFilter:
    """Which transactions a list shows; None is any."""

    application: str | None = None
    state: TransactionState | None = None
    unfinished: bool = False  # only those that are not finished
    limit: int = 100
    batch: int | None = None
    participant: str | None = None  # takes part, whether something is for it or not
    # When they were begun, in Unix seconds. Batches are looked for in their order: one
    # that was begun while a clock was set back may be missed.
    since: float | None = None
    until: float | None = None
    # Where the page before this one has ended: one transaction for each application.
    beyond: tuple[TransactionId, ...] = ()

    @property
    def open_only(self) -> bool:
        """Whether no finished transaction can pass."""
        return self.unfinished or (self.state is not None and self.state not in FINAL)


@dataclasses.dataclass(frozen=True, slots=True)
class TransactionSummary:
    """A transaction in a list, not checked by its checksum. Times are Unix seconds."""

    transaction: TransactionId
    state: TransactionState
    decision: Decision | None
    started: float
    decided: float | None
    finished: float | None
    rows: int | None  # None until it is decided
    reason: str | None
    carrier: Carrier
    pending: tuple[str, ...] = ()
    # Those of `pending` that only the job reaches:
    own_sinks: frozenset[str] = frozenset()
    untold: tuple[str, ...] = ()  # told in part only
    # As `TransactionRecord`:
    passed_by: int | None = None
    cause: str | None = None
    detail: str | None = None
    rejected: int = 0


class TransactionPage(NamedTuple):
    """A page of a filter's matches; `beyond` is where the next page begins.

    `beyond` is empty at the end. A page may be short, or empty, where there are still
    more.
    """

    rows: list[TransactionSummary]
    beyond: tuple[TransactionId, ...]


class AuditEntry(NamedTuple):
    """An action of a person, with their reason. `at` is in Unix seconds."""

    at: float
    who: str
    verb: str
    about: str  # a transaction's id, or the name of an application
    why: str
    before: str | None
    after: str | None

    @property
    def what(self) -> str:
        """The action and its object, as in `resolve orders.7.1`."""
        return f"{self.verb} {self.about}"


class LogCondition(NamedTuple):
    """The state of the database that holds a log."""

    shown: str  # its address, without what is secret
    version: int  # of the schema
    durability: Mapping[str, str]  # settings that say whether a commit outlives a crash
    # SQL that adds what an earlier release did not make; the log works without it.
    lacking: tuple[str, ...] = ()


class Presence(NamedTuple):
    """A run, as its driver has last reported it. Times are by the log's clock.

    A driver reports while its query is active, and how that ends. One that is killed
    reports no end: it is not seen any more.
    """

    application: str
    run: str
    host: str
    process: int
    since: float
    seen: float
    ended: float | None = None
    error: str | None = None  # why it failed; None where it was stopped

    @property
    def failed(self) -> bool:
        """Whether an error has ended it."""
        return self.ended is not None and self.error is not None


class LogReader(Protocol):
    """Reads of a decision log that decide nothing. Each read is one snapshot.

    Every method raises `DecisionLogError` when the log cannot be reached.
    """

    @property
    def address(self) -> str:
        """Where it is, without what is secret; nothing is asked for it."""

    def read(self, transaction: TransactionId) -> TransactionRecord | None:
        """Return the record; see `DecisionLog.read`."""

    def unfinished(self, application: str | None = None) -> list[TransactionRecord]:
        """List the records that are not finished; see `DecisionLog.unfinished`."""

    def unfinished_applications(self) -> list[str]:
        """List the applications with something unfinished, sorted."""

    def applications(self) -> list[str]:
        """Name the applications that the log knows, sorted."""

    def application_of(self, query: str) -> str | None:
        """Name the application that a query is known by; None if it is not known."""

    def transactions(self, chosen: TransactionFilter) -> list[TransactionSummary]:
        """List at most `MOST`, newest first; oldest first if none can be finished."""

    def search(self, chosen: TransactionFilter) -> TransactionPage:
        """List the same by pages, through all records.

        The time of a page does not grow with the log: each begins where the last one
        ended, at an index. A search by participant reads a bounded part of history for
        each page.
        """

    def passed(self) -> list[TransactionRecord]:
        """List what a stream has passed without a commit, and has not gone back to.

        One for each application at most: its newest transaction.
        """

    def newest_commits(self, since: float) -> list[TransactionRecord]:
        """List the last three commits of each application that are finished.

        Only those that were begun since then, in Unix seconds.
        """

    def states_of(
        self, transactions: Iterable[TransactionId]
    ) -> dict[TransactionId, TransactionState]:
        """Return the state of those of the transactions that are on record."""

    def deliveries(self, transaction: TransactionId) -> Deliveries:
        """Return how far a decision has got with each participant, in their order."""

    def deliveries_at(
        self, participant: str, transactions: Iterable[TransactionId]
    ) -> dict[TransactionId, DeliveryRecord]:
        """Return how far each has got with one participant that takes part."""

    def deliveries_of_unfinished(self) -> Mapping[str, Deliveries]:
        """Return the same for each transaction that is not finished, by its id."""

    def audit(self, transaction: TransactionId) -> list[AuditEntry]:
        """Return what persons have done about it, oldest first."""

    def audits(
        self, application: str | None, before: float, limit: int
    ) -> list[AuditEntry]:
        """Return what persons have done before a time, newest first."""

    def presences(self, application: str | None = None) -> list[Presence]:
        """List the last runs that a driver has reported, of each application or of one.

        By application; the newest run is the last. The data source, `df.write` and a
        coordinator that is called by hand report none.
        """

    def clock(self) -> float:
        """Return the time by which the log judges deadlines; Unix seconds."""

    def forgotten_by_application(self) -> dict[str, int | None]:
        """Return forgotten_through of every application that the log knows."""

    def forgettable(
        self, application: str, finished_before: float
    ) -> tuple[int, int | None]:
        """Count what `forget` would drop; return also forgotten_through after it."""

    def read_only_reason(self) -> str:
        """Return why no process can write the log now; empty where that is not known.

        It is read all the same. No driver can report meanwhile that it is there.

        Raises:
            DecisionLogError: it cannot be read.
        """

    def condition(self) -> LogCondition:
        """Return the state of the database that holds the log."""


class OperatorLog(DecisionLog, LogReader, Protocol):
    """A decision log as persons and watchers work with it."""

    def report_presence(
        self, application: str, run: str, *, host: str, process: int
    ) -> None:
        """Record that the driver of a run is there now. Not flushed."""

    def report_end(self, application: str, run: str, error: str | None = None) -> None:
        """Record that a run has ended: stopped, or by an error."""

    def retire(self, application: str, *, who: str, why: str) -> None:
        """Record that a person has ended an application, so that no driver is missed.

        Its next run is reported as any other.
        """

    def take_lease(self, application: str, who: str, seconds: float) -> bool:
        """Take an application's lease, or renew our own; False if another holds it.

        Not flushed: a lease that a crash loses only means that two work at once, which
        is safe. It ends by itself, by the log's clock.
        """

    def give_leases_back(self, who: str) -> None:
        """End the leases of a process that stops."""
