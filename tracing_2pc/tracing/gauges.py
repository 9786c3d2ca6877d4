"""Gauges of participants, as a process exports them: its own, or several by name."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Final

from tracing_2pc.core.names import METRICS
from tracing_2pc.tracing import instruments

GAUGES: Final = tuple(
    name
    for name, metric in METRICS.items()
    if metric.kind == "gauge" and not metric.labels
)
"""What resources can have: each has some of them. Without a service they have the label
`participant`."""

scraped: Final[ContextVar[Mapping[str, float] | None]] = ContextVar(
    "tpcscraped", default=None
)
logger = logging.getLogger(__name__)


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
    """The values read for an export, until each gauge has been asked for."""

    def __init__(
        self,
        read: Callable[[], Iterable[tuple[Mapping[str, float], instruments.Labels]]],
    ) -> None:
        self._read = read
        self._of_thread = threading.local()

    def observe(self, name: str) -> list[tuple[float, instruments.Labels]]:
        if (values := scraped.get()) is not None:
            return [(values[name], {})] if name in values else []
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
