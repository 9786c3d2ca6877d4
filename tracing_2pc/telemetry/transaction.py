"""A transaction's trace: steps by the stored carrier, the root from the record.

Its metrics, too: the protocol tells both to one `interfaces.Tracing`.

A span that never ends is never exported, and a stuck transaction is a span that
never ends. So the root is not kept open: its ids are fixed before `begin`, stored
with the transaction, and the span is built from the log's record at the decision,
by whoever is alive then.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link

from tracing_2pc import names
from tracing_2pc.interfaces import Step
from tracing_2pc.model import PREVIOUS, Carrier, TransactionRecord
from tracing_2pc.states import Decision
from tracing_2pc.telemetry import metrics, propagation, roots, spans

LINK: Final = "tpc-link"
"""Key in a root's carrier: traceparent of what was current when it was reserved.
Stored for the root's link, and never sent."""

_BOUND: Final = 1024
_exported: Final[dict[str, None]] = {}  # roots, by traceparent, oldest first
_log: Final = logging.getLogger(__name__)


class OpenTelemetryTracing:
    """`interfaces.Tracing` on OpenTelemetry.

    All it needs stands in the record: any process can go on with a trace. What it
    remembers is which roots this process has exported, so as not to repeat itself.
    """

    def reserve(self) -> Carrier:
        """Fix the ids of a root; empty if nothing records spans in this process.

        Empty rather than ids that are not sampled: those would silence the traces
        that participants and a later recovery make of their own.
        """
        try:
            return _reserve()
        except Exception:  # noqa: BLE001 - a foreign sampler or id generator raised
            _log.debug("no root could be reserved", exc_info=True)
            return {}

    def step(
        self,
        name: str,
        carrier: Carrier,
        record: TransactionRecord | None = None,
        started: float | None = None,
    ) -> AbstractContextManager[Step]:
        """Open a span under the current one or else the carrier."""
        attributes = None if record is None else spans.identity(record.id)
        start = None if started is None else _nanoseconds(started)
        return spans.span(name, carrier=carrier, attributes=attributes, start=start)

    @contextlib.contextmanager
    def sweep(
        self, records: Sequence[TransactionRecord]
    ) -> Iterator[Sequence[TransactionRecord]]:
        """Open `tpc.recovery`, linked to each transaction.

        It is never the current span: what a sweep does for a transaction belongs
        into that one's trace.
        """
        sweep = _start_sweep(records) if records else trace.INVALID_SPAN
        try:
            yield records
        except Exception as error:
            spans.mark_error(sweep, type(error))
            raise
        finally:
            with contextlib.suppress(Exception):  # a foreign processor raised
                sweep.end()

    def decided(self, record: TransactionRecord, *, reconstructed: bool) -> None:
        """Export the root. Whoever takes a transaction over exports it again, once."""
        if reconstructed and record.carrier.get("traceparent") in _exported:
            return
        try:
            _export_root(record, reconstructed=reconstructed)
        except Exception:  # noqa: BLE001 - a foreign processor raised
            _log.debug("a root could not be exported", exc_info=True)

    def counted(self, record: TransactionRecord, cause: str | None = None) -> None:
        """Count a decision, and why it is abort."""
        metrics.add("tpc_transactions_total", {"outcome": str(record.decision)})
        if cause is not None:
            metrics.add("tpc_aborts_total", {"cause": cause})

    def answered(
        self, participant: str, decision: Decision, result: str, seconds: float
    ) -> None:
        """Count a try to commit, and how long a try of either kind took."""
        labels = {"participant": participant, "result": result}
        if decision is Decision.COMMIT:
            metrics.add("tpc_commit_attempts_total", labels)
        phase = {"phase": str(decision), **labels}
        metrics.record("tpc_phase_duration_seconds", phase, seconds)


def _reserve() -> Carrier:
    carrier = roots.reserve(names.TRANSACTION)
    upstream = propagation.traceparent() if carrier else None
    return carrier if upstream is None else {**carrier, LINK: upstream}


def _start_sweep(records: Sequence[TransactionRecord]) -> trace.Span:
    touched = (roots.context_of(record.carrier) for record in records)
    try:
        return spans.tracer().start_span(
            names.RECOVERY,
            Context(),
            attributes={"tpc.unfinished": len(records)},
            links=[Link(root) for root in touched if root.is_valid],
        )
    except Exception:  # noqa: BLE001 - a foreign sampler or processor raised
        _log.debug("a span could not be started", exc_info=True)
        return trace.INVALID_SPAN


def _export_root(record: TransactionRecord, *, reconstructed: bool) -> None:
    if record.decided is None:
        return
    attributes = _outcome(record)
    if reconstructed:
        attributes["tpc.root.reconstructed"] = True
    links = tuple(_links(record.carrier))
    times = _nanoseconds(record.started), _nanoseconds(record.decided)
    if not roots.export(names.TRANSACTION, record.carrier, attributes, links, times):
        return
    while len(_exported) >= _BOUND:
        _exported.pop(next(iter(_exported)), None)
    _exported[record.carrier["traceparent"]] = None


def _links(carrier: Carrier) -> Iterator[Link]:
    """Link to what was current when the root was reserved, and the attempt before."""
    for key in (LINK, PREVIOUS):
        linked = roots.context_of({"traceparent": carrier.get(key, "")})
        if linked.is_valid:
            yield Link(linked)


def _outcome(record: TransactionRecord) -> dict[str, spans.Value]:
    """Describe a decided transaction. An abort is a decision, not an error."""
    return {
        **spans.identity(record.id),
        "tpc.run": record.run,
        "tpc.decision": str(record.decision),
        "tpc.participants": len(record.participants),
        "tpc.rows": sum(receipt.rows for receipt in record.receipts),
    }


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
