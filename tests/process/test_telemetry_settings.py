"""What the environment asks for is what a process sends, and where.

`test_environment_variables` has each variable; here whole programs send.
"""

from __future__ import annotations

import json
import re
import sys

import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from support.exporting import AT_LEISURE, WARNED, to
from support.otlp_receiver import Request, log_records, receiving
from support.programs import ran
from support.telemetry import PATH, PRELUDE, START, TASK_TO_RUN, run
from support.texts import texts
from support.waiting import AT_ONCE

from tracing_2pc.tracing.sdk import environment

ENDPOINT, PROTOCOL = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"
TEXTS = texts("process")
HEADERS = "TPC_OTLP_HEADERS"


def names(request: Request) -> list[str]:
    sent = trace_service_pb2.ExportTraceServiceRequest.FromString(request.body)
    scopes = [s for r in sent.resource_spans for s in r.scope_spans]
    return [span.name for scope in scopes for span in scope.spans]


def test_spans_on_the_console():
    """On standard error, as standard output is the command's."""
    command = [sys.executable, "-W", "error", "-c", f"{START}made(); say('mine')"]
    told = {"PYTHONPATH": PATH, "OTEL_TRACES_EXPORTER": "console"}
    done = ran(command, env=told)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == "mine"
    assert json.loads(done.stderr)["name"] == "tpc.decide"


def test_otlp_by_name_goes_to_the_default_endpoint():
    """And one line says where to look if nothing is there."""
    code = f"{WARNED}made()\nsay([spans.is_set(), lifecycle.flush(PATIENT), warned])"
    told = to("", AT_ONCE, OTEL_TRACES_EXPORTER="otlp")
    (is_set, flushed, (line,)), _ = run(AT_LEISURE + code, **told)
    assert (is_set, flushed) == (True, False)
    assert line.startswith(TEXTS["traces are not delivered"])


def test_an_exporter_that_is_not_installed_is_named():
    """In one line; the others send."""
    code = 'lifecycle.start("job")\nmade()\nsay([lifecycle.flush(PATIENT), warned])'
    with receiving("http/protobuf") as receiver:
        told = to(receiver.endpoint, OTEL_TRACES_EXPORTER="zipkin,otlp")
        said, _ = run(code, start=PRELUDE + AT_LEISURE + WARNED, **told)
        assert names(receiver.next()) == ["tpc.decide"]
    flushed, (line,) = said
    assert flushed
    way = "zipkin: ConfigurationError"
    assert line.startswith(TEXTS["traces are not sent by"].format(way=way))
    assert "OTEL_TRACES_EXPORTER: 'zipkin'" in line


TASK = f"""{TASK_TO_RUN}{AT_LEISURE}
from tracing_2pc.tracing.sdk import environment
environment.apply(json.loads(os.environ.pop("TOLD")))
job.task(Rows(), record, 0, 0)
say(lifecycle.flush(PATIENT))
"""


@pytest.mark.ci
@pytest.mark.parametrize("by", ["http/protobuf", "grpc"])
def test_an_executor_sends_the_headers_that_a_reference_names(
    tmp_path, monkeypatch, by
):
    """The reference comes with the task, and the secret from a file of its host."""
    file = tmp_path / "headers"
    file.write_text("authorization=Bearer%20secret,x-scope=a\n")
    with receiving(by) as receiver:
        there = to(receiver.endpoint, **{PROTOCOL: by, HEADERS: f"file:{file}"})
        there["OTEL_EXPORTER_OTLP_HEADERS"] = "authorization=driver-secret"
        for name, value in there.items():
            monkeypatch.setenv(name, value)
        told = json.dumps(environment.telemetry_settings())
        assert "secret" not in told
        said, _ = run(TASK, start=PRELUDE, TOLD=told)
        headers = receiver.next().headers
    assert said is True
    assert (headers["authorization"], headers["x-scope"]) == ("Bearer secret", "a")


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("authorization=secret", "no reference"),
        ("file:/nowhere", "no such file"),
        ("env:NOWHERE", "an empty variable"),
    ],
)
def test_headers_that_cannot_be_read_are_named(monkeypatch, reference, said):
    """In one line without the secret; what is no reference reaches no executor."""
    told = {ENDPOINT: "http://127.0.0.1:9", HEADERS: reference}
    code = 'lifecycle.start("job")\nmade()\nsay(warned)'
    ((line,), _) = run(code, start=PRELUDE + WARNED, **told)
    refused = f"ConfigurationError: {HEADERS}"
    assert line.startswith(TEXTS["tracing did not start"].format(error=refused))
    assert TEXTS[said] in line
    assert "secret" not in line.replace(TEXTS["what not to give"], "")
    monkeypatch.setenv(HEADERS, reference)
    travels = HEADERS in environment.telemetry_settings()
    assert travels is not reference.startswith("auth")


