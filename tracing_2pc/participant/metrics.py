"""What a participant measures: its requests, and the gauges of its resource."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
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
"""What resources can have: each has some of them. Without a service they have the label
`participant`."""

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
        observe_gauges(lambda: [(read(), {})])

    def exposition(self) -> str:
        """Write them, and this worker's counts. Raises whatever reading raises."""
        token = _scraped.set(self._read())
        try:
            return instruments.exposition()
        finally:
            _scraped.reset(token)


def observe_gauges(
    read: Callable[[], Iterable[tuple[Mapping[str, float], instruments.Labels]]],
) -> None:
    """Have gauges of resources exported: those of each, with its labels.

    They are what this process exports from now on, and nothing else. `read` is called
    once for each export; where it raises there are no gauges.
    """
    gauges = _Gauges(read)
    for name in GAUGES:
        instruments.observe(name, partial(gauges.observe, name))


class _Gauges:
    """What was read for an export, until each gauge has been asked for."""

    def __init__(
        self,
        read: Callable[[], Iterable[tuple[Mapping[str, float], instruments.Labels]]],
    ) -> None:
        self._read = read
        self._of_thread = threading.local()

    def observe(self, name: str) -> list[tuple[float, instruments.Labels]]:
        if (scraped := _scraped.get()) is not None:
            return [(scraped[name], {})] if name in scraped else []
        unasked: dict[str, list[tuple[float, instruments.Labels]]]
        unasked = vars(self._of_thread)
        if name not in unasked:
            unasked.update({name: [] for name in GAUGES})
            try:
                for gauges, labels in self._read():
                    for gauge in unasked.keys() & gauges.keys():
                        unasked[gauge].append((gauges[gauge], labels))
            except Exception:  # no database, no gauges: not tried again for each
                logger.debug("gauges could not be read", exc_info=True)
        return unasked.pop(name)


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
