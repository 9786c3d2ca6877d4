"""What a participant measures: its requests, and the gauges of its resource."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Final

from opentelemetry.context import Context

from tracing_2pc.core.names import LABELS, METRICS
from tracing_2pc.tracing import instruments

GAUGES: Final = tuple(
    name
    for name, metric in METRICS.items()
    if metric.kind == "gauge" and not metric.labels
)
"""What resources can have: each has some of them."""

_scraped: Final[ContextVar[Mapping[str, float] | None]] = ContextVar(
    "tpc_scraped", default=None
)
logger = logging.getLogger(__name__)


class Measured:
    """A resource's gauges: read in the database, and the same in every worker.

    A scrape reads them once, and so does each export by OTLP. An export is of the
    resource that was made last in its process, a scrape of the one that is asked.
    """

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read = read
        self._of_thread = threading.local()
        for name in GAUGES:
            instruments.observe(name, partial(self._observe, name))

    def exposition(self) -> str:
        """Write them, and this worker's counts. Raises whatever reading raises."""
        token = _scraped.set(self._read())
        try:
            return instruments.exposition()
        finally:
            _scraped.reset(token)

    def _observe(self, name: str) -> list[tuple[float, instruments.Labels]]:
        if (scraped := _scraped.get()) is not None:
            value = scraped.get(name)
        else:
            value = self._for_export(name)
        return [] if value is None else [(value, {})]

    def _for_export(self, name: str) -> float | None:
        """Return a gauge of a reading that has not yet been asked for it."""
        reading: dict[str, float | None] = vars(self._of_thread)
        if name not in reading:
            reading.update(dict.fromkeys(GAUGES))
            try:
                reading.update(self._read())
            except Exception:  # no database, no gauges: not tried again for each
                logger.debug("gauges could not be read", exc_info=True)
        return reading.pop(name)


def record_request(
    phase: str, name: str, result: str, seconds: float, context: Context
) -> None:
    """Measure a request that is a phase of the protocol; others are not.

    `result` is `ok`, `refused`, or `unavailable` for what is no answer; `context` is
    that of the request's span.
    """
    if phase not in LABELS["phase"]:
        return
    labels = {"phase": phase, "participant": name, "result": result}
    instruments.record("tpc.phase.duration", labels, seconds, context)
