"""What the environment asks for is what a process sends, and where.

`test_environment_variables` has each variable; here whole programs send.
"""

from __future__ import annotations

import json
import logging
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

from tracing_2pc.tracing.sdk import environment, exporting, lifecycle, logs, meters

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


NUMBERS = [
    ("OTEL_BSP_SCHEDULE_DELAY", "5s"),
    ("OTEL_BSP_SCHEDULE_DELAY", "0"),
    ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1"),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "99999"),
    ("OTEL_EXPORTER_OTLP_TIMEOUT", "2s"),
    ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "nan"),
    ("OTEL_BLRP_SCHEDULE_DELAY", "inf"),
    ("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "99999"),
    ("OTEL_METRIC_EXPORT_INTERVAL", "-1"),
    ("OTEL_METRIC_EXPORT_TIMEOUT", "1m"),
]


@pytest.mark.parametrize(
    ("variable", "value"),
    [NUMBERS[0], *(pytest.param(*case, marks=pytest.mark.ci) for case in NUMBERS[1:])],
)
def test_a_number_that_cannot_be_used_is_named(variable, value):
    """In one line, with its rule and the default, which is used: spans are sent."""
    code = 'lifecycle.start("job")\nmade()\nsay([lifecycle.flush(PATIENT), warned])'
    with receiving("http/protobuf") as receiver:
        told = {ENDPOINT: receiver.endpoint, variable: value}
        said, _ = run(code, start=PRELUDE + AT_LEISURE + WARNED, **told)
        assert names(receiver.next()) == ["tpc.decide"]
    flushed, (line,) = said
    assert flushed
    assert line.startswith(f"{variable}: ")
    assert value in line
    assert line.endswith(" is used")


@pytest.mark.parametrize(("variable", "value"), NUMBERS)
def test_all_signals_start_with_the_defaults(monkeypatch, variable, value):
    """Metrics and log records, too; and `check` has a line of it."""
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "otlp")
    monkeypatch.setenv(variable, value)
    assert [line for line in lifecycle.problems() if line.startswith(f"{variable}: ")]
    meters.to_exporters("job").shutdown()
    for signal in ("TRACES", "METRICS", "LOGS"):
        exporting.exporter(signal, "otlp")().shutdown()
    exporting.in_batches("otlp").shutdown()
    ending = logs.start("job")
    root = logging.getLogger()
    root.removeHandler(root.handlers[-1])
    ending()


@pytest.mark.parametrize(
    ("sampler", "share", "variable"),
    [
        ("alway_on", None, "OTEL_TRACES_SAMPLER"),
        ("traceidratio", "10%", "OTEL_TRACES_SAMPLER_ARG"),
        ("parentbased_traceidratio", "2", "OTEL_TRACES_SAMPLER_ARG"),
        ("parentbased_traceidratio", None, "OTEL_TRACES_SAMPLER_ARG"),
        ("parentbased_traceidratio", "0.5", None),
        ("always_off", "5%", None),
    ],
)
def test_a_sampler_that_is_none_is_named(monkeypatch, sampler, share, variable):
    """By its variable, with what is sampled instead."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    if share is not None:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)
    named = [line.partition(":")[0] for line in lifecycle.problems()]
    assert named == ([] if variable is None else [variable])


FORBIDDING = [
    ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-1"),
    ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem"),
    ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/nowhere/key.pem"),
]
BY_GRPC = [
    ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2s"),
    ("OTEL_EXPORTER_OTLP_COMPRESSION", "deflate"),
]


@pytest.mark.parametrize(
    ("variable", "value", "by"),
    [(*FORBIDDING[0], "http/protobuf")]
    + [
        pytest.param(*case, by, marks=pytest.mark.ci)
        for case, by in [
            *((case, "http/protobuf") for case in FORBIDDING[1:]),
            *((case, "grpc") for case in BY_GRPC),
        ]
    ],
)
def test_a_value_without_a_default_is_named(monkeypatch, variable, value, by):
    """Tracing does not start, and the line says which variable, and its rule."""
    told = {ENDPOINT: "https://127.0.0.1:9", PROTOCOL: by, variable: value}
    code = 'lifecycle.start("job")\nmade()\nsay(warned)'
    (said, _) = run(code, start=PRELUDE + WARNED, **told)
    start = TEXTS["tracing did not start"].partition("{")[0]
    (line,) = (line for line in said if line.startswith(start))
    assert f": {variable}: " in line
    assert value in line
    for name, text in told.items():
        monkeypatch.setenv(name, text)
    assert [line for line in lifecycle.problems() if line.startswith(f"{variable}: ")]


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
