"""What a run's victim dies of, life after life, and whether it did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class Deaths:
    """Arms one life of the victim after the other; the life after the last is free.

    Args:
        folder: for the files that say that a failpoint has fired.
        victim: whose lives are armed; empty: nobody's, it is killed from outside.
        points: where they end: `<failpoint>` or `<failpoint>:<n>`.
    """

    def __init__(self, folder: Path, victim: str, points: Sequence[str]) -> None:
        self._victim = victim
        self._points = points
        self._files = [folder / f"fired-{n}" for n in range(len(points))]
        self._armed = 0

    @property
    def left(self) -> int:
        """How many lives are still to be armed."""
        return len(self._points) - self._armed

    def next_life(self, role: str) -> dict[str, str]:
        """Return the variables of the next life of a role."""
        if role != self._victim or not self.left:
            return {}
        self._armed += 1
        return variables(self._points[self._armed - 1], self._files[self._armed - 1])

    def mark(self) -> None:
        """Say that the victim was killed from outside."""
        self._files[0].touch()

    def first(self) -> float | None:
        """Return when the first kill was, Unix seconds, if there was one."""
        times = [file.stat().st_mtime for file in self._files if file.exists()]
        return min(times, default=None)

    def missing(self) -> list[str]:
        """Return the points that have not fired."""
        pairs = zip(self._points, self._files, strict=True)
        return [point for point, file in pairs if not file.exists()]


def variables(point: str, file: Path) -> dict[str, str]:
    """Return the environment that arms a failpoint."""
    return {"TPC_FAILPOINT": point, "TPC_FAILPOINT_FILE": str(file)}
