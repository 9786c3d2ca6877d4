"""`@traced_sink`: a user's sink in a trace, and that it stays theirs."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import requests
from opentelemetry.trace import StatusCode
from support.texts import texts
from support.traced_sink import (
    Plain,
    Refusing,
    branch_of,
    one_good_one_bad,
    shipped,
    through_the_log,
)
from support.tracing import read_trace_file, span_tree
from support.waiting import PATIENT

from tracing_2pc.core import names
from tracing_2pc.core.errors import ContractError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.ports import TwoPhaseCommitSink
from tracing_2pc.tracing import spans
from tracing_2pc.tracing.decorator.traced_sink import trace_headers, traced_sink
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

TEXTS = texts("sinks")


@traced_sink(requests=True)
class PartnerSink:
    """Tells a partner."""

    def __init__(self, url: str) -> None:
        self.url = url

    def begin(self, context):
        return {"id": f"{context.transaction_id}.{context.branch}", "rows": []}

    def invoke(self, handle, record):
        handle["rows"].append(record)

    def pre_commit(self, handle):
        self.post("prepare", handle)
        handle["rows"].clear()

    def commit(self, handle):
        self.post(f"commit/{handle['id']}", {})

    def abort(self, handle):
        self.post(f"rollback/{handle['id']}", {})

    def post(self, path, body):
        answer = requests.post(f"{self.url}/{path}", json=body, timeout=PATIENT)
        answer.raise_for_status()


def test_every_phase_is_a_span_and_every_call_carries_it(exported, partner):
    """The example of the README, from a task through the log to the driver."""
    carrier = OpenTelemetryTracing().reserve().carrier
    sink = shipped(PartnerSink(partner.url))
    with spans.span(names.BRANCH, carrier=carrier):
        handle = sink.begin(branch_of(carrier))
        for number in range(3):
            sink.invoke(handle, {"id": number})
        sink.pre_commit(handle)
    with spans.span(names.DELIVER, carrier=carrier):
        PartnerSink(partner.url).commit(through_the_log(handle))
    assert span_tree(exported()) == [
        "tpc.branch",
        "  PartnerSink.begin",
        "  PartnerSink.invoke",
        "  PartnerSink.pre_commit",
        "    POST",
        "tpc.deliver",
        "  PartnerSink.commit",
        "    POST",
    ]
    trace_id = carrier["traceparent"][3:35]
    posts = [s for s in exported() if s.name == "POST"]
    expected = [f"00-{trace_id}-{s.context.span_id:016x}" for s in posts]
    assert [sent["traceparent"][:52] for _, sent, _ in partner.got] == expected
    path, _, body = partner.got[0]
    assert (path, len(body["rows"])) == ("/prepare", 3)
    begin, invoke = (span.attributes for span in exported()[:2])
    ids = {"tpc.transaction.id": "orders.7.1", "tpc.branch": "0.4"}
    assert (begin, invoke) == (
        {"tpc.phase": "begin", **ids},
        {"tpc.phase": "invoke", "tpc.rows": 3},
    )


def test_errors_pass_unchanged_and_show_their_class_only(exported, partner):
    partner.answers = [500]
    sink = shipped(PartnerSink(partner.url))
    handle = sink.begin(branch_of({}))
    with pytest.raises(requests.HTTPError, match="500 Server Error"):
        sink.pre_commit(handle)
    failed = next(s for s in exported() if s.name == "PartnerSink.pre_commit")
    status = (failed.status.status_code, failed.status.description)
    assert (status, failed.events) == ((StatusCode.ERROR, None), ())
    assert failed.attributes["error.type"] == "HTTPError"


def test_a_record_that_fails_shows_in_the_one_invoke_span(exported):
    one_good_one_bad(shipped(traced_sink(type("Picky", (Refusing,), {}))()))
    assert span_tree(exported()) == ["Picky.begin", "  Picky.invoke", "  Picky.abort"]
    attributes = exported()[1].attributes
    assert (attributes["tpc.rows"], attributes["error.type"]) == (1, "ValueError")
    assert "customer" not in exported()[1].to_json()


def test_the_class_stays_what_it_was():
    assert PartnerSink.__name__ == "PartnerSink"
    assert PartnerSink.__doc__ == "Tells a partner."
    assert isinstance(PartnerSink("http://x"), TwoPhaseCommitSink)
    assert PartnerSink.begin.__name__ == "begin"
    assert traced_sink(PartnerSink) is PartnerSink
    assert not hasattr(PartnerSink.begin.__wrapped__, "__wrapped__")


def test_a_subclass_that_calls_its_parent_is_one_span(exported):
    @traced_sink
    class Base(Plain):
        def commit(self, handle):
            super().commit(handle)

    @traced_sink
    class Loud(Base):
        def invoke(self, handle, record):
            super().invoke(handle, record)

        def commit(self, handle):
            super().commit(handle)

    sink = shipped(Loud())
    handle = sink.begin()
    sink.invoke(handle, 1)
    sink.pre_commit(handle)
    sink.commit(handle)
    assert span_tree(exported()) == phases("Loud")
    assert exported()[1].attributes["tpc.rows"] == 1


def test_an_undecorated_subclass_is_traced_under_its_own_name(exported):
    class Special(PartnerSink):
        def begin(self, context):
            return super().begin(context) | {"special": True}

    handle = shipped(Special("http://x")).begin(branch_of({}))
    assert handle["special"]
    assert span_tree(exported()) == ["Special.begin"]


def test_a_class_that_traces_itself_is_left_alone(exported):
    class Own(Plain):
        __tpc_traced__ = True

        def begin(self):
            return {}

    @traced_sink
    class Mine(Own):
        pass

    shipped(Mine()).begin()
    shipped(traced_sink(Own)()).begin()
    assert exported() == []


def test_methods_may_have_other_names(exported):
    words = {"begin": "open", "invoke": "write", "commit": "publish"}
    members = {word: vars(Plain)[name] for name, word in words.items()}
    kind = type("Renamed", (), {**members, "pre_commit": Plain.pre_commit})
    sink = shipped(traced_sink(**words)(kind)())
    handle = sink.open()
    sink.write(handle, 1)
    sink.pre_commit(handle)
    sink.publish(handle)
    assert span_tree(exported()) == phases("Renamed")


def phases(sink: str) -> list[str]:
    others = ("invoke", "pre_commit", "commit")
    return [f"{sink}.begin", *(f"  {sink}.{phase}" for phase in others)]


def test_a_method_that_is_not_there_is_refused():
    with pytest.raises(ContractError, match=TEXTS["no method"].format(name="opne")):
        traced_sink(begin="opne")(Plain)


def test_batches_and_whole_transactions(exported):
    class Batch:
        num_rows = 500

    @traced_sink
    class Bulk(Plain):
        def invoke_batch(self, handle, batch):
            pass

        def commit_transaction(self, transaction_id, handles):
            for handle in handles:
                self.commit(handle)

        def abort_transaction(self, transaction_id, keep):
            pass

    sink = shipped(Bulk())
    carrier = OpenTelemetryTracing().reserve().carrier
    with spans.span(names.BRANCH, carrier=carrier):
        handle = sink.begin()
        sink.invoke_batch(handle, Batch())
        sink.invoke_batch(handle, Batch())
        sink.pre_commit(handle)
    transaction = TransactionId("orders", 7, 1)
    sink.commit_transaction(transaction, [through_the_log(handle)])
    sink.abort_transaction(transaction, [])
    assert span_tree(exported()) == [
        "tpc.branch",
        "  Bulk.begin",
        "  Bulk.invoke",
        "  Bulk.pre_commit",
        "  Bulk.commit",
        "    Bulk.commit",
        "Bulk.abort",
    ]
    assert exported()[1].attributes["tpc.rows"] == 1000
    assert exported()[-1].attributes["tpc.transaction.id"] == "orders.7.1"


def test_trace_headers_are_those_of_the_phase(exported):
    seen = {}

    @traced_sink
    class Other(Plain):
        def commit(self, handle):
            seen.update(trace_headers())

    Other().commit({})
    (commit,) = exported()
    assert seen["traceparent"][36:52] == f"{commit.context.span_id:016x}"
    assert trace_headers() == {}


PROGRAM = """
import sys, cloudpickle
from tracing_2pc import traced_sink

