"""What a transaction looks like in a trace: driver, tasks and services, over HTTP.

The tasks run in this process one after another, the services in threads of it, so
that one exporter sees every span.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode, format_trace_id
from support.log_tables import count_committed
from support.protocol import FakeParticipant
from support.tracing import assert_registered, span_tree
from support.transaction import traced_tasks
from support.waiting import AT_LAST

from bench.driver import APPLICATION, apply, coordinator
from bench.records import numbers
from tracing_2pc import ParticipantSink
from tracing_2pc.core import names
from tracing_2pc.core.errors import HeuristicError
from tracing_2pc.core.model import MOST_LINKS, BranchId, Receipt, TransactionRecord
from tracing_2pc.core.states import Refusal, TransactionState
from tracing_2pc.operations.resolve import resolve
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.sinks.base import read_only
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.tracing import transaction

KAFKA_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
CARRIER = pa.map_(pa.string(), pa.string())


def nothing(record: TransactionRecord) -> Sequence[Receipt]:
    return read_only(BranchId(0, 0), record.participants)


def failing(record: TransactionRecord) -> list[Receipt]:
    raise RuntimeError("a task failed")


def driver(log: SqlDecisionLog, sink: ParticipantSink) -> Coordinator:
    return coordinator(log, sink.participants)


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process has exported: who goes on did not see it."""
    monkeypatch.setattr(transaction, "_exported", {})


def named(
    found: Sequence[ReadableSpan], name: str = names.TRANSACTION
) -> list[ReadableSpan]:
    return [s for s in found if s.name == name]


def told(finish: ReadableSpan) -> tuple[Any, Any]:
    about = finish.attributes or {}
    return about["tpc.outcome"], about.get("tpc.recovered")


