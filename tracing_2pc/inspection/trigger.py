"""Derives a trigger interval from a stream's own records. Pure: reads no log."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Final, NamedTuple

from tracing_2pc.core.log_reader import TransactionSummary
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import TransactionState, Word

NEWEST: Final = 200
"""Transactions that are looked at."""

NEEDED: Final = 20
"""Batches with rows, at least."""

OVERHEAD: Final = 0.1
"""Share of an interval, at most, for a batch's fixed cost."""

_SPREAD: Final = 3.0
"""How much larger the 90th percentile of rows must be than the 10th, to draw a line.

With 20 batches whose times scatter by 20 %, the fixed cost is then right within 40 % in
four of five cases, with 200 within 20 %; at 1.5 it is right within 100 %.
"""

_FULL: Final = 0.9
"""Of the time: batches that take so much of it follow each other without a pause."""

_TIMES_LONGEST: Final = 3.0
"""The transaction timeout, in times from begin to decision of the longest batch."""


class Spread(NamedTuple):
    """The middle and the end of measured values."""

    median: float
    p95: float


class Cost(NamedTuple):
    """Seconds that a batch takes."""

    fixed: float  # whatever its rows
    per_row: float  # for each of its rows
    separated: bool  # else each is an upper bound: as if all were of that kind


class Obstacle(Word):
    """An obstacle to a good interval."""

    TOO_FEW = "too few"
    NOT_SEPARATED = "not separated"
    CONTRADICTION = "contradiction"
    BACK_TO_BACK = "back to back"
    ROWS_TOO_SLOW = "rows too slow"
    TIMEOUT_SHORT = "timeout short"


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """Measures of committed batches with rows. Seconds, by the writers' clocks."""

    since: float  # Unix seconds: begin of the oldest
    begin_to_decision: Spread
    decision_to_finished: Spread
    rows: Spread
    longest: float  # from begin to decision
    every: float  # from begin to the next begin, median
    between: float  # Spark's own, from one batch to the next
    busy: float  # share of `every` that a batch and `between` take, median
    rows_per_second: float  # that were written, median
    cost: Cost

    @property
    def load(self) -> float:
        """Share of the time that rows take, were there no fixed cost."""
        return self.cost.per_row * self.rows_per_second

    @property
    def fixed(self) -> float:
        """Seconds that an interval costs without rows; Spark's own included."""
        return self.cost.fixed + self.between

    def seconds_of_batch(self, interval: float) -> float:
        """Return the seconds that the batch of an interval takes, at most."""
        if self.cost.separated:
            return self.fixed + self.load * interval
        return self.between + max(self.cost.fixed, self.load * interval)


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """The derived intervals. Durations are in seconds; None: there is no such one."""

    batches: int  # with rows
    empty: int  # committed without rows, and left out
    aborted: int  # attempts, and left out
    recover_within: float
    measured: Measured | None = None
    shortest: float | None = None
    longest: float | None = None
    meet_at: float | None = None  # recover_within from which both bounds hold
    timeout: float | None = None
    findings: tuple[Obstacle, ...] = ()


def advise(
    newest: Sequence[TransactionSummary],
    timeout_in_force: float,
    recover_within: float,
    sparks_own: float,
) -> Advice:
    """Derive the trigger interval from the records of one application.

    Args:
        newest: its transactions, of any state.
        timeout_in_force: the job's transaction timeout; 0 means none.
        recover_within: seconds after a restart in which the stream keeps step again.
        sparks_own: seconds of a pause between two batches that are taken for Spark's
            own work, at most: no record tells that from waiting.
    """
    states = [summary.state for summary in newest]
    committed = [s for s in newest if s.state is TransactionState.COMMITTED]
    full = sum(1 for summary in committed if summary.rows)
    counted = Advice(
        batches=full,
        empty=len(committed) - full,
        aborted=states.count(TransactionState.ABORTED),
        recover_within=recover_within,
    )
    if full < NEEDED:
        return dataclasses.replace(counted, findings=(Obstacle.TOO_FEW,))
    measured = _measure(committed, sparks_own)
    shortest, longest = _shortest(measured), _longest(measured, recover_within)
    made = measured.seconds_of_batch(longest or 0.0)
    timeout = _TIMES_LONGEST * max(measured.longest, made)
    meet_at = None
    if shortest is not None and shortest > (longest or 0.0):
        meet_at = shortest + measured.seconds_of_batch(shortest)
    findings = _findings(measured, shortest, meet_at, timeout_in_force)
    return dataclasses.replace(
        counted,
        measured=measured,
        shortest=shortest,
        longest=longest,
        meet_at=meet_at,
        timeout=max(Settings().transaction_timeout, math.ceil(timeout)),
        findings=tuple(findings),
    )


