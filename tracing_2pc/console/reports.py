"""The recent work of an application and a participant, from the log. No HTML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tracing_2pc.core.log_reader import (
    MOST,
    AuditEntry,
    Deliveries,
    LogReader,
    TransactionFilter,
    TransactionSummary,
)
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import Decision, TransactionState
from tracing_2pc.inspection.wording import format_count, format_elapsed

SLOWEST: Final = 10
"""Commits of which a report says what held them back; and aborts that it shows."""

_SHARES: Final = (0.5, 0.9, 0.99, 1.0)


class Slow(NamedTuple):
    """A commit that took long, and the cause of most of that time."""

    row: TransactionSummary
    reason: str


class ApplicationReport(NamedTuple):
    """How long the newest commits of an application took, and what held them back.

    `times` has a line until the decision and one until the end: each the half, nine of
    ten and 99 of 100 took, and the slowest, of `commits` since `since`.
    """

    commits: int
    since: float
    times: tuple[tuple[str, tuple[str, ...]], ...]
    slowest: tuple[Slow, ...]
    aborted: Sequence[TransactionSummary]


def report_of(log: LogReader, application: str) -> ApplicationReport:
    """Read the newest commits, and the acknowledgements of the slowest of them."""
    newest = log.transactions(TransactionFilter(application, limit=MOST))
    commits = [
        row
        for row in newest
        if row.decision is Decision.COMMIT and row.finished is not None
    ]
    slowest = sorted(commits, key=_seconds, reverse=True)[:SLOWEST]
    aborted = TransactionFilter(application, TransactionState.ABORTED, limit=SLOWEST)
    return ApplicationReport(
        len(commits),
        min((row.started for row in commits), default=0.0),
        (
            ("From begin to decision", _shares(map(_to_decision, commits))),
            ("From begin to the end", _shares(map(_seconds, commits))),
        ),
        tuple(
            Slow(row, _held_back(row, log.deliveries(row.transaction)))
            for row in slowest
        ),
        log.transactions(aborted),
    )


def answers_of(
    log: LogReader, participant: str, newest: Iterable[TransactionSummary]
) -> list[tuple[float, float]]:
    """Return when it acknowledged each of the commits, and how long that took."""
    decided = {
        row.transaction: row.decided
        for row in newest
        if row.decision is Decision.COMMIT and row.decided is not None
    }
    deliveries = log.deliveries_at(participant, decided)
    return [
        (delivery.acknowledged, max(0.0, delivery.acknowledged - decided[id_]))
        for id_, delivery in deliveries.items()
        if delivery.acknowledged is not None
    ]


class Incident(NamedTuple):
    """An action of a person; and its transaction, if that is still on record."""

    entry: AuditEntry
    transaction: TransactionId | None  # None where it was done to an application
    row: TransactionSummary | None


def incidents(
    log: LogReader, application: str | None, before: float, limit: int
) -> Iterator[Incident]:
    """Yield what persons have done before a time, newest first."""
    for entry in log.audits(application, before, limit):
        try:
            id_ = TransactionId.parse(entry.about)
        except ValueError:
            yield Incident(entry, None, None)
            continue
        of_batch = TransactionFilter(id_.application, batch=id_.batch, limit=MOST)
        rows = {row.transaction: row for row in log.transactions(of_batch)}
        yield Incident(entry, id_, rows.get(id_))


def _to_decision(row: TransactionSummary) -> float:
    return max(0.0, (row.decided or 0.0) - row.started)


def _seconds(row: TransactionSummary) -> float:
    return max(0.0, (row.finished or 0.0) - row.started)


def _shares(values: Iterable[float]) -> tuple[str, ...]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return tuple(format_elapsed(ordered[round(last * s)]) for s in _SHARES if ordered)


def _held_back(row: TransactionSummary, deliveries: Deliveries) -> str:
    if _to_decision(row) * 2 >= _seconds(row) or not deliveries:
        took = format_elapsed(_to_decision(row))
        return f"its decision came after {took}: rows are written and prepared until it"
    last = max(deliveries.values(), key=lambda d: d.acknowledged or 0.0)
    after = format_elapsed(max(0.0, (last.acknowledged or 0.0) - (row.decided or 0.0)))
    text = f"{last.participant} acknowledged {after} after the decision"
    if last.retries:
        text += f", after {format_count(last.retries, 'try', 'tries')} in vain"
        text += f": {last.error}" if last.error else ""
    return text


def measured(gauges: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return a participant's measurements for a person on call."""
    measurements = []
    for name, term in _GAUGES.items():
        if (value := gauges.get(name)) is not None:
            text = format_elapsed(value) if name.endswith("age") else f"{value:,.0f}"
            measurements.append((term, text))
    return measurements


_GAUGES: Final = {
    "tpc.outbox.backlog": "Waits in its outbox",
    "tpc.outbox.oldest_age": "The oldest of them, for",
    "tpc.outbox.stopped": "Applications that it sends nothing of",
    "tpc.prepared_slots.used": "Prepared transactions of its database",
    "tpc.prepared_slots.max": "At most",
}
