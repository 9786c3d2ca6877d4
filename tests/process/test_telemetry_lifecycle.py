"""Telemetry starts once where it is asked for, and ends in bounded time.

Each test runs a program of its own: a process has one tracer provider for its life.
"""

import importlib.metadata
import socket
import uuid

import pytest
from support.exporting import AT_LEISURE, MISSING, WARNED, to
from support.telemetry import PRELUDE, program, run
from support.texts import texts
from support.tracing import read_trace_file, span_tree

from tracing_2pc.testing import Collector
from tracing_2pc.tracing.sdk import environment

TEXTS = texts("process")


FLUSHED = "say([lifecycle.flush(PATIENT), lifecycle.dropped()])"


@pytest.mark.parametrize(
    ("then", "expected"), [(FLUSHED, [True, 0]), ("say(0)", 0)], ids=["flush", "exit"]
)
def test_spans_reach_a_collector(then, expected):
    """When they are flushed, and at the exit without that."""
    with Collector() as collector:
        said, _ = run(f"{AT_LEISURE}made(3); {then}", **to(collector.endpoint))
    assert said == expected
    sent = [(span["name"], span["service"]) for span in collector.spans()]
    assert sent == [("tpc.decide", "job")] * 3


def test_flushing_resumes_when_an_export_has_succeeded():
    """A collector that comes back is used again, without a restart."""
    code = """
from support.waiting import AT_ONCE, PATIENT, until
made()
say([lifecycle.flush(AT_ONCE), lifecycle.flush(AT_ONCE)])
until(lambda: made() or lifecycle.flush(PATIENT))
say(True)
"""
    with Collector() as collector:
        collector.hang()
        with program(code, **to(collector.endpoint)) as started:
            assert started.said() == [False, False]
            collector.accept()
            assert started.said() is True


def test_many_processes_write_one_trace_file(tmp_path):
    """A child of a fork goes on in the same trace; a killed process loses nothing."""
    file = tmp_path / "trace"
    run(
        """
with spans.span("tpc.transaction", attributes={"tpc.batch": 1}):
    for partition in range(4):
        if os.fork() == 0:
            with spans.span("tpc.branch"):
                made(50)
            os.kill(os.getpid(), 9)
    for _ in range(4):
        os.wait()
say(0)
""",
        TPC_TRACE_FILE=str(file),
    )
    lines = read_trace_file(file)
    assert span_tree(lines) == [
        "tpc.transaction",
        *(["  tpc.branch", *["    tpc.decide"] * 50] * 4),
    ]
    assert " ".join(sorted(lines[-1])) == (
        "attributes end instance kind links name parent_id service span_id start "
        "status trace_id"
    )
    assert lines[-1]["attributes"] == {"tpc.batch": 1}
    assert (lines[-1]["service"], lines[-1]["kind"]) == ("job", "INTERNAL")


def test_a_trace_file_that_cannot_be_written_is_said_once(tmp_path, capfd):
    """With what to look at; each lost span counts, and work goes on."""
    file = tmp_path / "no such folder" / "trace"
    lost, _ = run("made(3); say(lifecycle.dropped())", TPC_TRACE_FILE=str(file))
    said = capfd.readouterr().err
    assert lost == 3
    assert said.count("TPC_TRACE_FILE") == 1
    assert str(file) in said
    assert "Traceback" not in said


def test_a_forked_worker_sends_its_own_spans():
    """On a connection of its own: two processes on one would garble both."""
    code = """
made()
lifecycle.flush(PATIENT)
read, write = os.pipe()
if os.fork() == 0:
    made(2)
    os.write(write, b"1" if lifecycle.flush(PATIENT) else b"0")
    os._exit(0)
os.wait()
say(int(os.read(read, 1)))
"""
    with Collector() as collector:
        flushed, _ = run(AT_LEISURE + code, **to(collector.endpoint))
    assert flushed == 1
    assert collector.connections == 2
    assert len(collector.spans()) == 3


RESOURCES = """
from opentelemetry import trace
from tracing_2pc.tracing.sdk import exporting, meters
spans_are_of = trace.get_tracer_provider().resource
metrics_are_of = meters.to_prometheus("job")[0]._sdk_config.resource
say([dict(of.attributes) for of in (spans_are_of, metrics_are_of)])
"""