LOGGING = f"""{AT_LEISURE}
import logging
log = logging.getLogger("user")
with spans.span("tpc.branch", attributes={{"tpc.transaction.id": "orders.7.1"}}):
    here = spans.current_carrier().get("traceparent", "--").split("-")[1:3]
    log.warning("not acknowledged: tries=%s", 3, extra={{"participant": "ledger"}})
log.warning("%d", "no number")  # a mistake of the program
say(here)
"""


@pytest.mark.parametrize("by", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("traced", [True, False])
def test_log_records_are_sent_where_it_is_asked_for(by, *, traced):
    """With the ids of trace and transaction. One that cannot be written is left out."""
    with receiving(by) as receiver:
        told = to(receiver.endpoint, **{PROTOCOL: by, "OTEL_LOGS_EXPORTER": "otlp"})
        if not traced:
            told["OTEL_TRACES_EXPORTER"] = "none"
        code = LOGGING if traced else re.sub("here = .*", "here = ['', '']", LOGGING)
        here, _ = run(code, **told)
        sent = receiver.next()
        if sent.signal == "TRACES":
            sent = receiver.next()
    (record,) = log_records(sent)
    about = {a.key: a.value.string_value for a in record.attributes}
    assert record.body.string_value == "not acknowledged: tries=3"
    assert record.severity_text == "WARN"
    assert [record.trace_id.hex(), record.span_id.hex()] == here
    wanted = {"tpc_transaction_id": "orders.7.1", "participant": "ledger"}
    assert wanted.items() <= about.items()


def test_a_record_outside_of_a_span_is_sent_with_the_trace_that_it_names():
    """What the driver says of a transaction between two of its spans."""
    code = f"""{AT_LEISURE}
import logging
from tracing_2pc.core.model import TransactionId, log_fields
there = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
fields = log_fields(
    TransactionId("orders", 7, 1), {{"traceparent": "00-%s-%s-01" % there}}
)
with spans.span("tpc.decide"):
    logging.getLogger("user").warning("said", extra=fields)
say(there)
"""
    with receiving("http/protobuf") as receiver:
        told = to(receiver.endpoint, OTEL_LOGS_EXPORTER="otlp")
        there, _ = run(code, OTEL_TRACES_EXPORTER="none", **told)
        (record,) = log_records(receiver.next())
    assert [record.trace_id.hex(), record.span_id.hex()] == there


def test_no_log_records_are_sent_unless_it_is_asked_for():
    """A collector that takes traces only is told nothing else."""
    with receiving("http/protobuf") as receiver:
        run(LOGGING, **to(receiver.endpoint))
        assert receiver.next().signal == "TRACES"
        assert receiver.requests.empty()


def test_a_forked_worker_sends_its_own_log_records():
    """On a connection of its own, and its parent's only once."""
    code = f"""{AT_LEISURE}
import logging
log = logging.getLogger("user")
log.warning("parent")
if os.fork() == 0:
    log.warning("child")
    lifecycle.start("job")
    lifecycle._process.stop().wait(PATIENT)
    os._exit(0)
os.wait()
say(0)
"""
    with receiving("http/protobuf") as receiver:
        told = {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{receiver.endpoint}/v1/logs"}
        told["OTEL_BLRP_SCHEDULE_DELAY"] = "600000"
        run(code, **to("", **told))
        sent = [log_records(receiver.next()) for _ in range(2)]
        assert receiver.requests.empty()
    assert sorted(r.body.string_value for (r,) in sent) == ["child", "parent"]
