"""Two pieces of work side by side: ratios of what was measured in the same moment.

Noise comes and goes in seconds, so an arm is run in small blocks, the arms take turns,
and who is first changes from round to round. The figure is the median of the rounds'
ratios, with the interval that order statistics give it: nothing is assumed about how
the noise is distributed. The ratio of the two best blocks is the second opinion.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any, Final

Block = Callable[[], float]
"""Runs one block of an arm; returns what it took."""

WIDE: Final = 0.15
"""An interval that is wider than this, to each side, says too little."""
APART: Final = 0.20
"""As does a median that is so far from the second opinion."""

FEWEST: Final = 6
"""Rounds. Of fewer not even the smallest and the largest ratio are a 95 % interval."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """Library over base, with the 95 % interval of the median."""

    ratio: float
    lo: float
    hi: float
    min_min: float
    rounds: int

    def verdict(self, limit: float) -> str:
        """Return pass, fail, or inconclusive: then more rounds may tell."""
        wide = max(self.hi - self.ratio, self.ratio - self.lo) > WIDE * self.ratio
        if self.rounds < FEWEST or wide or abs(self.min_min / self.ratio - 1) > APART:
            return "inconclusive"
        if self.hi <= limit:
            return "pass"
        return "fail" if self.lo > limit else "inconclusive"

    def as_json(self) -> dict[str, float | int]:
        """Return its figures, rounded."""
        figures = dataclasses.asdict(self)
        return {k: round(v, 4) if k != "rounds" else v for k, v in figures.items()}


def measure(arms: Mapping[str, Block], rounds: int) -> dict[str, list[float]]:
    """Run every arm once in each round, in an order that rotates and turns around."""
    names = list(arms)
    durations: dict[str, list[float]] = {name: [] for name in names}
    for block in arms.values():  # what is made at the first call is nobody's cost
        block()
    for number in range(rounds):
        shift = number // 2 % len(names)
        order = names[shift:] + names[:shift]
        for name in order if number % 2 else reversed(order):
            durations[name].append(arms[name]())
    return durations


def compare(library: list[float], base: list[float]) -> Ratio:
    """Return the ratio of two arms of one measurement."""
    ratios = sorted(x / y for x, y in zip(library, base, strict=True))
    rank = _rank(len(ratios))
    return Ratio(
        statistics.median(ratios),
        ratios[rank],
        ratios[-1 - rank],
        min(library) / min(base),
        len(ratios),
    )


def _rank(n: int) -> int:
    """Return how many ratios lie outside the interval at each end: 2.5 % at most."""
    below, rank = 0.5**n, 0
    while below + math.comb(n, rank + 1) * 0.5**n <= 0.025:
        rank += 1
        below += math.comb(n, rank) * 0.5**n
    return rank


def line(goal: str, ratio: Ratio, limit: float, settings: Mapping[str, Any]) -> Any:
    """Return what a command prints for a goal, as one JSON object."""
    figures = ratio.as_json()
    return {
        "goal": goal,
        **{name: figures[name] for name in ("ratio", "lo", "hi", "min_min")},
        "limit": limit,
        "rounds": ratio.rounds,
        "verdict": ratio.verdict(limit),
        "settings": dict(settings),
    }


def point(
    series: str,
    x: float,
    ratio: Ratio,
    arms: Mapping[str, float],
    settings: Mapping[str, Any],
) -> Any:
    """Return what a command prints for a point of a series, as one JSON object.

    `arms` has the height of each line of the plot at this x.
    """
    return {
        "series": series,
        "x": x,
        **ratio.as_json(),
        "arms": {name: round(height, 4) for name, height in arms.items()},
        "settings": dict(settings),
    }


def peer(name: str, ratio: Ratio, settings: Mapping[str, Any]) -> Any:
    """Return what a command prints of another beside the library: no limit, a fact."""
    return {"peer": name, **ratio.as_json(), "settings": dict(settings)}
