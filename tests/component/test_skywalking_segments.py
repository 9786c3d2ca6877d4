"""Spans become segments: what SkyWalking gets, read as its collector reads it."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_ON
from opentelemetry.trace import SpanKind
from support.skywalking import World
from support.waiting import AT_ONCE, until

from tracing_2pc.skywalking import in_use, segments, sender
from tracing_2pc.skywalking.headers import Sw8, format_sw8
from tracing_2pc.skywalking.propagator import SkyWalkingPropagator
from tracing_2pc.skywalking.start import start

PRODUCER = Sw8(
    sampled=True,
    trace_id="a1b2.60.17952900000000001",
    segment_id="a1b2.60.17952900000000000",
    span_index=1,
    service="java",
    instance="i",
    endpoint="/orders",
    peer="ledger:8081",
)
PRODUCER_SPAN = trace.SpanContext(1, 2, is_remote=True)


def test_spans_of_a_process_are_one_segment(bridge):
    opened = bridge.tracer.start_as_current_span
    with opened("batch"):
        bridge.tracer.start_span("decide").end()
        bridge.tracer.start_span(
            "POST", kind=SpanKind.CLIENT, attributes={"server.address": "a"}
        ).end()
    assert bridge.tree() == ["Local batch", "  Local decide", "  Exit POST"]
    (segment,) = bridge.oap.segments
    assert segment["service"] == "orders"
    assert segment["serviceInstance"].startswith(f"{os.getpid()}@")
    assert [s["spanId"] for s in segment["spans"]] == [0, 1, 2]
    assert segment["traceSegmentId"].startswith(f"{segment['traceId']}.")


def test_what_comes_a_moment_after_the_end_joins(bridge):
    """A delivery's span ends when sending begins: what is sent belongs to it."""
    with bridge.tracer.start_as_current_span("deliver", end_on_exit=False) as deliver:
        deliver.end()
        bridge.tracer.start_span("commit").end()
    assert bridge.tree() == ["Local deliver", "  Local commit"]
    assert len(bridge.oap.segments) == 1


def test_a_late_child_refers_to_its_parent(bridge):
    with bridge.tracer.start_as_current_span("begin") as begin:
        pass
    assert bridge.tree() == ["Local begin"]
    context = trace.set_span_in_context(begin)
    bridge.tracer.start_span("commit", context).end()
    assert bridge.tree() == ["Local begin", "  Local commit"]
    assert len(bridge.oap.segments) == 2
    (reference,) = bridge.oap.segments[1]["spans"][0]["refs"]
    assert reference["refType"] == "CrossThread"
    assert (reference["parentService"], reference["parentEndpoint"]) == (
        "orders",
        "begin",
    )


def test_a_link_within_the_trace_is_one_more_reference(bridge, monkeypatch):
    """What joins several branches shows all of them; its parent comes first."""
    monkeypatch.setattr(segments, "SPLIT", 0.0)  # each span begins a segment
    opened = bridge.tracer.start_as_current_span
    with opened("batch") as batch:
        branches = [bridge.tracer.start_span(f"branch {n}") for n in range(2)]
        branches[0].end()  # the other one is open when it is linked to
        links = [trace.Link(b.get_span_context()) for b in [*branches, batch]]
        with opened("decide", links=links):
            branches[1].end()
    bridge.tree()
    places = {s["operationName"]: (s["in"], s["spanId"]) for s in bridge.oap.spans()}
    (decide,) = (s for s in bridge.oap.spans() if s["operationName"] == "decide")
    made = [(r["parentTraceSegmentId"], r["parentSpanId"]) for r in decide["refs"]]
    assert made == [places[name] for name in ("batch", "branch 0", "branch 1")]
    assert {r["refType"] for r in decide["refs"]} == {"CrossThread"}
    assert "otel.link" not in {tag["key"] for tag in decide["tags"]}


def test_a_message_that_is_linked_to_is_referred_to(bridge):
    """By the `sw8` that it came with, in the trace of its producer."""
    link = trace.Link(PRODUCER_SPAN, {"sw8": format_sw8(PRODUCER)})
    with bridge.tracer.start_as_current_span("transaction", links=[link]):
        pass
    bridge.flush()
    (span,) = bridge.oap.spans()
    (reference,) = span["refs"]
    assert reference["refType"] == "CrossProcess"
    assert reference["traceId"] == PRODUCER.trace_id
    assert reference["parentTraceSegmentId"] == PRODUCER.segment_id
    assert span["in"] != PRODUCER.segment_id


def test_a_link_from_the_middle_of_a_segment_is_no_reference(bridge):
    """SkyWalking reads references where a segment begins."""
    opened = bridge.tracer.start_as_current_span
    with opened("batch"):
        with opened("branch") as branch:
            pass
        bridge.tracer.start_span(
            "decide", links=[trace.Link(branch.get_span_context())]
        ).end()
    assert bridge.tree() == ["Local batch", "  Local branch", "  Local decide"]
    assert [s["refs"] for s in bridge.oap.spans()] == [[], [], []]