def test_a_process_says_which_one_it_is_and_where(tmp_path):
    """With one id for its spans and its metrics, and a host that Jaeger knows."""
    said, _ = run(RESOURCES, TPC_TRACE_FILE=str(tmp_path / "trace"))
    spans_are_of, metrics_are_of = said
    assert spans_are_of == metrics_are_of
    assert uuid.UUID(spans_are_of["service.instance.id"]).version == 4
    host = socket.gethostname()
    assert (spans_are_of["host.name"], spans_are_of["ip"]) == (host, host)
    assert spans_are_of["service.name"] == "job"
    assert "service.version" not in spans_are_of  # ours would not be its


def test_the_environment_says_more_of_a_process(tmp_path):
    """What it names wins."""
    named = {
        "service.instance.id": "job-1",
        "service.version": "7",
        "deployment.environment.name": "test",
        "host.name": "here",
        "ip": "192.0.2.7",
    }
    (spans_are_of, metrics_are_of), _ = run(
        RESOURCES,
        TPC_TRACE_FILE=str(tmp_path / "trace"),
        OTEL_RESOURCE_ATTRIBUTES=",".join(f"{k}={v}" for k, v in named.items()),
    )
    assert spans_are_of == metrics_are_of
    assert named.items() <= spans_are_of.items()


def test_our_own_programs_say_their_version(tmp_path):
    said, _ = run(
        f'lifecycle.start("tracing-2pc-watch"){RESOURCES}',
        start=PRELUDE,
        TPC_TRACE_FILE=str(tmp_path / "trace"),
    )
    assert said[0]["service.version"] == importlib.metadata.version("tracing-2pc")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_SDK_DISABLED": "true", "TPC_TRACE_FILE": "/nowhere"},
        {
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        },
    ],
)
def test_nothing_starts_unless_asked_for(environment):
    said, _ = run(
        "made(); loaded = [m for m in sys.modules if m == 'opentelemetry.sdk']\n"
        "say([spans.is_set(), lifecycle.flush(), loaded])",
        **environment,
    )
    assert said == [False, True, []]


def test_a_provider_of_the_program_is_used_as_it_is(tmp_path):
    file = tmp_path / "trace"
    said, _ = run(
        """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
mine = TracerProvider()
flushed = []
mine.force_flush = lambda *a: flushed.append(1)
trace.set_tracer_provider(mine)
os.environ["TPC_TRACE_FILE"] = os.environ["FILE"]
lifecycle.start("job")
made()
say([trace.get_tracer_provider() is mine, lifecycle.flush(5), flushed])
""",
        FILE=str(file),
    )
    assert said == [True, True, [1]]
    assert not file.exists()


UNLOADABLE = (
    WARNED
    + """
import tempfile
from flask import Flask
from tracing_2pc import traced_sink
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant import TaggedRows
app = Flask("service")
rows = TaggedRows(f"sqlite:///{tempfile.mkdtemp()}/l.db", "orders")
app.register_blueprint(participant_blueprint(rows, insecure=True))
del warned[:]
client = app.test_client()
@traced_sink
class Sink:
    def begin(self): return {"id": 1}
    def commit(self, handle): handle["done"] = True
sink = Sink()
handle = sink.begin()
sink.commit(handle)
made(2)
asked = [client.get(f"/{path}").status_code for path in ("health/live", "transactions")]
say([asked, handle, lifecycle.flush(), warned])
"""
)


@pytest.mark.ci
def test_a_provider_that_cannot_be_loaded_costs_the_traces_only(tmp_path):
    """Routes answer and phases run, untraced, and the log says so once."""
    file = tmp_path / "trace"
    said, _ = run(
        UNLOADABLE,
        start=PRELUDE,
        OTEL_PYTHON_TRACER_PROVIDER="not_installed",
        TPC_TRACE_FILE=str(file),
    )
    *done, (warned,) = said
    assert done == [[200, 200], {"id": 1, "done": True}, True]
    assert warned.startswith(TEXTS["a provider does not load"])
    assert not file.exists()


FAILING = (
    WARNED
    + MISSING
    + """
tries = []
once = lifecycle._process.start
lifecycle._process.start = lambda service: (tries.append(1), once(service))
"""
)


