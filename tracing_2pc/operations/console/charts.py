"""The last hour of an application as bars by the minute. No I/O, no HTML."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Final, NamedTuple

from tracing_2pc.operations.console.axis import round_up
from tracing_2pc.operations.console.words import counted, short
from tracing_2pc.states import Decision
from tracing_2pc.store.overview import MOST, Summary

MINUTES: Final = 60
HEIGHT: Final = 64
"""Pixels of the highest bar there can be."""


class Bar(NamedTuple):
    """A minute: place and width in per cent, top and height in pixels."""

    x: float
    width: float
    y: float
    height: float
    said: str


class Chart(NamedTuple):
    """Bars in front of others, the value at the top, and all of it in words."""

    front: tuple[Bar, ...]
    back: tuple[Bar, ...]
    top: str
    said: str


class Hour(NamedTuple):
    """What an application has committed in the last hour.

    `since` is set where there was more than could be read: minutes before are empty.
    """

    application: str
    commits: Chart
    ages: Chart
    said: str
    since: float | None


def hour(application: str, found: Sequence[Summary], now: float) -> Hour:
    """Draw an application's newest transactions, whatever their order."""
    committed = [
        one
        for one in found
        if one.decision is Decision.COMMIT
        and one.decided is not None
        and 0 <= _minute(one.decided, now) < MINUTES
    ]
    by_minute: list[list[float]] = [[] for _ in range(MINUTES)]
    for one in committed:
        end = now if one.finished is None else one.finished
        took = max(0.0, end - one.started)
        by_minute[MINUTES - 1 - _minute(one.decided or 0.0, now)].append(took)
    aborted = sum(
        one.decision is Decision.ABORT and _minute(one.decided or 0.0, now) < MINUTES
        for one in found
    )
    rows = sum(one.rows or 0 for one in committed)
    said = f"{counted(len(committed), 'commit')} decided"
    said += f", {counted(rows, 'row')}" + (f"; {aborted} aborted" if aborted else "")
    oldest = min((one.started for one in found), default=now)
    cut = len(found) >= MOST and oldest > now - 60 * MINUTES
    return Hour(
        application,
        _commits(by_minute, now),
        _ages(by_minute, now),
        said,
        oldest if cut else None,
    )


def _minute(at: float, now: float) -> int:
    """Return how many minutes of the clock ago; what a fast one says is now."""
    return int(max(0.0, now // 60 - at // 60))


def _commits(by_minute: list[list[float]], now: float) -> Chart:
    counts = [float(len(minute)) for minute in by_minute]
    top = round_up(max(counts))
    words = [counted(int(count), "commit") for count in counts]
    said = f"{counted(int(max(counts)), 'commit')} in a minute at most"
    return Chart(_bars(counts, top, words, now), (), f"{top:.0f} a minute", said)


def _ages(by_minute: list[list[float]], now: float) -> Chart:
    slowest = [max(minute, default=0.0) for minute in by_minute]
    middle = [statistics.median(minute) if minute else 0.0 for minute in by_minute]
    every = [took for minute in by_minute for took in minute]
    top = round_up(max(slowest)) if every else 1.0
    words = [
        f"median {short(half)}, slowest {short(most)}"
        for half, most in zip(middle, slowest, strict=True)
    ]
    said = "nothing was committed"
    if every:
        said = f"median {short(statistics.median(every))}, "
        said += f"slowest {short(max(every))}"
    return Chart(
        _bars(middle, top, words, now),
        _bars(slowest, top, words, now),
        short(top),
        said,
    )


def _bars(
    values: Iterable[float], top: float, words: Sequence[str], now: float
) -> tuple[Bar, ...]:
    """Make a bar of each minute with something in it; the last is now's."""
    step = 100 / MINUTES
    made = []
    for place, value in enumerate(values):
        if value > 0:
            height = max(1.0, value / top * HEIGHT)
            minute = now - 60 * (MINUTES - 1 - place)
            when = f"{datetime.fromtimestamp(minute, timezone.utc):%H:%M} UTC"
            made.append(
                Bar(
                    round(place * step, 3),
                    round(step * 0.8, 3),
                    round(HEIGHT - height, 2),
                    round(height, 2),
                    f"{when}: {words[place]}",
                )
            )
    return tuple(made)
