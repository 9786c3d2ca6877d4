"""Handles carry the trace context on, and stay what the sink's author made them."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections import UserDict
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from opentelemetry import baggage, context
from support.traced_sink import Plain, branch_of, shipped
from support.tracing import span_tree

from tracing_2pc.core import names
from tracing_2pc.core.model import Receipt
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision, TransactionState
from tracing_2pc.sinks.base import SinkParticipant, write_branch
from tracing_2pc.testing import temporary_log
from tracing_2pc.tracing import spans
from tracing_2pc.tracing.decorator import handles
from tracing_2pc.tracing.decorator.traced_sink import traced_sink
from tracing_2pc.tracing.transaction import OpenTelemetryTracing


@dataclasses.dataclass
class Changing:
    path: str
    parts: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    path: str


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    path: str


class Object:
    """As a handle of Flink's usually is."""

    def __init__(self) -> None:
        self.path = "a"


class Slots:
    __slots__ = ("path",)

    def __init__(self) -> None:
        self.path = "a"


class Named(NamedTuple):
    path: str


class Of(Plain):
    """A sink whose handle is what it was made with."""

    def __init__(self, handle: Any, handle_type: type | None = None) -> None:
        self.handle = handle
        self.handle_type = handle_type

    def begin(self, context):
        return self.handle


@traced_sink
class Sink(Of):
    pass


CARRYING = [{"path": "a"}, Changing("a"), Frozen("a")]
HELD = [
    *(UserDict(path="a"), Slotted("a"), Object(), Slots(), Named("a")),
    *(["a"], ("a",), "a", b"a", 7, object()),
]


KEPT = {"path": "a", "tpc_carrier": {"traceparent": f"00-{1:032x}-{1:016x}-01"}}


def new(handle: Any) -> Any:
    return handle if type(handle) in (str, tuple) else copy.copy(handle)


def parents(exported: Any) -> set[str]:
    return {f"{s.parent.span_id:016x}" for s in exported()}


@pytest.mark.parametrize("handle", CARRYING, ids=lambda h: type(h).__name__)
def test_a_handle_takes_its_trace_to_another_process(exported, handle):
    """A dict or a dataclass, pickled: nothing else of the first process is left."""
    carrier = OpenTelemetryTracing().reserve().carrier
    sink = shipped(Sink(new(handle)))
    begun = sink.begin(branch_of(carrier))
    sink.pre_commit(begun)
    assert handles.HELD == {}
    received = shipped(begun)
    shipped(Sink(None)).commit(received)
    assert span_tree(exported()) == ["Sink.begin", "Sink.pre_commit", "Sink.commit"]
    assert parents(exported) == {carrier["traceparent"][36:52]}


@pytest.mark.parametrize("handle", HELD, ids=lambda h: type(h).__name__)
def test_any_other_handle_is_remembered_by_its_process(exported, handle):
    """It stays what its author made it: another process finds no trace in it.

    There it is below the current span.
    """
    carrier = OpenTelemetryTracing().reserve().carrier
    sink = shipped(Sink(handle))
    begun = sink.begin(branch_of(carrier))
    before = dict(getattr(begun, "__dict__", {}))
    sink.invoke(begun, 1)
    sink.pre_commit(begun)
    assert getattr(begun, "__dict__", {}) == before
    received = shipped(begun)
    sink.commit(begun)
    assert len(exported()) == 4
    assert parents(exported) == {carrier["traceparent"][36:52]}
    assert handles.HELD == {}
    with spans.span(names.DELIVER, carrier=OpenTelemetryTracing().reserve().carrier):
        shipped(Sink(None)).commit(received)
    assert span_tree(exported())[-2:] == ["tpc.deliver", "  Sink.commit"]


@pytest.mark.usefixtures("exported")
@pytest.mark.parametrize("make", [Changing, Frozen, Slotted])
def test_a_dataclass_is_what_it_was_to_its_author(make):
    """Equality, repr, fields and asdict: only `vars` shows what was added."""
    begun = shipped(Sink(make("a"))).begin(
        branch_of(OpenTelemetryTracing().reserve().carrier)
    )
    assert begun == make("a")
    assert repr(begun) == repr(make("a"))
    assert dataclasses.asdict(begun) == dataclasses.asdict(make("a"))
    assert [f.name for f in dataclasses.fields(begun)] == [
        f.name for f in dataclasses.fields(make("a"))
    ]
    if make is Frozen:
        assert json.dumps(vars(begun))  # as one may send it
        assert hash(begun) == hash(Frozen("a"))
        assert vars(begun).keys() == {"path", "tpc_carrier"}


@pytest.mark.parametrize("handle", [{"path": "a"}, Changing("a")], ids=repr)
def test_without_tracing_a_handle_gets_nothing(handle):
    sink = shipped(Sink(handle))
    begun = sink.begin(branch_of({"traceparent": f"00-{1:032x}-{1:016x}-01"}))
    assert begun == handle
    assert getattr(begun, "__dict__", {}).keys() <= {"path", "parts"}