@pytest.mark.parametrize(
    "broken",
    [
        {"MISSING": "opentelemetry.exporter.otlp.proto.http.trace_exporter"},
        {"MISSING": "opentelemetry.sdk.resources"},
        {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/missing.pem"},
    ],
    ids=["no exporter", "no SDK", "a setting"],
)
def test_a_start_that_fails_is_not_tried_again(tmp_path, broken):
    """However often work begins: it would cost each request, and leave more behind.

    A forked worker tries once more, and so does who is asked for something else.
    """
    file = tmp_path / "trace"
    code = """
for _ in range(100):
    lifecycle.start("job")
before = len(tries)
read, write = os.pipe()
if os.fork() == 0:
    for _ in range(100):
        lifecycle.start("job")
    os.write(write, str(len(tries) - before).encode())
    os._exit(0)
os.wait()
forked = int(os.read(read, 9))
del os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
os.environ.pop("MISSING", None)
os.environ["TPC_TRACE_FILE"] = FILE
lifecycle.start("job")
made()
say([before, forked, spans.is_set(), len(warned)])
"""
    said, _ = run(
        code,
        start=f"{PRELUDE}{FAILING}FILE = {str(file)!r}\n",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        **broken,
    )
    assert said == [1, 1, True, 1]
    assert [span["name"] for span in read_trace_file(file)] == ["tpc.decide"]


def test_a_start_that_fails_leaves_nothing_behind():
    """No span processor that lives on in each fork of this process."""
    said, _ = run(
        """
from tracing_2pc.tracing.sdk import exporting, parents_first
handlers = []
os.register_at_fork = lambda **named: handlers.append(1)
lifecycle.start("job")
say([spans.is_set(), len(handlers), lifecycle.dropped()])
""",
        start=PRELUDE,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_EXPORTER_OTLP_CERTIFICATE="/missing.pem",
    )
    assert said == [False, 0, 0]


@pytest.mark.parametrize(
    ("wrong", "said_of"),
    [
        ({"TPC_SKYWALKING_ENDPOINT": "nonsense"}, "SkyWalking: ConfigurationError"),
        (
            {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/missing.pem"},
            "OTLP: ConfigurationError",
        ),
    ],
)
def test_a_way_out_that_is_set_wrongly_closes_no_other(oap, wrong, said_of):
    """One line says which and why; the spans leave by the other one."""
    with Collector() as collector:
        told = {
            "OTEL_PROPAGATORS": "tracecontext",
            "OTEL_TRACES_EXPORTER": "otlp,skywalking",
            "TPC_SKYWALKING_ENDPOINT": oap.url,
        }
        code = 'lifecycle.start("job"); made(); lifecycle.flush(PATIENT)\n'
        code += "say([spans.is_set(), warned])"
        start = PRELUDE + FAILING + AT_LEISURE
        said, _ = run(code, start=start, **to(collector.endpoint), **{**told, **wrong})
        by_otlp = [span["name"] for span in collector.spans()]
    assert said[0] is True
    (warned,) = said[1]
    assert warned.startswith(TEXTS["traces are not sent by"].format(way=said_of))
    by_skywalking = [s["operationName"] for g in oap.segments for s in g["spans"]]
    arrived = [bool(by_otlp), bool(by_skywalking)]
    assert arrived == [not said_of.startswith(name) for name in ("OTLP", "SkyW")]


def test_a_flush_that_can_have_no_thread_says_so(tmp_path):
    """A forked worker at its limit of threads loses spans, and not its task."""
    code = """
import threading
def no(self): raise RuntimeError("can't start new thread")
if os.fork() == 0:
    threading.Thread.start = no
    made()
    say(lifecycle.flush())
    os._exit(0)
os.wait()
"""
    said, _ = run(code, TPC_TRACE_FILE=str(tmp_path / "trace"))
    assert said is False


def test_settings_travel_without_secrets(monkeypatch):
    """What an executor on another host is told, and what its own environment keeps."""
    secrets = {
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=secret",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://user:secret@collector:4318",
        "VENDOR_TOKEN": "secret",
        "TPC_TOKEN": "secret",
    }
    own = {"OTEL_SERVICE_NAME": "job", "TPC_TRACE_FILE": "trace"}
    for name, value in {**secrets, **own}.items():
        monkeypatch.setenv(name, value)
    settings = environment.telemetry_settings()
    assert own.items() <= settings.items()
    assert "secret" not in repr(settings)

    monkeypatch.setenv("OTEL_SERVICE_NAME", "own")
    monkeypatch.delenv("TPC_TRACE_FILE")
    environment.apply({**settings, "PATH": "evil", "TPC_TOKEN_NEW": "x"})
    after = environment.telemetry_settings()
    assert (after["OTEL_SERVICE_NAME"], after["TPC_TRACE_FILE"]) == ("own", "trace")
