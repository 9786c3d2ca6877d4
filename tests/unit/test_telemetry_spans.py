"""Spans, the reserved root and propagation, as seen in an in-memory exporter."""

from __future__ import annotations

from tracing_support import exported, span_tree  # noqa: F401

from tracing_2pc import names
from tracing_2pc.model import TransactionId, TransactionRecord
from tracing_2pc.states import Decision, TransactionState
from tracing_2pc.telemetry.transaction import OpenTelemetryTracing


def record(carrier: dict[str, str], decision: Decision = Decision.COMMIT):
    return TransactionRecord(
        id=TransactionId("orders", 7, 1),
        run="r1",
        state=TransactionState.COMMITTING,
        decision=decision,
        participants=("ledger", "notifier"),
        acknowledged=frozenset(),
        carrier=carrier,
        started=1000.0,
        decided=1002.5,
    )


def test_a_transaction_is_one_trace(exported):  # noqa: F811
    """Steps made before the root exists are its children once it is exported."""
    tracing = OpenTelemetryTracing()
    carrier = tracing.reserve()
    with tracing.step(names.BEGIN, carrier):
        pass
    decided = record(carrier)
    with tracing.step(names.DECIDE, carrier, decided):
        pass
    tracing.decided(decided, reconstructed=False)
    with tracing.step(names.DELIVER, carrier, decided):
        pass
    assert span_tree(exported()) == [
        "tpc.transaction",
        "  tpc.begin",
        "  tpc.decide",
        "  tpc.deliver",
    ]