def test_handles_of_several_transactions_are_told_apart(exported):
    """One span around them all: each phase is in the trace of its own handle."""
    carriers = [OpenTelemetryTracing().reserve().carrier for _ in range(2)]
    sink = shipped(Sink({}))
    begun = []
    for carrier in carriers:
        with spans.span(names.BRANCH, carrier=carrier):
            handle = sink.begin(branch_of(carrier))
            sink.pre_commit(handle)
            begun.append(dict(handle))
    with spans.span(names.DELIVER, carrier=carriers[0]):
        for number in (0, 1, 0, 1):
            sink.commit(begun[number])
    commits = [s for s in exported() if s.name == "Sink.commit"]
    traces = [carrier["traceparent"][3:35] for carrier in carriers]
    assert [f"{s.context.trace_id:032x}" for s in commits] == traces * 2


def test_a_handle_that_is_emptied_in_pre_commit_still_carries_it(exported):
    """What was kept for sending is thrown away; what commit needs is put in."""

    @traced_sink
    class Spooling(Of):
        def pre_commit(self, handle):
            handle.clear()
            handle["path"] = "a"

    carrier = OpenTelemetryTracing().reserve().carrier
    sink = shipped(Spooling({"rows": [1, 2, 3]}))
    handle = sink.begin(branch_of(carrier))
    sink.pre_commit(handle)
    assert handle.keys() == {"path", "tpc_carrier"}
    sink.commit(shipped(handle))
    assert parents(exported) == {carrier["traceparent"][36:52]}


def test_a_handle_that_is_used_again_is_of_its_last_branch(exported):
    """A sink may return the same object twice: the second branch is not the first."""
    first, second = (OpenTelemetryTracing().reserve().carrier for _ in range(2))
    sink = shipped(Sink({}))
    sink.invoke(sink.begin(branch_of(first)), 1)
    sink.commit(sink.begin(branch_of(second)))
    assert span_tree(exported()) == ["Sink.begin", "Sink.begin", "Sink.commit"]
    assert exported()[2].context.trace_id == exported()[1].context.trace_id


LOGGED = [
    ({"path": "a"}, None),
    (UserDict(path="a"), UserDict),
    (Changing("a"), Changing),
    (Frozen("a"), Frozen),
    (Slotted("a"), Slotted),
]


@pytest.mark.parametrize(("handle", "kind"), LOGGED, ids=repr)
def test_a_commit_from_the_decision_log_is_in_its_trace(exported, handle, kind):
    """A new process has the record and nothing else; the author's handle comes back."""
    expected = new(handle)

    class Seeing(Of):
        def commit(self, handle):
            assert type(handle) is type(expected)
            if dataclasses.is_dataclass(handle):
                assert handle == expected
            else:
                assert handle["path"] == "a"

    log, carrier = temporary_log(), OpenTelemetryTracing().reserve().carrier
    begun = log.begin(
        "orders",
        0,
        Opening(run="r", query=None, participants=["Seeing"], carrier=carrier),
    )
    context = dataclasses.replace(branch_of(carrier), participants=("Seeing",))
    sink = shipped(traced_sink(Seeing)(new(handle), kind))
    with spans.span(names.BRANCH, carrier=carrier):
        (receipt,) = write_branch(sink, context, iter([rows(3)]))
    kept = Receipt.from_json(receipt.to_json())
    log.decide(begun.record.id, Decision.COMMIT, [kept])
    handles.HELD.clear()
    record = log.read(begun.record.id)
    assert record.state is TransactionState.COMMITTING
    later = shipped(traced_sink(Seeing)(None, kind))
    SinkParticipant("Seeing", later).commit(record)
    assert span_tree(exported()) == [
        "tpc.branch",
        "  Seeing.begin",
        "  Seeing.invoke",
        "  Seeing.pre_commit",
        "  Seeing.commit",
    ]
    assert handles.HELD == {}


@pytest.mark.usefixtures("exported")
def test_a_transaction_that_is_over_is_forgotten():
    """A long-lived driver rebuilds handles that carry nothing, batch after batch."""

    class Whole(Of):
        def commit_transaction(self, transaction_id, handles):
            assert handles == [Slotted("a")]

    sink = shipped(traced_sink(Whole)(None, Slotted))
    sink.commit_transaction(
        "orders.7.1", [handles.from_plain(sink.handle_type, dict(KEPT))]
    )
    assert handles.HELD == {}


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(count))})


def test_a_record_of_a_traced_run_is_read_where_nothing_is_traced():
    """The context in the log is no field: it never reaches the author's class."""
    assert handles.from_plain(Frozen, dict(KEPT)) == Frozen("a")
    assert handles.HELD == {}


def test_a_handle_keeps_no_baggage(exported):
    """It is the user's own text, and a handle is stored."""
    sink = traced_sink(type("Mine", (Plain,), {}))()
    token = context.attach(baggage.set_baggage("user.email", "a@b"))
    try:
        handle = sink.begin()
        sink.pre_commit(handle)
    finally:
        context.detach(token)
    assert handle["tpc_carrier"].keys() == {"traceparent"}