def without_database(found: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    """Leave out the databases' statements: they are a matter of the resource."""
    return [
        s
        for s in found
        if s.kind is not SpanKind.CLIENT or "tpc.participant" in (s.attributes or {})
    ]


def without_time(found: Sequence[ReadableSpan]) -> list[str]:
    """Return the spans that begin before their parent, or have no length."""
    starts = {s.context.span_id: s.start_time for s in found}
    return [
        span.name
        for span in found
        if span.start_time >= span.end_time
        or (span.parent and span.start_time < starts[span.parent.span_id])
    ]


def test_a_healthy_transaction_is_one_tree(exported, log, sink):
    """Every step of it, in one trace, and no wait worth a span."""
    apply(driver(log, sink), 0, traced_tasks(sink, [numbers(3)]))
    tree = span_tree(without_database(exported()))
    both_prepare = ["      POST /prepare", "        POST /prepare"] * 2
    sent = ["      POST /commit", "        POST /commit"]
    one_commit = ["    ParticipantSink.commit", *sent]
    assert tree == [
        "tpc.transaction",
        "  tpc.begin",
        "  tpc.branch",
        "    ParticipantSink.begin",
        "    ParticipantSink.invoke",
        "    ParticipantSink.pre_commit",
        *both_prepare,
        "  tpc.decide",
        "  tpc.finish",
        "  tpc.deliver",
        *one_commit,
        *one_commit,
    ]
    assert len({s.context.trace_id for s in exported()}) == 1
    assert_registered(exported())
    assert without_time(exported()) == []
    assert {s.attributes["tpc.transaction.id"] for s in exported()} == {
        f"{APPLICATION}.0.1"
    }


def test_spans_are_counted_by_partitions_and_never_by_records(exported, log, sink):
    """A participant with K partitions that hold rows costs K + 1 requests.

    Each is one client span and one server span; a partition without rows costs none,
    and ten thousand records cost what one does.
    """
    found = []
    for batch, rows in enumerate((1, 10_000)):
        partitions = [numbers(rows), numbers(0), numbers(rows), numbers(rows)]
        before = len(exported())
        apply(driver(log, sink), batch, traced_tasks(sink, partitions))
        ours = without_database(exported()[before:])
        found.append(Counter((s.name, s.kind) for s in ours))
    few, many = found
    assert few == many
    kinds = Counter(kind for (_, kind), n in many.items() for _ in range(n))
    assert kinds[SpanKind.CLIENT] == kinds[SpanKind.SERVER] == 2 * (3 + 1)
    assert names.IN_DOUBT not in {name for name, _ in many}
    assert sum(many.values()) == sum(kinds.values()) == 8 + 8 + 5 + 4 + 3 * 3 + 2


def test_with_routes_a_participant_costs_its_own_partitions(exported, log, sink):
    """One participant with two partitions, and one with none that holds rows."""

    def write(record: TransactionRecord) -> list[Receipt]:
        routed = [sink.route("ledger"), sink.route("notifier")]
        return [
            *traced_tasks(routed[0], [numbers(2), numbers(2)])(record),
            *traced_tasks(routed[1], [numbers(0)])(record),
        ]

    apply(driver(log, sink), 0, write)
    asked = Counter(
        s.attributes["tpc.participant"]
        for s in exported()
        if s.kind is SpanKind.CLIENT and "tpc.participant" in s.attributes
    )
    assert asked == {"ledger": 2 + 1, "notifier": 0 + 1}


def test_the_delivery_is_out_before_anybody_is_asked(exported, log, sink):
    """A driver that waits for a service, or dies doing so, leaves a whole trace."""
    seen: list[list[str]] = []
    slow = FakeParticipant("slow")
    slow.commit = lambda _: seen.append([s.name for s in exported()])  # type: ignore[method-assign]
    apply(coordinator(log, {"slow": slow}), 0, nothing)
    assert seen == [[names.BEGIN, names.DECIDE, names.TRANSACTION, names.DELIVER]]
    deliver = next(s for s in exported() if s.name == names.DELIVER)
    assert deliver.attributes["tpc.pending"] == 1
    assert span_tree(exported())[-2:] == ["  tpc.finish", "  tpc.deliver"]


def test_attempts_of_a_batch_are_linked(exported, log, sink):
    """Each is a trace of its own; its root says which attempt was before it."""
    with pytest.raises(RuntimeError):
        apply(driver(log, sink), 0, failing)
    apply(driver(log, sink), 0, traced_tasks(sink, [numbers(1)]))
    first, second = named(exported())
    assert (first.attributes["tpc.decision"], first.links) == ("abort", ())
    assert second.attributes["tpc.attempt"] == 2
    (link,) = (link.context for link in second.links)
    before = (first.context.trace_id, first.context.span_id)
    assert (link.trace_id, link.span_id) == before
    assert first.context.trace_id != second.context.trace_id


def test_a_run_that_takes_over_tells_both_stories(exported, log, sink, monkeypatch):
    """A driver died in its tasks: the next one exports attempt 1 and links to it."""
    driver(log, sink).begin(0, "dead", "query")
    another_process(monkeypatch)
    apply(driver(log, sink), 0, traced_tasks(sink, [numbers(1)]))
    first, second = named(exported())
    assert first.attributes["tpc.decision"] == "abort"
    assert first.attributes["tpc.cause"] == "superseded"
    assert [told(s) for s in named(exported(), names.FINISH)] == [
        ("aborted", True),
        ("committed", None),
    ]
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert_registered(exported())
    orphans = [line for line in span_tree(exported()) if not line.startswith(" ")]
    assert orphans == ["tpc.transaction"] * 2


def test_an_abort_that_a_dead_driver_had_sent_gets_its_root(exported, log, monkeypatch):
    """Whoever sends a decision on exports the root, of an abort as of a commit."""
    down = FakeParticipant("down", silent=10**9)
    with pytest.raises(RuntimeError):
        apply(coordinator(log, {"down": down}), 0, failing)
    (record,) = log.unfinished(APPLICATION)
    assert record.state is TransactionState.ABORTING
    another_process(monkeypatch)
    before, down.silent = len(named(exported())), 0
    again = coordinator(log, {"down": down})
    again.recover()
    again.recover()
    (root,) = named(exported())[before:]
    assert root.to_json() == named(exported())[0].to_json()
    assert [told(s) for s in named(exported(), names.FINISH)] == [("aborted", True)]
    assert format_trace_id(root.context.trace_id) in record.carrier["traceparent"]


def test_a_batch_replayed_after_its_end_gets_its_root(exported, log, sink, monkeypatch):
    """A driver that died right after the end may have taken its last spans along."""
    apply(driver(log, sink), 0, traced_tasks(sink, [numbers(1)]))
    another_process(monkeypatch)
    apply(driver(log, sink), 0, failing)
    apply(driver(log, sink), 0, failing)
    written, replayed = named(exported())
    assert written.to_json() == replayed.to_json()


@pytest.mark.parametrize("kind", [KAFKA_HEADERS, CARRIER], ids=["headers", "carrier"])
def test_a_commit_links_to_what_its_rows_came_with(
    exported, log, sink, monkeypatch, kind
):
    """To the first 32, in the order of branches and rows, whoever exports the root.

    They are stored with the decision; the column itself is not written.
    """

    def headers(*numbers: int) -> pa.RecordBatch:
        named = [parent_of(n) for n in numbers]
        rows = [[("sw8", b"y"), ("traceparent", name.encode())] for name in named]
        if kind == KAFKA_HEADERS:
            rows = [[{"key": key, "value": text} for key, text in row] for row in rows]
        came_with = pa.array([None, [], *rows, rows[0]], kind)
        ids = pa.array(range(len(came_with)), pa.int32())
        return pa.RecordBatch.from_arrays([came_with, ids], ["headers", "value"])

    rows = [headers(3, 0, 1, 2, *range(4, 25)), headers(*range(20, 60))]
    apply(driver(log, sink), 0, traced_tasks(sink, rows, "headers"))
    another_process(monkeypatch)
    apply(driver(log, sink), 0, failing)
    written, replayed = named(exported())
    assert written.to_json() == replayed.to_json()
    linked = [link.context.trace_id for link in written.links]
    assert linked == [3, 1, 2, *range(4, MOST_LINKS + 1)]
    assert {link.attributes["sw8"] for link in written.links} == {"y"}, "as it came"


def parent_of(number: int) -> str:
    """Return a `traceparent`; that of 0 is malformed."""
    return f"00-{number:032x}-{1:016x}-01"


def test_the_time_after_the_decision_is_a_span(exported, log, sink):
    """From the decision until all have acknowledged, below the root and of its process.

    The root ends where it begins: nothing waits for the other, to be exported.
    """
    apply(driver(log, sink), 0, traced_tasks(sink, [numbers(1)]))
    (root,), (finish,) = named(exported()), named(exported(), names.FINISH)
    assert finish.parent.span_id == root.context.span_id
    assert finish.start_time == root.end_time
    commits = named(exported(), "POST /commit")
    assert finish.end_time >= max(commit.end_time for commit in commits)
    assert (told(finish), finish.status.is_ok) == (("committed", None), True)


def test_a_quarantine_and_its_end_are_errors_in_the_trace(exported, log):
    """When an answer contradicts the decision, and when a person has closed it."""
    ledger = FakeParticipant("ledger", refusal=(Refusal.CONFLICT, "aborted"))
    with pytest.raises(HeuristicError):
        apply(coordinator(log, {"ledger": ledger}), 0, nothing)
    (began,) = named(exported(), names.QUARANTINE)
    (record,) = log.unfinished(APPLICATION)
    resolve(log, record.id, wanted="mixed", reason="looked at both", who="me")
    _, ended = named(exported(), names.QUARANTINE)
    (finish,) = named(exported(), names.FINISH)
    assert ended.attributes["tpc.action"] == "conclude"
    assert told(finish)[0] == "mixed"
    (root,) = named(exported())
    for span in (began, ended, finish):
        assert span.parent.span_id == root.context.span_id
        assert span.status.status_code is StatusCode.ERROR


def test_an_exporter_that_blocks_holds_nothing_up(log, sink, monkeypatch):
    """An exporter that blocks for ever: the transaction ends all the same.

    The exporter is let go only after the transaction has ended.
    """
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    from tracing_2pc.tracing.sdk import exporting

    ended, reached = threading.Event(), threading.Event()

    class Blocks(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            reached.set()
            ended.wait()
            return SpanExportResult.SUCCESS

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(
        exporting.CountedBatches(exporting.CountedExporter(lambda: Blocks()))
    )
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    try:
        apply(driver(log, sink), 0, traced_tasks(sink, [numbers(1)]))
        assert reached.wait(AT_LAST)
        apply(driver(log, sink), 1, traced_tasks(sink, [numbers(1)]))
        assert count_committed(log, APPLICATION) == 2
        assert not ended.is_set()
    finally:
        ended.set()
        provider.shutdown()