def _shortest(measured: Measured) -> float | None:
    """Return the interval that the fixed cost is a tenth of, and that has room for it.

    A batch that is made of an interval must end in it: fixed + load * t <= t.
    """
    if not measured.cost.separated:
        return measured.fixed / OVERHEAD
    room = min(OVERHEAD, 1.0 - measured.load)
    return measured.fixed / room if room > 0 else None


def _longest(measured: Measured, recover_within: float) -> float | None:
    """Return the longest t for which t and the batch it makes fit."""
    longest = (recover_within - measured.fixed) / (1.0 + measured.load)
    if not measured.cost.separated:
        by_rows = (recover_within - measured.between) / (1.0 + measured.load)
        longest = min(recover_within - measured.fixed, by_rows)
    return longest if longest > 0 else None


def _findings(
    measured: Measured,
    shortest: float | None,
    meet_at: float | None,
    timeout_in_force: float,
) -> list[Obstacle]:
    separated = measured.cost.separated
    findings = []
    if measured.busy >= _FULL:
        findings.append(Obstacle.BACK_TO_BACK)
    if separated and (shortest is None or 1.0 - measured.load < OVERHEAD):
        findings.append(Obstacle.ROWS_TOO_SLOW)
    elif meet_at is not None:
        known = Obstacle.CONTRADICTION if separated else Obstacle.NOT_SEPARATED
        findings.append(known)
    if 0 < timeout_in_force < _TIMES_LONGEST * measured.longest:
        findings.append(Obstacle.TIMEOUT_SHORT)
    return findings


class _Batch(NamedTuple):
    started: float
    decided: float
    finished: float
    rows: int

    @property
    def seconds(self) -> float:
        return self.finished - self.started


def _measure(committed: Sequence[TransactionSummary], sparks_own: float) -> Measured:
    every = sorted(map(_batch, committed))
    full = [batch for batch in every if batch.rows]
    steps = _steps(every)
    distances = [b.started - a.started for a, b in steps]
    pause = _median([max(0.0, b.started - a.finished) for a, b in steps])
    between = min(pause, sparks_own)
    full_for = [(a.seconds + between) / (b.started - a.started) for a, b in steps]
    writing = [batch.decided - batch.started for batch in full]
    return Measured(
        since=every[0].started,
        begin_to_decision=_spread(writing),
        decision_to_finished=_spread([b.finished - b.decided for b in full]),
        rows=_spread([batch.rows for batch in full]),
        longest=max(writing),
        every=_median(distances),
        between=between,
        busy=min(1.0, _median(full_for)),
        # Rows that a batch begins with have come since the last one with rows began.
        rows_per_second=_median(
            [b.rows / (b.started - a.started) for a, b in _steps(full)]
        ),
        cost=_cost(full),
    )


def _steps(batches: Sequence[_Batch]) -> list[tuple[_Batch, _Batch]]:
    return [(a, b) for a, b in pairwise(batches) if b.started > a.started]


def _batch(summary: TransactionSummary) -> _Batch:
    # A clock that was put back between two of the times makes no negative duration.
    decided = max(summary.started, summary.decided or 0.0)
    finished = max(decided, summary.finished or 0.0)
    return _Batch(summary.started, decided, finished, summary.rows or 0)


def _cost(batches: Sequence[_Batch]) -> Cost:
    """Draw a line through rows and seconds; a few slow batches do not turn it.

    Its slope is the median of the slopes between every two batches (Theil and Sen).
    """
    tenths = statistics.quantiles([b.rows for b in batches], n=10, method="inclusive")
    if tenths[-1] >= _SPREAD * tenths[0]:
        per_row = max(0.0, _median(_slopes(batches)))
        fixed = _median([b.seconds - per_row * b.rows for b in batches])
        if fixed > 0:
            return Cost(fixed, per_row, separated=True)
    fixed = _median([b.seconds for b in batches])
    per_row = _median([b.seconds / b.rows for b in batches])
    return Cost(fixed, per_row, separated=False)


def _slopes(batches: Sequence[_Batch]) -> list[float]:
    return [
        (b.seconds - a.seconds) / (b.rows - a.rows)
        for a, b in combinations(batches, 2)
        if a.rows != b.rows
    ]


def _spread(values: Sequence[float]) -> Spread:
    percentiles = statistics.quantiles(values, n=20, method="inclusive")
    return Spread(_median(values), percentiles[-1])


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0
