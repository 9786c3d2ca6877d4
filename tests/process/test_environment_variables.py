"""Each variable that OpenTelemetry's SDK knows works, or is refused by its name.

`CASES` has one for each; a variable of a new SDK has none, and its test is red. What is
read when OpenTelemetry is imported is read by a program of its own.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import environment_variables as of_api
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.sdk import environment_variables as of_sdk
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util import _importlib_metadata as cached
from support.otlp_receiver import SIGNALS, OtlpReceiver, log_records, receiving
from support.skywalking import certificate
from support.telemetry import PATH, run
from support.texts import texts
from support.waiting import AT_LAST, AT_ONCE, PATIENT, until

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.tracing.sdk import environment, exporting, lifecycle, meters

TEXTS = texts("process")
BOTH = "OTEL_EXPORTER_OTLP_ENDPOINT"
Case = Callable[["Here"], None]
CASES: dict[str, Case] = {}


def known() -> list[str]:
    """Return every variable that the installed SDK and API know."""
    values = [*vars(of_sdk).values(), *vars(of_api).values()]
    names = {value for value in values if isinstance(value, str)}
    return sorted(name for name in names if name.startswith("OTEL_"))


class Here:
    """One test: its environment, and what it may start."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, variable: str) -> None:
        self.patch, self.folder, self.variable = patch, folder, variable
        self.ending: list[Callable[[], object]] = []

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self.patch.setenv(name, value)

    def install(self, group: str, code: str) -> None:
        """Have a distribution offer `made` of this code, as `ours`."""
        (self.folder / "offered.py").write_text(code)
        info = self.folder / "offered-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offered\n")
        (info / "entry_points.txt").write_text(f"[{group}]\nours = offered:made\n")
        self.patch.syspath_prepend(str(self.folder))
        self.patch.delitem(__import__("sys").modules, "offered", raising=False)
        cached._original_entry_points_cached.cache_clear()
        self.ending.append(cached._original_entry_points_cached.cache_clear)

    def certificate(self) -> Path:
        return certificate(self.folder, "collector")


@pytest.fixture
def here(monkeypatch, tmp_path, request) -> Iterator[Here]:
    ours = ("OTEL_", "TPC_", "REQUESTS_CA", "CURL_CA")  # the last win with `requests`
    for name in [n for n in os.environ if n.startswith(ours)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TPC_SPANS", "off")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", f"{PATIENT}")
    made = Here(monkeypatch, tmp_path, request.getfixturevalue("variable"))
    yield made
    for end in reversed(made.ending):
        end()


@pytest.mark.parametrize("variable", known())
def test_it_works_or_is_refused(variable, here):
    CASES[variable](here)


def test_the_manual_has_a_row_for_each():
    """And says of each whether it works or is refused; ours are below it."""
    text = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    table = text.partition("| OpenTelemetry's variable |")[2].partition("\n\n")[0]
    said: dict[str, str] = {}
    for row in table.splitlines()[2:]:
        _, names, is_read, _, _ = row.split("|")
        for name in re.findall(r"`(OTEL_\S+)`", names):
            for signal in ("", *(f"{s}_" for s in SIGNALS)):
                said[name.replace("<SIGNAL_>", signal)] = is_read.strip()
    by_code = dict.fromkeys(CASES, "works") | dict.fromkeys(REFUSED, "refused")
    assert set(known()) == CASES.keys()
    assert said == by_code


def case(*variables: str) -> Callable[[Case], Case]:
    def keep(checked: Case) -> Case:
        CASES.update(dict.fromkeys(variables, checked))
        return checked

    return keep


# What an exporter of OTLP is told, for all signals or for one.


def of_otlp(name: str) -> Callable[[Callable[[Here, str], None]], None]:
    """Check a variable of OTLP for each signal that it is for."""

    def keep(checked: Callable[[Here, str], None]) -> None:
        def each(here: Here, signals: tuple[str, ...]) -> None:
            for signal in signals:
                checked(here, signal)

        for signal in SIGNALS:
            own = f"OTEL_EXPORTER_OTLP_{signal}_{name}"
            CASES[own] = functools.partial(each, signals=(signal,))
        CASES[f"OTEL_EXPORTER_OTLP_{name}"] = functools.partial(each, signals=SIGNALS)

    return keep


