"""What a person does: a trace of its own, linked to the transaction's."""

from __future__ import annotations

from contextlib import AbstractContextManager

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind

from tracing_2pc import names
from tracing_2pc.interfaces import Step
from tracing_2pc.model import Carrier, TransactionId
from tracing_2pc.telemetry import metrics, roots, spans


def acting(
    action: str,
    transaction: TransactionId,
    carrier: Carrier,
    participant: str | None = None,
) -> AbstractContextManager[Step]:
    """Open `tpc.operator`. What is delivered inside stays in the transaction's trace.

    Args:
        action: commit, abort or conclude.
        transaction: which one.
        carrier: context of its root, as log or participant keep it; may be empty.
        participant: where it is done, if not in the log.
    """
    about: dict[str, spans.Value] = {
        "tpc.action": action,
        **spans.identity(transaction),
    }
    if participant is not None:
        about["tpc.participant"] = participant
    root = roots.context_of(carrier)
    links = [Link(root)] if root.is_valid else []
    return spans.OpenSpan(
        names.OPERATOR, SpanKind.INTERNAL, Context(), about, links=links
    )


def acted(action: str) -> None:
    """Count what a person has done, when it is done."""
    metrics.add("tpc_operator_actions_total", {"action": action})
