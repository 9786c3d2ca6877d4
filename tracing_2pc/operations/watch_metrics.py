"""What the watcher measures: kept from its last sweep, so that a scrape asks nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from tracing_2pc.interfaces import Clock
from tracing_2pc.names import LABELS
from tracing_2pc.operations.observation import LOG
from tracing_2pc.operations.watcher import Watcher
from tracing_2pc.states import TransactionState
from tracing_2pc.telemetry import metrics

OTHER: Final = "other"
"""Stands for participants on record that the settings have no address of."""

Sample = tuple[float, dict[str, str]]


class WatchMetrics:
    """Gauges over a watcher. Every combination of labels is there from the start.

    Args:
        watcher: whose sweeps they tell.
        participants: names that labels may have.
        clock: ages grow between two sweeps.
    """

    def __init__(
        self, watcher: Watcher, participants: Sequence[str], clock: Clock
    ) -> None:
        self._watcher = watcher
        self._participants = participants
        self._clock = clock

    def observe(self) -> None:
        """Have them read from now on, in this process."""
        for name, callback in {
            "tpc_unfinished_transactions": self._unfinished,
            "tpc_oldest_unfinished_age_seconds": self._oldest,
            "tpc_diagnoses": self._diagnoses,
            "tpc_quarantined_transactions": self._quarantined,
            "tpc_watcher_last_success_timestamp_seconds": self._last_success,
        }.items():
            metrics.observe(name, callback)

    def _unfinished(self) -> Iterator[Sample]:
        counts = self._watcher.last.unfinished.counts
        for state in LABELS["state"]:
            yield counts.get(TransactionState(state), 0), {"state": state}

    def _oldest(self) -> Iterator[Sample]:
        oldest, now = self._watcher.last.unfinished.oldest, self._clock.now()
        for state in LABELS["state"]:
            since = oldest.get(TransactionState(state), now)
            yield max(0.0, now - since), {"state": state}

    def _diagnoses(self) -> Iterator[Sample]:
        counts = Counter(
            (str(one.diagnosis), self._label(name))
            for one in self._watcher.last.diagnoses
            for name in one.participants
        )
        for kind in LABELS["diagnosis"]:
            for name in (*self._participants, OTHER):
                labels = {"diagnosis": kind, "participant": name}
                yield counts[kind, name], labels

    def _label(self, name: str) -> str:
        return name if name in self._participants else OTHER

    def _quarantined(self) -> Iterator[Sample]:
        counts = self._watcher.last.unfinished.counts
        yield counts.get(TransactionState.QUARANTINED, 0), {}

    def _last_success(self) -> Iterator[Sample]:
        for name in (LOG, *self._participants):
            yield self._watcher.succeeded.get(name, 0.0), {"participant": name}
