"""`@traced_sink` leaves to the author what is theirs, and raises nothing of its own."""

from __future__ import annotations

import collections
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as contexts
from opentelemetry.trace import StatusCode
from support.traced_sink import Foreign, Plain, Refusing, branch_of, shipped
from support.tracing import span_tree

from tracing_2pc.tracing.decorator import handles
from tracing_2pc.tracing.decorator.traced_sink import traced_sink
from tracing_2pc.tracing.transaction import OpenTelemetryTracing


@traced_sink
class Sink(Plain):
    """Its handle is what it is given; it shows each phase what is in it."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.seen: list[Any] | None = None

    def begin(self):
        return self.handle

    def invoke(self, handle, record):
        handle[record] += 1

    def pre_commit(self, handle):
        self.seen = list(handle) if isinstance(handle, dict) else None


@pytest.mark.usefixtures("exported")
@pytest.mark.parametrize(
    "make", [dict, collections.Counter, lambda: collections.defaultdict(int)]
)
def test_rows_may_be_kept_in_the_handle_itself(make):
    """Until pre_commit has returned a mapping holds what its author put there."""
    sink = shipped(Sink(make()))
    handle = sink.begin()
    assert not handle
    handle.update(dict.fromkeys("ab", 0))
    for word in "aab":
        sink.invoke(handle, word)
    sink.pre_commit(handle)
    assert sink.seen == ["a", "b"]
    added = {"tpc_carrier"} if type(handle) is dict else set()
    assert handle.keys() == {"a", "b"} | added


@pytest.mark.usefixtures("exported")
def test_a_subclass_that_goes_on_after_its_parents_pre_commit_sees_its_rows():
    @traced_sink
    class Loud(Sink):
        def pre_commit(self, handle):
            super().pre_commit(handle)
            self.seen = list(handle)

    sink = shipped(Loud({}))
    handle = sink.begin()
    sink.pre_commit(handle)
    assert sink.seen == []
    assert handle.keys() == {"tpc_carrier"}


@pytest.mark.usefixtures("exported")
def test_a_pre_commit_that_raises_adds_nothing():
    refusing = type("Refusing", (Plain,), {"pre_commit": lambda self, handle: [][0]})
    sink = shipped(traced_sink(refusing)())
    handle = sink.begin()
    with pytest.raises(IndexError):
        sink.pre_commit(handle)
    assert handle == {}
    sink.abort(handle)
    assert handles.HELD == {}


class Attributes:
    """Its attributes are keys, and others are errors."""

    __slots__ = ("keys",)

    def __init__(self) -> None:
        self.keys = {"id": 1}

    def __getattr__(self, name: str) -> Any:
        return self.keys[name]


class Remote:
    """Each attribute is a call of another process."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise ConnectionError(name)


class Strict(dict[str, int]):
    def get(self, *arguments: Any) -> Any:
        raise KeyError("use []")


class Hidden:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise ConnectionError("__dict__")


ODD = [Attributes, Remote, Strict, Hidden]


@pytest.mark.parametrize("make", ODD)
def test_any_object_is_a_handle(exported, make):
    """What an object does when it is asked for an attribute is not found out."""
    sink = shipped(traced_sink(type("Any", (Plain,), {"begin": lambda _: make()}))())
    handle = sink.begin()
    sink.pre_commit(handle)
    sink.commit(handle)
    sink.commit(make())
    assert span_tree(exported()) == [
        "Any.begin",
        "  Any.pre_commit",
        "  Any.commit",
        "Any.commit",
    ]


@pytest.mark.parametrize("make", ODD)
def test_any_object_is_a_handle_with_tracing_off(make, monkeypatch):
    """Nothing looks into it then."""
    monkeypatch.setattr(handles, "carrier_in", None)
    sink = shipped(Sink(None))
    sink.commit(make())
    sink.abort(make())
    whole = type("Whole", (Plain,), {"commit_transaction": lambda *arguments: None})
    shipped(traced_sink(whole)()).commit_transaction("orders.7.1", [make()])


BAD = [{"traceparent": None}, {"traceparent": 5}, {"baggage": 3}, {1: 2}]


@pytest.mark.parametrize("carrier", BAD, ids=repr)
def test_a_carrier_that_is_none_is_as_if_absent(exported, carrier):
    with trace.get_tracer("own").start_as_current_span("own"):
        shipped(Sink(None)).commit({"tpc_carrier": carrier})
    assert span_tree(exported()) == ["own", "  Sink.commit"]


LOST = property(lambda self: [][0])


@pytest.mark.parametrize(
    ("num_rows", "expected"), [(lambda self: 3, 1), (None, 1), (LOST, 1), (0, 0)]
)
def test_what_does_not_say_its_rows_counts_as_one(exported, num_rows, expected):
    class Bulk(Plain):
        def invoke_batch(self, handle, batch):
            handle["written"] = True

    sink = shipped(traced_sink(Bulk)())
    handle = sink.begin()
    sink.invoke_batch(handle, type("Batch", (), {"num_rows": num_rows})())
    assert handle == {"written": True}
    sink.pre_commit(handle)
    assert exported()[1].attributes["tpc.rows"] == expected


