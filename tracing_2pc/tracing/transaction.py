"""A transaction's trace and its metrics, for the protocol and operators.

The span of a stuck transaction would never end, and so never be exported. So the root
is not kept open: its ids are fixed before `begin` and stored with the transaction. The
process that decides or delivers builds the span from the log's record.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind

from tracing_2pc.core import names
from tracing_2pc.core.model import (
    Carrier,
    Root,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.ports import Step
from tracing_2pc.core.states import Decision, TransactionState
from tracing_2pc.tracing import instruments, spans
from tracing_2pc.tracing.propagation import (
    extract,
    span_of,
    started_by,
    thin_out_after,
)
from tracing_2pc.tracing.sdk import roots

_BOUND: Final = 1024
_exported: Final[dict[str, bool]] = {}  # roots, by traceparent, oldest first
_AS_DECIDED: Final = (TransactionState.COMMITTED, TransactionState.ABORTED)
_DAY: Final = 86400.0
logger = logging.getLogger(__name__)


class OpenTelemetryTracing:
    """`ports.Tracing` on OpenTelemetry.

    All it needs is in the record: any process can go on with a trace. It remembers only
    the roots that this process has exported, so as not to repeat itself. Where several
    processes may begin one transaction at once, the ids of its root follow from
    `shared`, a text that all of them know.
    """

    def __init__(self, shared: str | None = None) -> None:
        self._root = roots.derive_ids(shared) if shared else None

    def reserve(self) -> Root:
        """Fix the ids of a root; empty if nothing records spans in this process.

        Ids that are not sampled would silence the traces that participants and a later
        recovery make of their own.
        """
        try:
            root = roots.reserve(names.TRANSACTION, self._root)
            upstream = spans.current_carrier().get("traceparent") or started_by()
            if root.carrier and upstream:
                root.facts["root_link"] = upstream
            return root
        except Exception:  # a foreign sampler or id generator raised
            logger.debug("no root could be reserved", exc_info=True)
            return Root(Carrier(), {})

    def step(
        self,
        name: str,
        carrier: Carrier,
        record: TransactionRecord | None = None,
        started: float | None = None,
    ) -> AbstractContextManager[Step]:
        attributes = None if record is None else spans.identity(record.id)
        start = None if started is None else _nanoseconds(started)
        if name == names.DELIVER and record is not None:
            carrier = thin_out_after(carrier, record.tries)
        return spans.span(name, carrier=carrier, attributes=attributes, start=start)

    @contextlib.contextmanager
    def sweep(
        self, records: Sequence[TransactionRecord]
    ) -> Iterator[Sequence[TransactionRecord]]:
        """Open `tpc.recovery`, never current: each transaction has its own trace."""
        sweep: trace.Span = trace.INVALID_SPAN
        error: type[Exception] | None = None
        if records:
            links = _links(record.carrier for record in records)
            about = {"tpc.unfinished": len(records)}
            sweep = spans.start_span(names.RECOVERY, Context(), about, links=links)
        try:
            yield records
        except Exception as raised:
            error = type(raised)
            raise
        finally:
            spans.end_span(sweep, error)

    def export_root(self, record: TransactionRecord, *, taken_over: bool) -> None:
        """Export it, once. One out of time is the same before and after its abort."""
        known = record.carrier.get("traceparent") in _exported
        if known or (late := _ran_out_of_time(record)) is None:
            return
        decided = record.started + record.timeout if late else record.decided
        attributes: dict[str, spans.Value] = {
            **spans.identity(record.id),
            "tpc.run": record.run,
            "tpc.participants": len(record.participants),
            "tpc.rows": record.rows,
        }
        if record.rejected:
            attributes["tpc.rows.rejected"] = record.rejected
        if not late:
            attributes["tpc.decision"] = str(record.decision)
        error = "not decided in time" if late else None
        if late or record.decision is Decision.ABORT:
            cause = "timeout" if late else record.cause or "unknown"
            attributes["tpc.cause"], error = cause, error or f"aborted: {cause}"
            if record.detail and not late:
                detail = record.detail.split(": ")
                # Without another's message: that may hold a record.
                shown = detail[:2] if cause == "error" else detail
                attributes["tpc.failure"] = ": ".join(shown)
        # To what was current when the root was reserved, and to the attempt before.
        near = filter(None, (record.root_link, record.previous))
        links = _links({"traceparent": context} for context in near)
        links += _origins(record.links)
        start, end = map(_nanoseconds, (record.started, decided or record.started))
        if record.root_start is not None:
            start = min(start, record.root_start)  # two clocks may have written these
        about = attributes, links, (start, end), error
        try:
            resource = record.root_resource
            if roots.export(names.TRANSACTION, record.carrier, *about, resource):
                _exported[record.carrier["traceparent"]] = taken_over
        except Exception:  # a foreign processor raised
            logger.debug("a root could not be exported", exc_info=True)
        # Of a copy, as another query of this process may export one meanwhile.
        for oldest in list(_exported)[:-_BOUND]:
            _exported.pop(oldest, None)

    def finished(self, record: TransactionRecord, outcome: str) -> None:
        about: dict[str, spans.Value] = {"tpc.outcome": outcome}
        if _exported.get(record.carrier.get("traceparent", "")):
            about["tpc.recovered"] = True
        error = None if outcome in _AS_DECIDED else outcome
        _export_below_root(names.FINISH, record, about, error)

    def quarantined(self, record: TransactionRecord, action: str | None = None) -> None:
        about = {"tpc.state": str(TransactionState.QUARANTINED)}
        if action is not None:
            about["tpc.action"] = action
        _export_below_root(names.QUARANTINE, record, about, "quarantined")

    def count_decision(self, record: TransactionRecord) -> None:
        instruments.add("tpc.transactions", {"outcome": str(record.decision)})
        if record.cause is not None:
            instruments.add("tpc.aborts", {"cause": record.cause})
        if record.rejects:  # from zero on: a rate does not see how a series begins
            instruments.add("tpc.rows.rejected", {}, record.rejected)

    def record_answer(
        self, participant: str, decision: Decision, result: str, seconds: float
    ) -> None:
        labels = {"participant": participant, "result": result}
        if decision is Decision.COMMIT:
            instruments.add("tpc.commit.attempts", labels)
        phase = {"phase": str(decision), **labels}
        instruments.record("tpc.phase.duration", phase, seconds)


def operator_span(
    action: str,
    transaction: TransactionId,
    carrier: Carrier,
    participant: str | None = None,
) -> AbstractContextManager[Step]:
    """Open `tpc.operator`. Deliveries inside stay in the transaction's trace.

    `carrier` is that of its root, as log or participant keep it; it may be empty.
    """
    about: dict[str, spans.Value] = {
        "tpc.action": action,
        **spans.identity(transaction),
    }
    if participant is not None:
        about["tpc.participant"] = participant
    kind, links = SpanKind.INTERNAL, _links([carrier])
    return spans.OpenSpan(names.OPERATOR, kind, Context(), about, links=links)


def count_operator_action(action: str) -> None:
    """Count what a person has done, when it is done."""
    instruments.add("tpc.operator.actions", {"action": action})


def snapshot(
    transaction: TransactionId,
    carrier: Carrier,
    *,
    diagnosis: str,
    age: float,
    participants: Sequence[str],
    now: float,
) -> None:
    """Export the moment below the carrier's span: something is stuck.

    It is a trace of its own, linked and always sampled, where the transaction is not
    sampled, or has been stuck for a day: its trace must not grow for ever.

    `age` and `now` are in seconds; `participants` are those concerned.
    """
    moment = _nanoseconds(now)
    attributes: dict[str, spans.Value] = {
        **spans.identity(transaction),
        "tpc.diagnosis": diagnosis,
        "tpc.age": age,
        "tpc.pending": len(participants),
        "tpc.waits_for": ", ".join(participants),
    }
    if age < _DAY and span_of(carrier).trace_flags.sampled:
        spans.past_span(
            names.SNAPSHOT,
            extract(carrier),
            attributes=attributes,
            start=moment,
            end=moment,
            error=diagnosis,
        )
        return
    about = (attributes, _links([carrier]), (moment, moment), diagnosis)
    try:
        roots.export(names.SNAPSHOT, carrier, *about, is_new=True)
    except Exception:  # a foreign processor or id generator raised
        logger.debug("a snapshot could not be exported", exc_info=True)


def _ran_out_of_time(record: TransactionRecord) -> bool | None:
    """Whether its time ended before a decision; None if it may still be decided.

    A commit that was late all the same is a commit. The watcher exports the root of an
    attempt that is not decided, and that no process can be working at any more.
    """
    if record.decided is None:
        return True if record.timeout else None
    is_abort, taken = record.decision is Decision.ABORT, record.decided - record.started
    return is_abort and 0 < record.timeout < taken


def _export_below_root(
    name: str,
    record: TransactionRecord,
    about: Mapping[str, spans.Value],
    error: str | None,
) -> None:
    since = record.started if record.decided is None else record.decided
    spans.past_span(
        name,
        extract(record.carrier),
        attributes={**spans.identity(record.id), **about},
        start=_nanoseconds(since),
        end=time.time_ns(),
        error=error,
    )


def _origins(contexts: Iterable[Carrier]) -> list[Link]:
    """Link to the contexts that rows came with; `sw8` is for SkyWalking."""
    return [
        Link(span, {name: text for name, text in context.items() if name == "sw8"})
        for context in contexts
        if (span := span_of(context)).is_valid
    ]


def _links(carriers: Iterable[Mapping[str, str]]) -> list[Link]:
    return [Link(span) for span in map(span_of, carriers) if span.is_valid]


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
