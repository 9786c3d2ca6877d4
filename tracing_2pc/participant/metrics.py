"""A participant's measures: its requests, and the gauges of its resource."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from opentelemetry.context import Context

from tracing_2pc.core.names import LABELS
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.gauges import observe_gauges, scraped


class Measured:
    """A resource's gauges: read in the database, and the same in every worker.

    A scrape reads them once, and so does each export by OTLP. An export is of the
    resource that was made last in its process, a scrape of the one that is asked.
    """

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read = read
        observe_gauges(lambda: [(read(), {})])

    def exposition(self) -> str:
        """Write them, and this worker's counts. Errors of reading are raised."""
        token = scraped.set(self._read())
        try:
            return instruments.exposition()
        finally:
            scraped.reset(token)


def record_request(
    phase: str, name: str, result: str, seconds: float, context: Context
) -> None:
    """Measure a request that is a phase of the protocol; others are not.

    `result` is `ok`, `refused`, or `unavailable` if there is no answer; `context` is
    that of the request's span.
    """
    if phase not in LABELS["phase"]:
        return
    labels = {"phase": phase, "participant": name, "result": result}
    instruments.record("tpc.phase.duration", labels, seconds, context)