@pytest.mark.usefixtures("exported")
@pytest.mark.parametrize("handle", [{}, "orders"], ids=repr)
def test_a_foreign_span_that_raises_breaks_no_phase(handle):
    carrier = {"traceparent": f"00-{1:032x}-{1:016x}-01"}
    sink = shipped(Sink(handle))
    with trace.use_span(Foreign()):
        begun = sink.begin()
        sink.pre_commit(begun)
        sink.commit(begun)
        sink.commit({"tpc_carrier": carrier})


def test_baggage_alone_is_no_trace(exported):
    """With baggage and no span around it, begin is the root all the same."""
    token = contexts.attach(baggage.set_baggage("tenant", "7"))
    try:
        sink = shipped(Sink({"a": 0}))
        handle = sink.begin()
        sink.invoke(handle, "a")
        sink.pre_commit(handle)
        sink.commit(handle)
    finally:
        contexts.detach(token)
    assert span_tree(exported()) == [
        "Sink.begin",
        "  Sink.invoke",
        "  Sink.pre_commit",
        "  Sink.commit",
    ]


@pytest.mark.parametrize("handle", ["orders", 1, True, ()], ids=repr)
def test_a_handle_that_two_branches_share_moves_neither(exported, handle):
    """Python has one object for equal strings: the span around a phase says more."""
    sink = shipped(Sink(handle))
    tracer = trace.get_tracer("own")
    around = [tracer.start_span(f"own{n}") for n in range(2)]
    begun = []
    for span in around:
        with trace.use_span(span):
            begun.append(sink.begin())
    for phase in (sink.pre_commit, sink.commit):
        for shared, span in zip(begun, around, strict=True):
            with trace.use_span(span):
                phase(shared)
    for span in around:
        span.end()
    assert span_tree(exported()) == [
        line
        for n in range(2)
        for line in (f"own{n}", "  Sink.begin", "  Sink.pre_commit", "  Sink.commit")
    ]


def test_records_of_several_threads_are_all_counted(exported):
    class Slow(Plain):
        def invoke(self, handle, record):
            time.sleep(0)  # another thread's turn

    sink = shipped(traced_sink(Slow)())
    handle = sink.begin()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda record: sink.invoke(handle, record), range(40)))
    sink.pre_commit(handle)
    assert exported()[1].attributes["tpc.rows"] == 40


def test_a_record_that_is_left_out_on_purpose_is_no_error(exported):
    sink = shipped(traced_sink(type("Picky", (Refusing,), {}))())
    handle = sink.begin()
    with pytest.raises(ValueError, match="customer"):
        sink.invoke(handle, "bad")
    sink.invoke(handle, "good")
    sink.pre_commit(handle)
    invoke = exported()[1]
    assert invoke.status.status_code is StatusCode.UNSET
    assert invoke.attributes == {"tpc.phase": "invoke", "tpc.rows": 1}


@pytest.mark.usefixtures("exported")
def test_threads_begin_branches_side_by_side():
    """Too many that have no room for it, and each thread forgets the oldest."""
    interval = sys.getswitchinterval()

    def work(_: int) -> None:
        for handle in [[] for _ in range(6000)]:
            handles.remember(handle, {})

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert len(handles.HELD) <= handles.BOUND


@pytest.mark.usefixtures("exported")
@pytest.mark.parametrize("make", [list, dict, Hidden], ids=lambda m: m.__name__)
def test_a_process_does_not_keep_what_it_has_written(make):
    """An executor is never asked to commit: what can be neither told nor weakly held
    is held for a while."""

    @traced_sink
    class Making(Plain):
        def begin(self, context):
            return make()

    sink = shipped(Making())
    for _ in range(handles.BOUND + 5):
        sink.pre_commit(sink.begin(branch_of(OpenTelemetryTracing().reserve().carrier)))
    assert len(handles.HELD) == (handles.BOUND if make is list else 0)


def test_a_sink_that_hands_on_to_another_traced_sink_shows_both(exported):
    @traced_sink
    class Outer(Plain):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def begin(self):
            return self.inner.begin()

        def invoke(self, handle, record):
            self.inner.invoke(handle, record)

        def pre_commit(self, handle):
            self.inner.pre_commit(handle)
            assert handle == {"a": 2}

    sink = shipped(Outer(Sink({"a": 0})))
    handle = sink.begin()
    sink.invoke(handle, "a")
    sink.invoke(handle, "a")
    sink.pre_commit(handle)
    assert span_tree(exported()) == [
        "Outer.begin",
        "  Sink.begin",
        "  Outer.invoke",
        "  Sink.invoke",
        "  Outer.pre_commit",
        "    Sink.pre_commit",
    ]
    assert handle.keys() == {"a", "tpc_carrier"}
    assert handles.HELD == {}
    counted = [s for s in exported() if s.name.endswith(".invoke")]
    assert [s.attributes["tpc.rows"] for s in counted] == [2, 2]