def send(signal: str) -> bool:
    """Export nothing at all, as far as a collector."""
    sent = MetricsData([]) if signal == "METRICS" else []
    exporter = exporting.exporter(signal, "otlp")()
    try:
        return bool(exporter.export(sent).name == "SUCCESS")
    finally:
        exporter.shutdown()


@of_otlp("ENDPOINT")
def endpoint(here: Here, signal: str) -> None:
    with receiving("http/protobuf") as receiver:
        path = "" if here.variable == BOTH else f"/v1/{signal.lower()}"
        here.set(**{here.variable: receiver.endpoint + path})
        wanted = [] if (signal, path) == ("LOGS", "") else ["otlp"]
        assert environment.exporters(signal) == wanted
        assert send(signal)
        assert receiver.next().signal == signal


@of_otlp("PROTOCOL")
def protocol(here: Here, signal: str) -> None:
    with receiving("grpc") as receiver:
        here.set(**{here.variable: "grpc", BOTH: receiver.endpoint})
        assert send(signal)
        assert receiver.next()[:2] == ("grpc", signal)
    here.set(**{here.variable: "http/json"})
    said = TEXTS["not one of"].format(name=here.variable, value="http/json")
    with pytest.raises(ConfigurationError, match=said):
        exporting.exporter(signal, "otlp")


