"""A stuck transaction in its own trace, by spans that end where they begin."""

from __future__ import annotations

from tracing_2pc import names
from tracing_2pc.model import Carrier, TransactionId
from tracing_2pc.telemetry import spans
from tracing_2pc.telemetry.propagation import extract


def snapshot(
    transaction: TransactionId,
    carrier: Carrier,
    *,
    diagnosis: str,
    age: float,
    pending: int,
    now: float,
) -> None:
    """Export one span below the carrier's, with an id of its own. Never raises.

    Args:
        transaction: which one.
        carrier: of the record, or of the branch that is in doubt.
        diagnosis: what is wrong.
        age: seconds for which it has been so.
        pending: participants concerned.
        now: Unix seconds.
    """
    at = int(now * 1e9)
    spans.past_span(
        names.SNAPSHOT,
        extract(carrier),
        attributes={
            **spans.identity(transaction),
            "tpc.diagnosis": diagnosis,
            "tpc.age": age,
            "tpc.pending": pending,
        },
        start=at,
        end=at,
    )