def test_a_link_to_a_place_that_is_not_known_is_left_out(bridge):
    """A reference to it would lead nowhere."""
    with bridge.tracer.start_as_current_span("batch") as batch:
        same = batch.get_span_context()
    foreign = trace.SpanContext(same.trace_id, 1, is_remote=True)
    context = trace.set_span_in_context(batch)
    bridge.flush()
    bridge.tracer.start_span("late", context, links=[trace.Link(foreign)]).end()
    assert bridge.tree() == ["Local batch", "  Local late"]
    (late,) = (s for s in bridge.oap.spans() if s["operationName"] == "late")
    assert len(late["refs"]) == 1


def test_an_old_segment_takes_no_more(bridge, monkeypatch):
    """Phases of what takes long are seen as they end."""
    monkeypatch.setattr(segments, "SPLIT", 0.0)
    with bridge.tracer.start_as_current_span("job"):
        bridge.tracer.start_span("phase").end()
        bridge.flush()
        assert [s["operationName"] for s in bridge.oap.spans()] == ["phase"]
    assert bridge.tree() == ["Local job", "  Local phase"]


def test_a_call_that_hangs_is_seen_while_it_hangs(bridge, monkeypatch):
    """With what was promised in its header; its end refers to that."""
    monkeypatch.setattr(segments, "HOLD", 0.0)
    headers: dict[str, str] = {}
    about = {"server.address": "ledger", "server.port": 8081}
    with bridge.tracer.start_as_current_span(
        "POST", kind=SpanKind.CLIENT, attributes=about
    ) as span:
        SkyWalkingPropagator().inject(headers)
        until(lambda: bridge.oap.segments)
        (shown,) = bridge.oap.spans()
        assert {"key": "otel.incomplete", "value": "true"} in shown["tags"]
    assert headers["sw8"]
    assert bridge.tree() == ["Exit POST", "  Exit POST"]
    first, end = bridge.oap.segments
    assert end["traceSegmentId"] == f"{first['traceSegmentId']}.1"
    assert span.is_recording() is False


def test_a_request_is_one_trace_over_two_services(bridge, oap):
    """By the headers alone: the entry refers to the exit, by the address it names."""
    service = World(oap)  # a second provider stands for another process
    in_use.use(bridge.processor)
    headers: dict[str, str] = {}
    about = {"server.address": "127.0.0.1", "server.port": 8081}
    with (
        bridge.tracer.start_as_current_span("batch"),
        bridge.tracer.start_as_current_span(
            "POST /commit", kind=SpanKind.CLIENT, attributes=about
        ),
    ):
        SkyWalkingPropagator().inject(headers)
        received = SkyWalkingPropagator().extract(headers, trace.Context())
        service.tracer.start_span(
            "POST /commit", received, SpanKind.SERVER, {"http.route": "/commit"}
        ).end()
    service.flush()
    assert bridge.tree() == [
        "Local batch",
        "  Exit POST /commit",
        "    Entry POST /commit",
    ]
    entry = next(s for s in oap.spans() if s["spanType"] == "Entry")
    exit_ = next(s for s in oap.spans() if s["spanType"] == "Exit")
    assert (
        entry["refs"][0]["networkAddressUsedAtPeer"]
        == exit_["peer"]
        == "127.0.0.1:8081"
    )
    assert entry["refs"][0]["refType"] == "CrossProcess"
    assert len({s["traceId"] for s in oap.segments}) == 1
    service.close()


def test_what_is_not_sampled_says_nothing(oap):
    """A stock agent traces whatever has the header, sampled or not."""
    provider = TracerProvider(ALWAYS_OFF, shutdown_on_exit=False)
    start(oap.url, provider=provider)
    headers: dict[str, str] = {}
    with provider.get_tracer("test").start_as_current_span("batch"):
        SkyWalkingPropagator().inject(headers)
    provider.shutdown()
    assert headers == {}
    assert oap.segments == []


