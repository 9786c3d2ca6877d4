"""Spans, the reserved root and propagation, as seen in an in-memory exporter."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import sampling
from opentelemetry.trace import NonRecordingSpan, SpanKind, StatusCode
from support.branches import committing
from support.texts import texts
from support.traced_sink import Foreign
from support.tracing import span_tree

from tracing_2pc.core import names
from tracing_2pc.core.model import BranchId, Receipt, TransactionId
from tracing_2pc.core.ports import Tracing
from tracing_2pc.core.states import Decision, Vote
from tracing_2pc.tracing import propagation, spans, transaction
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

TEXTS = texts("unit")

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def sent_on(headers):
    """Return what goes out where these have come in."""
    sent: dict[str, str] = {}
    propagation.inject(sent, propagation.extract(headers))
    return sent


def record(carrier, decision=Decision.COMMIT, **changes):
    receipts = (
        Receipt(BranchId(0, 1), "ledger", 3, "", Vote.COMMIT),
        Receipt(BranchId(1, 2), "ledger", 4, "", Vote.COMMIT),
    )
    is_commit = decision is Decision.COMMIT
    about = {
        "run": "r1",
        "decision": decision,
        "participants": ("ledger", "notifier"),
        "carrier": carrier,
        "started": 1000.0,
        "decided": 1002.5,
        "receipts": receipts if is_commit else (),
        "rows": 7 if is_commit else 0,
        "cause": None if is_commit else "vote",
    }
    return committing(TransactionId("orders", 7, 1), **{**about, **changes})


def ids(span):
    return trace.format_trace_id(span.context.trace_id), trace.format_span_id(
        span.context.span_id
    )


def test_a_transaction_is_one_trace(exported):
    """Steps made before the root exists are its children once it is exported."""
    tracing: Tracing = OpenTelemetryTracing()
    carrier = tracing.reserve().carrier
    with tracing.step(names.BEGIN, carrier):
        pass
    decided = record(carrier)
    with tracing.step(names.DECIDE, carrier, decided):
        pass
    tracing.export_root(decided, taken_over=False)
    with tracing.step(names.DELIVER, carrier, decided) as deliver:
        deliver.set("tpc.pending", 2)
        with tracing.step(names.FINISH, carrier, decided):
            pass
    assert span_tree(exported()) == [
        "tpc.transaction",
        "  tpc.begin",
        "  tpc.decide",
        "  tpc.deliver",
        "    tpc.finish",
    ]
    deliver = next(s for s in exported() if s.name == "tpc.deliver")
    assert deliver.attributes == {
        "tpc.transaction.id": "orders.7.1",
        "tpc.application": "orders",
        "tpc.batch": 7,
        "tpc.attempt": 1,
        "tpc.pending": 2,
    }


def test_the_root_has_the_reserved_ids_and_the_records_times(exported):
    tracing = OpenTelemetryTracing()
    carrier = tracing.reserve().carrier
    assert exported() == []
    tracing.export_root(record(carrier), taken_over=False)
    (root,) = exported()
    assert "-".join(ids(root)) == carrier["traceparent"][3:52]
    assert root.parent is None
    assert (root.start_time, root.end_time) == (1000 * 10**9, 1002_500_000_000)
    assert root.resource.attributes["telemetry.sdk.language"] == "python"
    assert root.instrumentation_scope.name == "tracing_2pc"
    assert root.status.status_code is StatusCode.UNSET
    assert root.attributes == {
        "tpc.transaction.id": "orders.7.1",
        "tpc.application": "orders",
        "tpc.batch": 7,
        "tpc.attempt": 1,
        "tpc.run": "r1",
        "tpc.decision": "commit",
        "tpc.participants": 2,
        "tpc.rows": 7,
    }


@pytest.fixture
def another_process(monkeypatch):
    """Forget what was exported, and be another process, of another service."""

    def change():
        monkeypatch.setattr(transaction, "_exported", {})
        other = Resource({"service.name": "recover", "host.name": "other"})
        monkeypatch.setattr(spans.tracer(), "resource", other)

    return change


@pytest.mark.parametrize("decision", Decision)
def test_who_takes_over_exports_the_same_root(exported, another_process, decision):
    """It may be there twice, never zero times; a back end shows equal spans once.

    The job's resource is in it, whichever process exports it, and no command line.
    """
    carrier, facts = json.loads(json.dumps(OpenTelemetryTracing().reserve()))
    decided = record(carrier, decision, **facts)
    OpenTelemetryTracing().export_root(decided, taken_over=False)
    OpenTelemetryTracing().export_root(decided, taken_over=True)
    assert len(exported()) == 1  # whoever has exported it does not take it over
    another_process()
    later = dataclasses.replace(decided, receipts=(), acknowledged={"ledger"})
    OpenTelemetryTracing().export_root(later, taken_over=True)
    OpenTelemetryTracing().export_root(later, taken_over=True)
    first, second = exported()
    assert first.to_json() == second.to_json()
    assert first.resource.attributes["telemetry.sdk.language"] == "python"
    assert second.attributes["tpc.decision"] == str(decision)
    assert span_tree(exported()) == ["tpc.transaction", "tpc.transaction"]


def test_the_root_is_of_the_job_whoever_exports_it(exported, monkeypatch):
    """Its service, instance and host are those of the process that began.

    And so is its start: what the driver did before the log answered is inside of it.
    """
    job = Resource({"service.name": "orders", "host.name": "a", "process.pid": 7})
    watcher = Resource({"service.name": "tracing-2pc-watch", "host.name": "b"})
    tracing = OpenTelemetryTracing()
    monkeypatch.setattr(spans.tracer(), "resource", job)
    before = time.time_ns()
    carrier, facts = json.loads(json.dumps(tracing.reserve()))
    began = time.time_ns() + 1
    decided = dataclasses.replace(
        record(carrier, **facts), started=began / 1e9 + 1, decided=began / 1e9 + 2
    )
    monkeypatch.setattr(spans.tracer(), "resource", watcher)
    tracing.export_root(decided, taken_over=False)
    with tracing.step(names.DELIVER, carrier, decided):
        pass
    root, deliver = exported()
    assert root.resource.attributes == {"service.name": "orders", "host.name": "a"}
    assert deliver.resource is watcher
    assert before <= root.start_time < began
    assert sent_on(carrier) == {"traceparent": carrier["traceparent"]}


def test_the_root_of_an_abort_says_why(exported):
    """It is an error in a list of traces, with the cause that is counted.

    And with what failed; another's message may hold a record, and is left out.
    """
    failed = "while it was written: ValueError: 4711"
    for cause, detail in (("vote", "at prepare: ledger: no"), ("error", failed)):
        carrier = OpenTelemetryTracing().reserve().carrier
        aborted = record(carrier, Decision.ABORT, cause=cause, detail=detail)
        OpenTelemetryTracing().export_root(aborted, taken_over=False)
    root, other = exported()
    assert other.attributes["tpc.failure"] == failed.removesuffix(": 4711")
    assert root.attributes["tpc.failure"] == "at prepare: ledger: no"
    assert root.attributes["tpc.cause"] == "vote"
    assert root.status.status_code is StatusCode.ERROR
    assert root.status.description == "aborted: vote"


def test_what_ran_out_of_time_has_one_root_before_and_after_its_abort(
    exported, another_process
):
    """The watcher exports it undecided, and who aborts it later the same span."""
    carrier, facts = OpenTelemetryTracing().reserve()
    aborted = record(carrier, Decision.ABORT, timeout=2.0, cause="recovery", **facts)
    undecided = dataclasses.replace(aborted, decision=None, decided=None, cause=None)
    OpenTelemetryTracing().export_root(undecided, taken_over=True)
    another_process()
    OpenTelemetryTracing().export_root(aborted, taken_over=True)
    first, second = exported()
    assert first.to_json() == second.to_json()
    assert (first.attributes["tpc.cause"], first.end_time) == ("timeout", 1002 * 10**9)
    another_process()
    late = record(carrier, timeout=2.0)
    OpenTelemetryTracing().export_root(late, taken_over=False)
    assert exported()[2].attributes["tpc.decision"] == "commit"
    no_limit = dataclasses.replace(undecided, timeout=0.0)
    another_process()
    OpenTelemetryTracing().export_root(no_limit, taken_over=True)
    assert len(exported()) == 3  # its driver may be at it


def test_a_trace_does_not_grow_for_as_long_as_an_outage(exported):
    """The first ten tries in vain leave spans, then the 16th, the 32nd, the 64th."""
    tracing = OpenTelemetryTracing()
    carrier = tracing.reserve().carrier
    seen = []
    for tries in range(1, 5000):
        before = len(exported())
        decided = record(carrier, tries=tries - 1)
        with tracing.step(names.DELIVER, carrier, decided), spans.client_span("POST"):
            sent = spans.current_carrier()
        assert sent["traceparent"][:35] == carrier["traceparent"][:35]
        if len(exported()) > before:
            seen.append(tries)
    assert seen == [*range(1, 11), *(2**n for n in range(4, 13))]


def test_the_root_links_to_what_was_current(exported):
    """The span around a query stays a trace of its own."""
    tracing = OpenTelemetryTracing()
    with trace.get_tracer("user").start_as_current_span("query") as query:
        carrier, facts = tracing.reserve()
        with tracing.step(names.BEGIN, carrier):
            pass
    tracing.export_root(record(carrier, **facts), taken_over=False)
    assert span_tree(exported())[:2] == ["tpc.transaction", "  tpc.begin"]
    root = next(s for s in exported() if s.name == names.TRANSACTION)
    (link,) = root.links
    assert link.context.span_id == query.get_span_context().span_id
    assert carrier.keys() == {"traceparent"}
    assert sent_on(carrier) == {"traceparent": carrier["traceparent"]}


def test_a_sweep_is_linked_and_never_a_parent(exported):
    tracing = OpenTelemetryTracing()
    carrier = tracing.reserve().carrier
    with tracing.sweep([record(carrier)]) as records:
        with tracing.step(names.DELIVER, carrier, records[0]):
            pass
        tracing.export_root(records[0], taken_over=True)
    with tracing.sweep([]):
        pass
    assert sorted(span_tree(exported())) == [
        "  tpc.deliver",
        "tpc.recovery",
        "tpc.transaction",
    ]
    sweep = next(s for s in exported() if s.name == names.RECOVERY)
    assert (
        trace.format_span_id(sweep.links[0].context.span_id) in carrier["traceparent"]
    )


def test_what_is_not_sampled_is_not_exported(exported, monkeypatch):
    monkeypatch.setattr(spans.tracer(), "sampler", sampling.ALWAYS_OFF)
    tracing = OpenTelemetryTracing()
    carrier = tracing.reserve().carrier
    with tracing.step(names.BEGIN, carrier):
        pass
    tracing.export_root(record(carrier), taken_over=False)
    assert carrier["traceparent"][-2:] in {"00", "02"}
    assert exported() == []


def test_the_current_span_is_the_parent_only_in_the_carriers_trace(exported):
    tracing = OpenTelemetryTracing()
    carrier = tracing.reserve().carrier
    with spans.span("inside", carrier=carrier), spans.span("child", carrier=carrier):
        pass
    with spans.span("elsewhere"):
        with spans.span("joined", carrier=carrier):
            pass
        with spans.span("nested", carrier={}):
            pass
    tracing.export_root(record(carrier), taken_over=False)
    assert span_tree(exported()) == [
        "tpc.transaction",
        "  inside",
        "    child",
        "  joined",
        "elsewhere",
        "  nested",
    ]


def test_an_error_shows_its_class_and_never_its_text(exported):
    with pytest.raises(ValueError, match="card 4711"), spans.span("tpc.decide"):
        raise ValueError("card 4711")
    (span,) = exported()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes == {"error.type": "ValueError"}
    assert "card" not in span.to_json()


def test_an_unknown_attribute_is_dropped_and_warned_about(exported):
    with pytest.warns(UserWarning, match="password"):  # noqa: SIM117 - one thing
        with spans.span("tpc.decide", attributes={"password": "x", "tpc.batch": 1}):
            pass
    assert exported()[0].attributes == {"tpc.batch": 1}


def test_every_attribute_of_the_registry_is_set_somewhere():
    """A dashboard that asks for one finds it."""
    package = Path(names.__file__).parents[1]
    files = [file for file in package.rglob("*.py") if file.name != "names.py"]
    source = "".join(file.read_text() for file in files)
    assert [name for name in names.ATTRIBUTES if f'"{name}"' not in source] == []


def test_a_server_span_continues_its_caller(exported):
    with spans.client_span("POST /prepare"):
        headers = spans.current_carrier()
    assert spans.current_carrier() == {}
    with spans.server_span("POST /prepare", headers, {"tpc.rows": 2}) as step:
        step.set("tpc.vote", "commit")
    assert span_tree(exported()) == ["POST /prepare", "  POST /prepare"]
    client, server = exported()
    assert (client.kind, server.kind) == (SpanKind.CLIENT, SpanKind.SERVER)
    assert server.attributes == {"tpc.rows": 2, "tpc.vote": "commit"}


def test_an_instrumented_service_gets_no_second_server_span(exported):
    tracer = trace.get_tracer("flask")
    with (
        tracer.start_as_current_span("POST", kind=SpanKind.SERVER),
        spans.server_span("POST /prepare", {"traceparent": PARENT}, {"tpc.rows": 2}),
    ):
        pass
    assert span_tree(exported()) == ["POST"]
    assert exported()[0].attributes == {"tpc.rows": 2}


def test_other_propagators_add_theirs_and_ours_is_written_once(monkeypatch):
    """The global propagator stays; with a foreign-only one we still speak W3C."""
    from opentelemetry.baggage.propagation import W3CBaggagePropagator

    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", W3CBaggagePropagator())
    headers = {"traceparent": PARENT, "baggage": "tenant=a"}
    assert baggage.get_baggage("tenant", propagation.extract(headers)) == "a"
    assert sent_on(headers) == headers


class Broken:
    fields: frozenset[str] = frozenset()

    def inject(self, *args, **kwargs):
        raise RuntimeError

    extract = inject


def test_a_broken_propagator_does_not_hide_ours(monkeypatch):
    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", Broken())
    assert sent_on({"traceparent": PARENT}) == {"traceparent": PARENT}


header = st.one_of(
    st.text(),
    st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True),
    st.from_regex(r"0{2}-[0-9a-z]{30,34}-[0-9a-f]{14,18}(-[0-9a-f]*)*", fullmatch=True),
    st.none(),
    st.integers(),
)


@given(
    st.dictionaries(
        st.sampled_from(["traceparent", "Traceparent", "tracestate", "baggage", "x"]),
        header,
    )
)
def test_malformed_headers_never_raise(headers):
    """What cannot be read is absent, and what was read can be sent on."""
    found = propagation.extract(headers)
    span_context = trace.get_current_span(found).get_span_context()
    assert ("traceparent" in sent_on(headers)) == span_context.is_valid
    with spans.span("tpc.deliver", carrier=headers):
        pass
    OpenTelemetryTracing().export_root(record(headers), taken_over=True)


def test_nothing_leaks_out_of_a_span(exported):
    before = context.get_current()
    with pytest.raises(KeyError), spans.client_span("GET"):
        raise KeyError
    assert context.get_current() is before


@pytest.mark.parametrize("joined", [False, True])
def test_an_id_that_is_learned_inside_is_known_there_only(exported, joined):
    """What is logged after it, in children too, belongs to the transaction."""
    server = trace.get_tracer("flask").start_span("POST", kind=SpanKind.SERVER)
    around = server if joined else trace.INVALID_SPAN
    with trace.use_span(around, end_on_exit=True):
        before = context.get_current()
        with spans.server_span("GET /transactions/<transaction_id>", {}) as step:
            for id_ in ("orders.7.1", "orders.8.1"):
                step.set("tpc.transaction.id", id_)
                assert context.get_value(spans.TRANSACTION) == id_
                with spans.client_span("GET"):
                    assert context.get_value(spans.TRANSACTION) == id_
                assert context.get_value(spans.TRANSACTION) == id_
        assert context.get_current() is before


@pytest.mark.usefixtures("exported")
def test_a_raising_span_costs_itself_only(monkeypatch):
    """A foreign tracer's span: the work inside, and its own error, go through."""

    class Raising(Foreign):
        get_span_context = NonRecordingSpan.get_span_context
        is_recording = NonRecordingSpan.is_recording

    tracer = SimpleNamespace(start_span=lambda *args, **kwargs: Raising())
    monkeypatch.setattr(spans, "tracer", lambda: tracer)
    with spans.span("tpc.decide") as step:
        step.set("tpc.batch", 1)
        step.end()
    with pytest.raises(KeyError), spans.span("tpc.decide"):
        raise KeyError
    spans.past_span("x", None, attributes={}, start=1, end=2, error=KeyError)
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("carrier", [None, {"traceparent": PARENT}])
def test_a_current_span_that_raises_hides_no_work(exported, carrier):
    """It costs what is below it, and nothing that has a parent of its own."""
    foreign = trace.set_span_in_context(Foreign())
    token = context.attach(foreign)
    try:
        with spans.span("tpc.decide", carrier=carrier) as step:
            step.set("tpc.batch", 1)
        with spans.client_span("POST"):
            spans.current_carrier()
        assert spans.current_carrier() == propagation.storable_context() == {}
        for trusted in (True, False):
            headers = {"traceparent": PARENT}
            with spans.server_span(
                "GET /transactions/<transaction_id>", headers, trusted=trusted
            ):
                pass
        assert "traceparent" in OpenTelemetryTracing().reserve().carrier
    finally:
        context.detach(token)
    made = [span.name for span in exported()]
    assert (
        made
        == ["tpc.decide"] * bool(carrier) + ["GET /transactions/<transaction_id>"] * 2
    )


