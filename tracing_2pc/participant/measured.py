"""What a participant measures: its requests, and the gauges of its resource."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Final

from tracing_2pc.names import LABELS
from tracing_2pc.telemetry import metrics
from tracing_2pc.transports import wire

GAUGES: Final = (
    "tpc_outbox_backlog",
    "tpc_outbox_oldest_age_seconds",
    "tpc_outbox_quarantined",
    "tpc_outbox_stopped",
    "tpc_prepared_slots_used",
    "tpc_prepared_slots_max",
    "tpc_in_doubt_branches",
    "tpc_oldest_in_doubt_age_seconds",
)
"""What resources can have: each has some of them."""

_scraped: Final[ContextVar[Mapping[str, float] | None]] = ContextVar(
    "tpc_scraped", default=None
)
_log: Final = logging.getLogger(__name__)


class Measured:
    """A resource's gauges: read in the database, and the same in every worker.

    A scrape reads them once, and so does each export by OTLP. What is exported is of
    the last one that was made in a process; a scrape is answered by its own.

    Args:
        read: reads all of them, by name.
    """

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read = read
        self._here = threading.local()
        for name in GAUGES:
            metrics.observe(name, partial(self._observe, name))

    def exposition(self) -> str:
        """Write them, and what this worker has counted; raises what reading raises."""
        token = _scraped.set(self._read())
        try:
            return metrics.exposition()
        finally:
            _scraped.reset(token)

    def _observe(self, name: str) -> list[tuple[float, metrics.Labels]]:
        scraped = _scraped.get()
        value = self._next(name) if scraped is None else scraped.get(name)
        return [] if value is None else [(value, {})]

    def _next(self, name: str) -> float | None:
        """Return it from a reading that has answered every name at most once."""
        left: dict[str, float | None] = self._here.__dict__.setdefault("left", {})
        if name not in left:
            left.update({**dict.fromkeys(GAUGES), **self._try()})
        return left.pop(name)

    def _try(self) -> Mapping[str, float]:
        try:
            return self._read()
        except Exception:  # noqa: BLE001 - no database, no gauges; not once for each
            _log.debug("gauges could not be read", exc_info=True)
            return {}


def record_request(phase: str, name: str, status: int, seconds: float) -> None:
    """Measure a request that is a phase of the protocol; others are not."""
    if phase not in LABELS["phase"]:
        return
    labels = {"phase": phase, "participant": name, "result": _result(status)}
    metrics.record("tpc_phase_duration_seconds", labels, seconds)


def _result(status: int) -> str:
    if status >= 500 or status in wire.ASK_AGAIN:
        return "unavailable"
    return "ok" if status == 200 else "refused"
