"""Counts that are read when they are exported: cheaper than an instrument's."""

from __future__ import annotations

import threading
from collections import Counter

from tracing_2pc.core.forks import after_fork


class Counted:
    """Counts by a label, of this process: a fork begins at nothing."""

    def __init__(self) -> None:
        self._reset()
        after_fork(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, label: str, amount: int = 1) -> None:
        """Count."""
        with self._lock:
            self._counts[label] += amount

    def read(self) -> dict[str, int]:
        """Return what was counted, by label."""
        with self._lock:
            return dict(self._counts)