def test_a_provider_without_a_tracer_costs_the_traces_only(monkeypatch, caplog):
    """Work goes on, and the log says so once."""

    class Provider(trace.TracerProvider):
        def get_tracer(self, *args, **kwargs):
            raise RuntimeError("provider")

    monkeypatch.setattr(trace, "_TRACER_PROVIDER", Provider())
    for _ in range(3):
        with spans.span("tpc.decide") as step:
            step.set("tpc.batch", 1)
    assert OpenTelemetryTracing().reserve() == ({}, {})
    assert [record.getMessage() for record in caplog.records] == [
        TEXTS["a provider has no tracer"]
    ]


def test_what_is_kept_and_what_outsiders_see_has_no_baggage(exported, monkeypatch):
    """A user's own text goes with live requests, and stays nowhere."""
    from opentelemetry.baggage.propagation import W3CBaggagePropagator

    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", W3CBaggagePropagator())
    tracing = OpenTelemetryTracing()
    token = context.attach(baggage.set_baggage("user.email", "a@example.org"))
    try:
        carrier = tracing.reserve().carrier
        with tracing.step(names.DELIVER, carrier):
            live, kept = spans.current_carrier(), propagation.storable_context()
    finally:
        context.detach(token)
    assert carrier.keys() == kept.keys() == {"traceparent"}
    assert live == {**kept, "baggage": "user.email=a%40example.org"}


def test_a_raising_tracer_costs_a_span_only(monkeypatch):
    class Raising:
        def start_span(self, *args, **kwargs):
            raise RuntimeError("sampler")

    monkeypatch.setattr(spans, "tracer", Raising)
    with spans.span("tpc.decide") as step:
        step.set("tpc.batch", 1)
    spans.past_span("x", None, attributes={}, start=1, end=2)
    with OpenTelemetryTracing().sweep([record({})]):
        pass