@pytest.mark.ci
def test_threads_lose_nothing_and_promise_nothing_in_vain(bridge, monkeypatch):
    """Late ends, forced splits and partial flushes: every span arrives, once."""
    monkeypatch.setattr(segments, "SPLIT", 0.02)
    monkeypatch.setattr(segments, "HOLD", 0.01)
    monkeypatch.setattr(segments, "LINGER", 0.0)
    made: list[str] = []

    def work(thread: int) -> None:
        for number in range(40):
            with bridge.tracer.start_as_current_span(f"{thread}.{number}") as root:
                made.append(f"{thread}.{number}")
                late = bridge.tracer.start_span(f"{thread}.{number}.late")
                for child in range(3):
                    name = f"{thread}.{number}.{child}"
                    with bridge.tracer.start_as_current_span(
                        name, kind=SpanKind.CLIENT
                    ):
                        made.append(name)
                        headers: dict[str, str] = {}
                        SkyWalkingPropagator().inject(headers)
                        assert headers["sw8"]
                        if child == 1 and number % 7 == 0:
                            time.sleep(AT_ONCE)  # longer than that
            late.end()
            made.append(f"{thread}.{number}.late")
            assert root.get_span_context().is_valid

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tree = bridge.tree()
    ended = Counter(
        s["operationName"]
        for s in bridge.oap.spans()
        if {"key": "otel.incomplete", "value": "true"} not in s["tags"]
    )
    assert ended == Counter(made)
    assert len(tree) == len(bridge.oap.spans())
    names = [s["traceSegmentId"] for s in bridge.oap.segments]
    assert len(names) == len(set(names))
    assert bridge.processor.dropped == 0


def test_an_outage_loses_nothing_that_was_queued(bridge):
    """A batch that got no answer goes first when there is one again."""
    bridge.oap.status = 503
    for number in range(5):
        bridge.tracer.start_span(str(number)).end()
    assert not bridge.flush()
    bridge.oap.status = 200
    until(lambda: len(bridge.oap.segments) == 5)
    assert sorted(s["operationName"] for s in bridge.oap.spans()) == list("01234")
    assert bridge.processor.dropped == 0


def test_a_caller_that_is_not_sampled_is_not_traced(bridge):
    """Its flag is 0: whoever samples by the parent records nothing."""
    headers: dict[str, str] = {}
    with bridge.tracer.start_as_current_span("x"):
        SkyWalkingPropagator().inject(headers)
    unsampled = {"sw8": f"0{headers['sw8'][1:]}"}
    context = SkyWalkingPropagator().extract(unsampled, trace.Context())
    provider = TracerProvider(DEFAULT_ON, shutdown_on_exit=False)
    span = provider.get_tracer("t").start_span("y", context, SpanKind.SERVER)
    assert not span.is_recording()
    assert not trace.get_current_span(context).get_span_context().trace_flags.sampled


def test_a_java_agents_ids_make_the_same_trace_everywhere(bridge):
    """They are no OpenTelemetry ids: the segment keeps theirs, the trace gets one."""
    caller = PRODUCER
    ids = set()
    for name in ("first", "second"):
        headers = {"sw8": format_sw8(caller)}
        context = SkyWalkingPropagator().extract(headers, trace.Context())
        span = bridge.tracer.start_span(name, context, SpanKind.SERVER)
        ids.add(span.get_span_context().trace_id)
        span.end()
    assert len(ids) == 1
    bridge.flush()
    assert {g["traceId"] for g in bridge.oap.segments} == {caller.trace_id}
    references = [s["refs"][0] for s in bridge.oap.spans()]
    assert {r["parentTraceSegmentId"] for r in references} == {caller.segment_id}


def test_a_parent_that_was_forgotten_is_not_referred_to(bridge, monkeypatch):
    """The same trace, a second root, and no reference to what nobody can name."""
    monkeypatch.setattr(segments, "REMEMBERED", 2)
    with bridge.tracer.start_as_current_span("parent") as parent:
        pass
    context = trace.set_span_in_context(parent)
    for number in range(3):
        bridge.tracer.start_span(f"{number}", context).end()
    bridge.flush()
    bridge.tracer.start_span("late", context).end()
    assert {"Local parent", "Local late"} <= set(bridge.tree())
    assert len({g["traceId"] for g in bridge.oap.segments}) == 1


def test_what_finds_no_room_is_counted(bridge, monkeypatch):
    """The oldest go first; the program is not slowed."""
    monkeypatch.setattr(sender, "QUEUE", 3)
    bridge.oap.status = 503
    for number in range(8):
        bridge.tracer.start_span(str(number)).end()
        bridge.provider.force_flush(0)
    until(lambda: bridge.processor.dropped == 5)
    bridge.oap.status = 200
    until(lambda: len(bridge.oap.segments) == 3)
    assert [s["operationName"] for s in bridge.oap.spans()] == ["5", "6", "7"]


def test_what_the_collector_refuses_is_not_sent_again(bridge, caplog):
    """A definite no: counted, said once, and out of the way of the others."""
    bridge.oap.status = 400
    for number in (1, 2):
        bridge.tracer.start_span("refused").end()
        bridge.flush()
        until(lambda: bridge.processor.dropped == number)  # noqa: B023 - called at once
    assert [one.message for one in caplog.records if "SkyW" in one.message] == [
        "SkyWalking refuses segments (400); they are dropped, work goes on"
    ]
    bridge.oap.status = 200
    bridge.tracer.start_span("next").end()
    assert bridge.tree() == ["Local next"]
