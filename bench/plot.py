"""A line chart as SVG: no script, no font from elsewhere, its own background."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 720
HEIGHT: Final = 380
LEFT: Final = 70
RIGHT: Final = 170
TOP: Final = 46
BOTTOM: Final = 56
COLOURS: Final = ("#1b5e9e", "#c2541b", "#3d7a35", "#7a4a9e", "#6b6b6b")


@dataclasses.dataclass(frozen=True, slots=True)
class At:
    """A point, and the interval that it lies in, if one is known."""

    x: float
    y: float
    lo: float | None = None
    hi: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one x, which is shown in equal steps, one for each value of it.

    Args:
        title: what is shown.
        x: what the values along the bottom are.
        y: what the values along the left side are.
        lines: name to points.
        limit: a goal: a broken line.
        log: steps of y are factors of ten, two and five, not differences.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[At]]
    limit: float | None = None
    log: bool = False

    def svg(self) -> str:
        """Draw it."""
        return "\n".join([*self._parts(), "</svg>", ""])

    def _parts(self) -> Iterator[str]:
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" role="img" font-size="13" '
            'font-family="sans-serif">'
        )
        yield f"<title>{escape(self.title)}</title>"
        yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
        yield _text(LEFT, 24, self.title, size=15)
        yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, self.x, anchor="middle")
        across = f'transform="rotate(-90 18 {HEIGHT / 2:g})"'
        yield _text(18, HEIGHT / 2, self.y, anchor="middle", more=across)
        if not any(self.lines.values()):
            yield _text(WIDTH / 2, HEIGHT / 2, "not measured", anchor="middle")
            return
        ticks = self._ticks()
        place = self._place(ticks)
        for tick in ticks:
            height = place(tick)
            yield _line(LEFT, height, WIDTH - RIGHT, height, "#dddddd")
            yield _text(LEFT - 8, height + 4, f"{tick:,g}", anchor="end")
        for x in self._xs():
            yield _text(self._across(x), HEIGHT - 34, count(x), anchor="middle")
        if self.limit is not None:
            height = place(self.limit)
            more = 'stroke-dasharray="6 4"'
            yield _line(LEFT, height, WIDTH - RIGHT, height, "#b00020", more)
            label = f"goal: {self.limit:g}"
            yield _text(WIDTH - RIGHT + 8, height + 4, label, colour="#b00020")
        ends: list[float] = [] if self.limit is None else [place(self.limit)]
        for number, (name, points) in enumerate(self.lines.items()):
            yield from self._drawn(name, points, place, COLOURS[number % 5], ends)

    def _drawn(
        self,
        name: str,
        points: Sequence[At],
        place: Callable[[float], float],
        colour: str,
        ends: list[float],
    ) -> Iterator[str]:
        if not points:
            return
        corners = " ".join(f"{self._across(p.x):.1f},{place(p.y):.1f}" for p in points)
        style = f'fill="none" stroke="{colour}" stroke-width="2"'
        yield f'<polyline points="{corners}" {style}/>'
        for point in points:
            x, y = self._across(point.x), place(point.y)
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
            if point.lo is not None and point.hi is not None:
                yield _line(x, place(point.lo), x, place(point.hi), colour)
        end = place(points[-1].y) + 4
        while any(abs(end - other) < 15 for other in ends):  # two names on one place
            end -= 15
        ends.append(end)
        yield _text(WIDTH - RIGHT + 8, end, name, colour=colour)

    def _xs(self) -> list[float]:
        return sorted({point.x for points in self.lines.values() for point in points})

    def _across(self, x: float) -> float:
        xs = self._xs()
        width = WIDTH - LEFT - RIGHT
        return LEFT + width * (xs.index(x) + 0.5) / len(xs)

    def _ticks(self) -> list[float]:
        every = [
            value
            for points in self.lines.values()
            for p in points
            for value in (p.y, p.lo, p.hi)
            if value is not None
        ]
        if self.limit is not None:
            every.append(self.limit)
        return log_ticks(every) if self.log else ticks(max(every))

    def _place(self, ticks: Sequence[float]) -> Callable[[float], float]:
        scale: Callable[[float], float] = math.log if self.log else float
        first, last = scale(ticks[0]), scale(ticks[-1])
        height = HEIGHT - TOP - BOTTOM

        def place(y: float) -> float:
            return HEIGHT - BOTTOM - height * (scale(y) - first) / (last - first)

        return place


def ticks(most: float) -> list[float]:
    """Return 0 and up to seven more round numbers, the last not below the most."""
    step = next(s for s in _round_numbers(most / 7) if s * 7 >= most)
    return [round(n * step, 10) for n in range(math.ceil(most / step - 1e-9) + 1)]


def log_ticks(values: Sequence[float]) -> list[float]:
    """Return round numbers that hold all of the values between them."""
    numbers = list(_round_numbers(min(values) / 5))
    first = max(n for n in numbers if n <= min(values))
    last = min(n for n in numbers if n >= max(values) and n > first)
    return [n for n in numbers if first <= n <= last]


def count(number: float) -> str:
    """Write a number of things: 10, 2 k, 1 M."""
    for size, unit in ((1_000_000, " M"), (1_000, " k")):
        if number >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


def _round_numbers(start: float) -> Iterator[float]:
    """Yield 1, 2, 5 times powers of ten, from at or below a number upwards."""
    power = math.floor(math.log10(start))
    for exponent in range(power, power + 12):
        for digit in (1, 2, 5):
            yield digit * 10.0**exponent


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 13,
    colour: str = "#222222",
    more: str = "",
) -> str:
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {at} fill="{colour}" {more}>{escape(text)}</text>'


def _line(
    x1: float, y1: float, x2: float, y2: float, colour: str, more: str = ""
) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" {more}/>'
