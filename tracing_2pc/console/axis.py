"""Axes that a person can read: round steps, few of them. No I/O."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from tracing_2pc.inspection.wording import format_duration

_STEPS: Final = (
    *(m * 10.0**e for e in (-3, -2, -1) for m in (1, 2, 5)),
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(60.0 * m for m in (1, 2, 5, 10, 15, 30)),
    *(3600.0 * h for h in (1, 2, 3, 6, 12)),
    *(86400.0 * d for d in (1, 2, 7, 14, 30, 90, 365)),
)

QUIET: Final = 0.3
"""If everything happened within this share of the time, the rest is compressed."""

_BUSY: Final = 70.0
"""Per cent of the axis for what happened, if the rest is compressed."""


class Tick(NamedTuple):
    """A place in per cent of the axis, and its label."""

    x: float
    label: str


class Axis(NamedTuple):
    """Linear up to `bend`, which stands at `share` per cent, and linear from there."""

    start: float
    bend: float
    end: float
    share: float

    def place(self, at: float) -> float:
        """Return the place of a time in per cent, from 0 to 100."""
        if at <= self.bend:
            x = (at - self.start) / max(self.bend - self.start, 1e-9) * self.share
        else:
            rest = max(self.end - self.bend, 1e-9)
            x = self.share + (at - self.bend) / rest * (100 - self.share)
        return round(min(100.0, max(0.0, x)), 3)

    def ticks(self) -> tuple[Tick, ...]:
        """Divide it up to the bend."""
        linear = ticks(max(self.bend - self.start, 0.001))
        return tuple(Tick(round(t.x / 100 * self.share, 3), t.label) for t in linear)

    def cut(self) -> Tick | None:
        """Return the bend, with how long it is from there on; None without one."""
        if self.share == 100:
            return None
        return Tick(self.share, f"then {format_duration(self.end - self.bend)}")


def compressed_axis(start: float, last: float, now: float | None) -> Axis:
    """Give most of the axis to the time from the first event to the last one.

    `now` is the end of open phases; None where there are none.
    """
    end = last if now is None else max(last, now)
    if start < last < start + QUIET * (end - start):
        return Axis(start, last, end, _BUSY)
    end = max(end, start + 0.001)
    return Axis(start, end, end, 100.0)


def ticks(span: float, most: int = 5) -> tuple[Tick, ...]:
    """Divide so many seconds from 0 on by a round step, into `most` parts at most.

    The last one keeps clear of the end, so that its label fits.
    """
    fitting = (step for step in _STEPS if span / step <= most)
    step = next(fitting, None) or round_up(span / most)
    count = math.floor(span / step * (1 + 1e-9))
    places = (n * step for n in range(count + 1))
    return tuple(
        Tick(place / span * 100, elapsed(place, step))
        for place in places
        if place <= span * 0.93
    )


def elapsed(seconds: float, step: float) -> str:
    """Write a place on the axis in the largest unit that its step has."""
    if seconds == 0:
        return "0"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if step >= length and math.isclose(step % length, 0, abs_tol=1e-9):
            return f"{seconds / length:.0f} {unit}"
    return f"{round(seconds, 3):g} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20 … that is not smaller; 1 for nothing."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= value * (1 - 1e-9))