@of_otlp("HEADERS")
def headers(here: Here, signal: str) -> None:
    for by in ("http/protobuf", "grpc"):
        with receiving(by) as receiver:
            told = {BOTH: receiver.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": by}
            here.set(**told, **{here.variable: "authorization=Bearer%20x"})
            assert send(signal)
            assert receiver.next().headers["authorization"] == "Bearer x"


@of_otlp("COMPRESSION")
def compression(here: Here, signal: str) -> None:
    with receiving("http/protobuf") as receiver:
        here.set(**{BOTH: receiver.endpoint, here.variable: "gzip"})
        assert send(signal)
        assert receiver.next().headers["content-encoding"] == "gzip"


@of_otlp("TIMEOUT")
def timeout(here: Here, signal: str) -> None:
    """In seconds, as OpenTelemetry for Python reads it; 2 by default."""
    with receiving("http/protobuf") as receiver, receiver.holding():
        here.set(**{BOTH: receiver.endpoint, here.variable: f"{AT_ONCE}"})
        assert not send(signal)


def tls(here: Here, signal: str) -> None:
    """Our certificate is the server's authority, and a client's: all three are used."""
    made = here.certificate()
    kind = re.sub(r"OTEL_EXPORTER_OTLP_(TRACES_|METRICS_|LOGS_)?", "", here.variable)
    others = {"CERTIFICATE": str(made), "CLIENT_CERTIFICATE": str(made)}
    others["CLIENT_KEY"] = str(made.with_suffix(".key"))
    with receiving("http/protobuf", made) as receiver:
        here.set(**{BOTH: receiver.endpoint, here.variable: others.pop(kind)})
        here.set(**{f"OTEL_EXPORTER_OTLP_{n}": v for n, v in others.items()})
        here.set(OTEL_EXPORTER_OTLP_TIMEOUT=f"{PATIENT}")
        assert send(signal)
        here.patch.delenv(here.variable)
        here.set(OTEL_EXPORTER_OTLP_TIMEOUT=f"{AT_ONCE}")
        with contextlib.suppress(OSError):  # a certificate without its key
            assert not send(signal)


for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
    of_otlp(name)(tls)


@of_otlp("INSECURE")
def insecure(here: Here, signal: str) -> None:
    """For gRPC; with HTTP the endpoint's scheme says it."""
    with receiving("grpc") as receiver:
        address = receiver.endpoint.removeprefix("http://")
        here.set(**{BOTH: address, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
        here.set(**{here.variable: "true"})
        assert send(signal)


SESSION = """
import requests
def made():
    session = requests.Session()
    session.headers["x-credential"] = "ours"
    return session
"""
TRUST = """
import grpc
def made():
    with open({path!r}, "rb") as file:
        return grpc.ssl_channel_credentials(file.read())
"""


def credential(here: Here) -> None:
    by = "http/protobuf" if "_HTTP_" in here.variable else "grpc"
    found = [signal for signal in SIGNALS if f"_{signal}_" in here.variable]
    made, is_grpc = here.certificate(), by == "grpc"
    code = TRUST.replace("{path!r}", repr(str(made))) if is_grpc else SESSION
    here.install("opentelemetry_otlp_credential_provider", code)
    here.set(**{here.variable: "ours", "OTEL_EXPORTER_OTLP_PROTOCOL": by})
    with receiving(by, made if is_grpc else None) as receiver:
        here.set(**{BOTH: receiver.endpoint})
        for signal in found or SIGNALS:
            if is_grpc and found:  # the SDK looks at it only beside this one
                here.set(**{f"OTEL_EXPORTER_OTLP_{signal}_CERTIFICATE": str(made)})
            assert send(signal), signal
            got = receiver.next()
            assert is_grpc or got.headers["x-credential"] == "ours"


for way in ("HTTP", "GRPC"):
    for signal in ("", *(f"{s}_" for s in SIGNALS)):
        case(f"OTEL_PYTHON_EXPORTER_OTLP_{way}_{signal}CREDENTIAL_PROVIDER")(credential)


@case("OTEL_PYTHON_EXPORTER_OTLP_GRPC_RETRYABLE_ERROR_CODES")
def retryable(here: Here) -> None:
    import grpc

    with receiving("grpc") as receiver:
        receiver.refuse_first = grpc.StatusCode.INVALID_ARGUMENT
        here.set(**{BOTH: receiver.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
        here.set(**{here.variable: "INVALID_ARGUMENT"})
        assert send("TRACES")


# Which exporters there are.


@case("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER")
def exporter(here: Here) -> None:
    """By name, with the default endpoint; what is not installed is refused by name."""
    signal = here.variable.split("_")[1]
    here.set(**{here.variable: "otlp, console ,none"})
    assert environment.exporters(signal) == ["otlp", "console"]
    for name in ("otlp", "console", "otlp_proto_http", "otlp_proto_grpc"):
        exporting.exporter(signal, name)().shutdown()
    said = TEXTS["not installed"].format(name=here.variable, value="zipkin")
    with pytest.raises(ConfigurationError, match=said):
        exporting.exporter(signal, "zipkin")
    offered = f"opentelemetry_{signal.lower()}_exporter"
    here.install(offered, "def made(): return 'made'")
    assert exporting.exporter(signal, "ours")() == "made"


@case("OTEL_EXPORTER_ZIPKIN_ENDPOINT", "OTEL_EXPORTER_ZIPKIN_TIMEOUT")
def zipkin(here: Here) -> None:
    """It is the exporter's own; without that, the exporter's name is refused."""
    here.set(**{here.variable: "1"})
    assert environment.refused() == [here.variable]
    here.set(OTEL_TRACES_EXPORTER="zipkin_json")
    assert environment.refused() == []


# Spans.


def spans(here: Here) -> tuple[Any, InMemorySpanExporter]:
    provider, ended = exporting.provider("job"), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(ended))
    here.ending.append(provider.shutdown)
    return provider.get_tracer("test"), ended


@case("OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG")
def sampler(here: Here) -> None:
    by = "traceidratio" if here.variable.endswith("ARG") else "always_off"
    here.set(OTEL_TRACES_SAMPLER=by, OTEL_TRACES_SAMPLER_ARG="0")
    tracer, _ = spans(here)
    assert not tracer.start_span("x").is_recording()


@case(
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
)
def limit(here: Here) -> None:
    from opentelemetry.trace import Link, SpanContext

    here.set(**{here.variable: "1"})
    tracer, ended = spans(here)
    two = {"a": "long", "b": "long"}
    link = Link(SpanContext(1, 1, is_remote=False), two)
    with tracer.start_as_current_span("x", attributes=two, links=[link, link]) as span:
        span.add_event("e", two)
        span.add_event("e", two)
    (span,) = ended.get_finished_spans()
    event, link = span.events[0], span.links[0]
    limited = {
        "SPAN_ATTRIBUTE": [span.attributes],
        "SPAN_EVENT": [span.events],
        "SPAN_LINK": [span.links],
        "EVENT_ATTRIBUTE": [event.attributes],
        "LINK_ATTRIBUTE": [link.attributes],
        "ATTRIBUTE": [span.attributes, event.attributes, link.attributes],
    }
    kind, is_count, _ = here.variable.removeprefix("OTEL_").partition("_COUNT_LIMIT")
    if is_count:
        assert {len(held) for held in limited[kind]} == {1}
    else:
        assert span.attributes == {"a": "l", "b": "l"}


class Batching:
    """An exporter that keeps batches, and may be held up; and what gives it spans."""

    def __init__(self, here: Here) -> None:
        self.batches: list[int] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.counted = exporting.CountedBatches(exporting.CountedExporter(lambda: self))
        self.provider = exporting.provider("job")
        self.provider.add_span_processor(self.counted)
        here.ending.append(self.provider.shutdown)

    def export(self, spans: Any) -> Any:
        self.go_on.wait(AT_LAST)
        self.batches.append(len(spans))
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass

    def make(self, count: int = 1) -> None:
        for _ in range(count):
            self.provider.get_tracer("test").start_span("x").end()


@case("OTEL_BSP_SCHEDULE_DELAY")
def bsp_delay(here: Here) -> None:
    """In milliseconds; 500 by default: beside it a shorter one has come twice."""
    here.set(OTEL_BSP_SCHEDULE_DELAY="600000")
    late = Batching(here)
    here.set(OTEL_BSP_SCHEDULE_DELAY="50")
    soon = Batching(here)
    for count in (1, 2):
        late.make()
        soon.make()
        until(lambda: sum(soon.batches), count.__eq__)
    assert late.batches == []


@case("OTEL_BSP_MAX_QUEUE_SIZE")
def bsp_queue(here: Here) -> None:
    here.set(OTEL_BSP_MAX_QUEUE_SIZE="2", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1")
    held = Batching(here)
    held.go_on.clear()
    here.ending.append(held.go_on.set)
    held.make(10)
    assert held.counted.dropped >= 7


@case("OTEL_BSP_MAX_EXPORT_BATCH_SIZE")
def bsp_batch(here: Here) -> None:
    here.set(OTEL_BSP_MAX_EXPORT_BATCH_SIZE="2")
    made = Batching(here)
    made.make(6)
    made.provider.force_flush()
    assert (sum(made.batches), max(made.batches) <= 2) == (6, True)


# The process.


OF_A_RESOURCE = {
    "OTEL_SERVICE_NAME": ("mine", {"service.name": "mine"}),
    "OTEL_RESOURCE_ATTRIBUTES": (
        *("team=a,service.name=mine", {"team": "a", "service.name": "mine"}),
    ),
    "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": ("os", {"os.type": "linux"}),
}


@case(*OF_A_RESOURCE)
def resource(here: Here) -> None:
    value, wanted = OF_A_RESOURCE[here.variable]
    here.set(**{here.variable: value})
    assert wanted.items() <= exporting.resource("job").attributes.items()


@case("OTEL_SDK_DISABLED")
def disabled(here: Here) -> None:
    here.set(OTEL_SDK_DISABLED="true", OTEL_LOGS_EXPORTER="otlp")
    here.set(**{BOTH: "http://127.0.0.1:9"})
    wanted = environment.wants("METRICS"), environment.wants("LOGS")
    assert (environment.wants_traces(), *wanted) == (False, False, False)


# Metrics.


def measured(here: Here, receiver: OtlpReceiver) -> Any:
    here.set(**{BOTH: receiver.endpoint})
    provider = meters.to_exporters("job")
    here.ending.append(provider.shutdown)
    return provider.get_meter("test"), provider


def metrics_of(body: bytes) -> Any:
    sent = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
    (of_resource,) = sent.resource_metrics
    return {m.name: m for s in of_resource.scope_metrics for m in s.metrics}


@case("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE")
def temporality(here: Here) -> None:
    """DELTA or LOWMEMORY, as vendors ask for it: an export has what is new."""
    for wanted in ("delta", "LOWMEMORY"):
        with receiving("http/protobuf") as receiver:
            here.set(**{here.variable: wanted})
            meter, provider = measured(here, receiver)
            counter = meter.create_counter("c")
            values = []
            for _ in range(2):
                counter.add(3)
                provider.force_flush()
                (point,) = metrics_of(receiver.next().body)["c"].sum.data_points
                values.append(point.as_int)
            here.ending.pop()()
        assert values == [3, 3], wanted


@case("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION")
def aggregation(here: Here) -> None:
    with receiving("http/protobuf") as receiver:
        here.set(**{here.variable: "base2_exponential_bucket_histogram"})
        meter, _ = measured(here, receiver)
        meter.create_histogram("h", explicit_bucket_boundaries_advisory=[1]).record(2)
        here.ending.pop()()
        sent = metrics_of(receiver.next().body)["h"]
    assert sent.WhichOneof("data") == "exponential_histogram"


@case("OTEL_METRIC_EXPORT_INTERVAL")
def interval(here: Here) -> None:
    """In milliseconds; a minute by default."""
    with receiving("http/protobuf") as receiver:
        here.set(OTEL_METRIC_EXPORT_INTERVAL="50")
        meter, _ = measured(here, receiver)
        meter.create_counter("c").add(1)
        assert receiver.next().signal == "METRICS"
        here.ending.pop()()


@case("OTEL_METRIC_EXPORT_TIMEOUT")
def collecting(here: Here) -> None:
    """In milliseconds: what is read by callbacks must be read by then."""
    here.set(OTEL_METRIC_EXPORT_INTERVAL="50", OTEL_METRIC_EXPORT_TIMEOUT="10")
    with receiving("http/protobuf") as receiver:
        warned = warnings_of("opentelemetry.sdk.metrics", here)
        meter, _ = measured(here, receiver)
        slow = lambda _: time.sleep(AT_ONCE) or []  # noqa: E731
        for name in "gh":  # the SDK looks at the time before each
            meter.create_observable_gauge(name, [slow])
        while TEXTS["the SDK has no time left"] not in warned.get(timeout=AT_LAST):
            pass  # before it was registered, on a machine that does much else
        here.ending.pop()()


@case("OTEL_METRICS_EXEMPLAR_FILTER")
def exemplars(here: Here) -> None:
    with receiving("http/protobuf") as receiver:
        here.set(OTEL_METRICS_EXEMPLAR_FILTER="always_on")
        meter, _ = measured(here, receiver)
        meter.create_histogram("h").record(2)
        here.ending.pop()()
        (point,) = metrics_of(receiver.next().body)["h"].histogram.data_points
    assert len(point.exemplars) == 1


# Log records.


def warnings_of(name: str, here: Here) -> Any:
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    logger, handler = logging.getLogger(name), logging.Handler()
    handler.emit = lambda record: said.put(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    here.ending.append(lambda: logger.removeHandler(handler))
    return said


def logged(here: Here, receiver: OtlpReceiver) -> Callable[[], object]:
    from tracing_2pc.tracing.sdk import logs

    here.set(OTEL_LOGS_EXPORTER="otlp", **{BOTH: receiver.endpoint})
    root = logging.getLogger()
    before = list(root.handlers)
    stop = logs.start("job")

    def end() -> None:
        stop()
        root.handlers[:] = before

    here.ending.append(end)
    return end


@case(
    "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT",
)
def logrecord(here: Here) -> None:
    with receiving("http/protobuf") as receiver:
        here.set(**{here.variable: "1"})
        end = logged(here, receiver)
        with warnings.catch_warnings():  # the SDK's, that something is left out
            warnings.simplefilter("ignore")
            logging.getLogger("user").warning("x", extra={"mine": "long"})
        end()
        (record,) = log_records(receiver.next())
    found = {a.key: a.value.string_value for a in record.attributes}
    assert len(found) == 1 or found["mine"] == "l"


@case("OTEL_BLRP_SCHEDULE_DELAY")
def blrp_delay(here: Here) -> None:
    """In milliseconds; a second by default: beside it a shorter one has come twice."""
    with receiving("http/protobuf") as receiver:
        here.set(OTEL_BLRP_SCHEDULE_DELAY="600000")
        end = logged(here, receiver)
        here.set(OTEL_BLRP_SCHEDULE_DELAY="50")
        logged(here, receiver)
        for _ in range(2):
            logging.getLogger("user").warning("x")
            assert len(log_records(receiver.next())) == 1
        assert receiver.requests.empty()
        end()
        assert len(log_records(receiver.next())) == 2


@case("OTEL_BLRP_MAX_QUEUE_SIZE")
def blrp_queue(here: Here) -> None:
    here.set(OTEL_BLRP_MAX_QUEUE_SIZE="2", OTEL_BLRP_MAX_EXPORT_BATCH_SIZE="2")
    here.set(OTEL_BLRP_SCHEDULE_DELAY="600000")
    with receiving("http/protobuf") as receiver:
        end = logged(here, receiver)
        with receiver.holding():
            for _ in range(50):
                logging.getLogger("user").warning("x")
        end()
        count = 0
        while not receiver.requests.empty():
            count += len(log_records(receiver.next()))
    assert count < 50


@case("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE")
def blrp_batch(here: Here) -> None:
    with receiving("http/protobuf") as receiver:
        here.set(OTEL_BLRP_MAX_EXPORT_BATCH_SIZE="1")
        end = logged(here, receiver)
        for _ in range(3):
            logging.getLogger("user").warning("x")
        end()
        sizes = [len(log_records(receiver.next())) for _ in range(3)]
    assert sizes == [1, 1, 1]


# What is read when OpenTelemetry is imported.


OF_AN_IMPORT = {
    "OTEL_PROPAGATORS": (
        "from opentelemetry.propagate import get_global_textmap as all_\n"
        "say(sorted(all_().fields))",
        *("baggage", ["baggage"]),
    ),
    "OTEL_PYTHON_TRACER_PROVIDER": (
        "say([spans.is_set(), type(spans.provider()).__module__])",
        *("sdk_tracer_provider", [True, "opentelemetry.sdk.trace"]),
    ),
    "OTEL_PYTHON_METER_PROVIDER": (
        "from tracing_2pc.tracing import instruments\nsay(instruments._is_set())",
        *("sdk_meter_provider", True),
    ),
}


@case(*OF_AN_IMPORT)
def imported(here: Here) -> None:
    code, value, expected = OF_AN_IMPORT[here.variable]
    assert run(code, **{here.variable: value})[0] == expected


def test_a_propagator_that_is_not_installed():
    """It is named with its variable, and `traceparent` is sent: nothing else ends."""
    code = "import os\nfrom tracing_2pc.tracing.propagation import propagate\n"
    code += "fields = sorted(propagate.get_global_textmap().fields)\n"
    code += "say([*lifecycle.problems(), os.environ['OTEL_PROPAGATORS'], fields])"
    problem, kept, fields = run(code, OTEL_PROPAGATORS="baggage,b3")[0]
    assert re.search(TEXTS["no propagator"], problem)
    assert (kept, fields) == ("baggage,b3", ["traceparent", "tracestate"])


@case("OTEL_PYTHON_CONTEXT")
def context(here: Here) -> None:
    code = "from opentelemetry import context\n"
    code += "say(type(context._RUNTIME_CONTEXT).__module__)"
    here.install("opentelemetry_context", "class made:\n pass\n")
    told = {here.variable: "ours", "PYTHONPATH": f"{here.folder}{os.pathsep}{PATH}"}
    assert run(code, **told)[0] == "offered"


@case("OTEL_PYTHON_LOGGER_PROVIDER")
def logger_provider(here: Here) -> None:
    """The program's own: then we send no records beside it."""
    code = "import logging\nof_root = logging.getLogger().handlers\n"
    code += "say('_Handler' in [type(h).__name__ for h in of_root])"
    told = {"OTEL_LOGS_EXPORTER": "otlp"}
    assert run(code, **told)[0] is True
    told["OTEL_PYTHON_LOGGER_PROVIDER"] = "sdk_logger_provider"
    assert run(code, **told)[0] is False


# What is refused.


REFUSED = (
    "OTEL_CONFIG_FILE",
    "OTEL_LOG_LEVEL",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BLRP_EXPORT_TIMEOUT",
    "OTEL_PYTHON_ID_GENERATOR",
    "OTEL_EXPORTER_PROMETHEUS_HOST",
    "OTEL_EXPORTER_PROMETHEUS_PORT",
    "OTEL_PYTHON_TRACER_CONFIGURATOR",
    "OTEL_PYTHON_METER_CONFIGURATOR",
    "OTEL_PYTHON_LOGGER_CONFIGURATOR",
    "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED",
    "OTEL_PYTHON_LOGGING_AUTO_INSTRUMENTATION_ENABLED",
)


@case(*REFUSED)
def refused(here: Here) -> None:
    """One line of the log of each process, however often work begins."""
    warned = warnings_of("tracing_2pc.tracing.sdk.lifecycle", here)
    here.set(**{here.variable: "1"})
    here.patch.setattr(lifecycle._process, "has_looked", False)
    for _ in range(3):
        lifecycle.start("job")
    assert TEXTS["no effect"].format(name=here.variable) in warned.get()
    assert warned.empty()
