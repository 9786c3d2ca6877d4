"""The last hour of an application as bars by the minute. No I/O, no HTML."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Final, NamedTuple

from tracing_2pc.console.axis import round_up
from tracing_2pc.core.log_reader import MOST, TransactionSummary
from tracing_2pc.core.states import Decision
from tracing_2pc.inspection.wording import format_count, format_elapsed

MINUTES: Final = 60
HEIGHT: Final = 64
"""Pixels of the highest bar there can be."""


class Bar(NamedTuple):
    """A minute: its place in per cent, top and height in pixels."""

    x: float
    y: float
    height: float
    title: str


class Chart(NamedTuple):
    """Bars in front of others, the value at the top, and all of it in words."""

    front: tuple[Bar, ...]
    back: tuple[Bar, ...]
    top: str
    summary: str


class Hour(NamedTuple):
    """An application's commits in the last hour."""

    application: str
    commits: Chart
    ages: Chart
    summary: str
    since: float | None  # set where not all could be read: minutes before are empty


def hour(
    application: str, transactions: Sequence[TransactionSummary], now: float
) -> Hour:
    """Draw an application's newest transactions, in any order."""
    by_minute: list[list[float]] = [[] for _ in range(MINUTES)]
    commits = aborts = rows = 0
    for row in transactions:
        # In minutes of the clock; a decision in the future was made now.
        ago = max(0, int(now // 60 - (row.decided or 0.0) // 60))
        if ago >= MINUTES:
            continue
        if row.decision is Decision.COMMIT:
            end = now if row.finished is None else row.finished
            by_minute[-1 - ago].append(max(0.0, end - row.started))
            commits += 1
            rows += row.rows or 0
        elif row.decision is Decision.ABORT:
            aborts += 1
    summary = f"{format_count(commits, 'commit')} decided, {format_count(rows, 'row')}"
    if aborts:
        summary += f"; {aborts} aborted"
    oldest = min((row.started for row in transactions), default=now)
    cut = len(transactions) >= MOST and oldest > now - 60 * MINUTES
    return Hour(
        application,
        _commits(by_minute, now),
        _ages(by_minute, now),
        summary,
        oldest if cut else None,
    )


def answers(times: Iterable[tuple[float, float]], now: float) -> Chart:
    """Draw how long answers took, by when they came."""
    by_minute: list[list[float]] = [[] for _ in range(MINUTES)]
    for moment, seconds in times:
        ago = max(0, int(now // 60 - moment // 60))
        if ago < MINUTES:
            by_minute[-1 - ago].append(seconds)
    return _ages(by_minute, now)


def _commits(by_minute: list[list[float]], now: float) -> Chart:
    counts = [len(minute) for minute in by_minute]
    top = round_up(max(counts))
    titles = [format_count(count, "commit") for count in counts]
    summary = f"{format_count(max(counts), 'commit')} in a minute at most"
    return Chart(_bars(counts, top, titles, now), (), f"{top:.0f} a minute", summary)


def _ages(by_minute: list[list[float]], now: float) -> Chart:
    every = [age for minute in by_minute for age in minute]
    top = round_up(max(every)) if every else 1.0
    slowest = [max(minute, default=0.0) for minute in by_minute]
    median = [statistics.median(minute or [0.0]) for minute in by_minute]
    titles = [_median_and_slowest(minute) if minute else "" for minute in by_minute]
    return Chart(
        _bars(median, top, titles, now),
        _bars(slowest, top, titles, now),
        format_elapsed(top),
        _median_and_slowest(every) if every else "nothing was committed",
    )


def _median_and_slowest(ages: list[float]) -> str:
    median, slowest = statistics.median(ages), max(ages)
    return f"median {format_elapsed(median)}, slowest {format_elapsed(slowest)}"


def _bars(
    values: Sequence[float], top: float, titles: Sequence[str], now: float
) -> tuple[Bar, ...]:
    """Make a bar of each minute with something in it; the last one is now's."""
    bars = []
    for place, (value, title) in enumerate(zip(values, titles, strict=True)):
        if value <= 0:
            continue
        height = max(1.0, value / top * HEIGHT)
        minute = now - 60 * (MINUTES - 1 - place)
        when = f"{datetime.fromtimestamp(minute, timezone.utc):%H:%M} UTC"
        x = round(place * 100 / MINUTES, 3)
        y = round(HEIGHT - height, 2)
        bars.append(Bar(x, y, round(height, 2), f"{when}: {title}"))
    return tuple(bars)