@traced_sink
class Sink:
    '''Mine.'''
    def begin(self, context=None):
        return {"seen": []}
    def invoke(self, handle, record):
        handle["seen"].append(record)
    def pre_commit(self, handle):
        return super().__init__()

if sys.argv[1] == "driver":
    sys.stdout.buffer.write(cloudpickle.dumps((Sink, Sink())))
else:
    del Sink
    kind, sink = cloudpickle.load(sys.stdin.buffer)
    handle = sink.begin()
    sink.invoke(handle, 1)
    sink.invoke(handle, 2)
    sink.pre_commit(handle)
    assert handle["seen"] == [1, 2] and isinstance(sink, kind)
    assert (kind.__name__, kind.__doc__) == ("Sink", "Mine.")
"""


def test_a_class_of_the_main_program_is_traced_on_an_executor(tmp_path):
    """It is pickled by value; telemetry starts there, at begin, when asked for."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    pickled = subprocess.run(
        [sys.executable, program, "driver"], capture_output=True, check=True
    ).stdout
    file = tmp_path / "trace"
    done = subprocess.run(
        [sys.executable, program, "executor"],
        input=pickled,
        capture_output=True,
        env={"TPC_TRACE_FILE": str(file)},
    )
    assert done.returncode == 0, done.stderr.decode()
    lines = read_trace_file(file)
    assert span_tree(lines) == ["Sink.begin", "  Sink.invoke", "  Sink.pre_commit"]
    assert lines[1]["attributes"] == {"tpc.phase": "invoke", "tpc.rows": 2}
    assert {line["service"] for line in lines} == {"Sink"}
