"""A wait for the decision, when it is over: an open span is never exported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracing_2pc import names
from tracing_2pc.participant.answers import Seen
from tracing_2pc.states import BranchState
from tracing_2pc.telemetry import metrics
from tracing_2pc.telemetry.propagation import extract
from tracing_2pc.telemetry.spans import identity, past_span

WORTH_A_SPAN: Final = 10.0
"""Seconds that a branch may wait for its decision without one."""


def record_wait(
    seen: Seen, since: Sequence[float], now: float, outcome: BranchState
) -> None:
    """Measure how long a transaction waited; make one span of it if that was long."""
    if not since:
        return
    metrics.record("tpc_in_doubt_duration_seconds", None, now - min(since))
    if now - min(since) <= WORTH_A_SPAN:
        return
    past_span(
        names.IN_DOUBT,
        extract(seen.carrier),
        attributes={
            **identity(seen.transaction),
            "tpc.state": str(outcome),
        },
        start=int(min(since) * 1e9),
        end=int(now * 1e9),
    )
