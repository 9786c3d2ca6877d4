"""The table that is printed, and the same as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from crash.runs import Result

HEAD = ("point", "runs", "lost", "duplicated", "split", "stuck", "worst recovery s")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """All runs of one point, added up."""

    point: str
    runs: int
    lost: int
    duplicated: int
    split: int
    stuck: int
    worst: float
    remarks: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """It was run, and nothing was wrong."""
        wrong = self.lost + self.duplicated + self.split + self.stuck
        return bool(self.runs) and not wrong and not self.remarks

    def cells(self) -> tuple[str, ...]:
        """Return what the table shows."""
        counts = (self.runs, self.lost, self.duplicated, self.split, self.stuck)
        return (self.point, *map(str, counts), f"{self.worst:.1f}")


def row(point: str, results: Sequence[Result]) -> Row:
    """Add up the runs of a point; none at all is a fault."""
    verdicts = [result.verdict for result in results]
    remarks = tuple(result.remark for result in results if result.remark)
    return Row(
        point,
        len(results),
        lost=sum(v.lost for v in verdicts),
        duplicated=sum(v.duplicated for v in verdicts),
        split=sum(v.split for v in verdicts),
        stuck=sum(v.stuck for v in verdicts),
        worst=max((result.seconds for result in results), default=0.0),
        remarks=remarks if results else ("no scenario",),
    )


def line(cells: Sequence[str]) -> str:
    """Return one line of the table."""
    first, *others = cells
    widths = [len(head) for head in HEAD[1:]]
    return "  ".join(
        [f"{first:<30}", *(f"{c:>{w}}" for c, w in zip(others, widths, strict=True))]
    )


def write_json(file: Path, rows: Sequence[Row], runs: int, seconds: float) -> None:
    """Write what the table shows, and the remarks."""
    found = [dataclasses.asdict(row) for row in rows]
    about = {"runs": runs, "seconds": round(seconds, 1), "points": found}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(about, indent=1) + "\n")
