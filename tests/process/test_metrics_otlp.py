"""Metrics by OTLP: sent where they are asked for, and nobody waits for them.

Each test runs a program of its own, as those of `lifecycle` do.
"""

from __future__ import annotations

import pytest
from support.exporting import AT_ITS_END, AT_LEISURE, MISSING, WARNED, to
from support.otlp_receiver import receiving, sent
from support.telemetry import DEAD, PRELUDE, TASK_TO_RUN, dead, program, run
from support.texts import texts
from support.waiting import PATIENT, UNDELAYED

from tracing_2pc.core import names

pytestmark = pytest.mark.ci

PROTOCOLS = ("http/protobuf", "grpc")
ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
BOTH = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"
COMMITS = 'tpc.transactions{outcome="commit"}'
TEXTS = texts("process")

MEASURING = f"""{PRELUDE}{WARNED}
from tracing_2pc.tracing import instruments
def commit(count=1):
    instruments.add("tpc.transactions", {{"outcome": "commit"}}, count)
"""
STARTED = 'instruments.start("job")\n'
START = MEASURING + AT_LEISURE + STARTED


def where(protocol: str, endpoint: str) -> dict[str, str]:
    path = "/v1/metrics" if protocol == "http/protobuf" else ""
    return to("", **{ENDPOINT: endpoint + path, PROTOCOL: protocol})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_was_measured_is_sent_at_exit(protocol):
    """Under the names and units of the registry, cumulative, by a named service."""
    code = """
commit(2)
instruments.record("tpc.decision_log.write", None, 0.01)
instruments.observe("tpc.outbox.backlog", lambda: [(7, {})])
say(warned)
"""
    with receiving(protocol) as receiver:
        said, _ = run(code, start=START, **where(protocol, receiver.endpoint))
        (found,) = sent(receiver.all())
    assert (said, found.service) == ([], "job")
    assert found.samples[COMMITS] == 2
    assert found.samples["tpc.decision_log.write_count"] == 1
    assert found.samples["tpc.outbox.backlog"] == 7
    assert found.samples['tpc.telemetry.dropped{signal="traces"}'] == 0
    assert found.units == {name: names.METRICS[name].unit for name in found.units}


def test_a_job_measures_its_participants_without_a_service(tmp_path):
    """By their names, as the job: also where it sends what an outbox holds."""
    shop = f"sqlite:///{tmp_path}/shop.db"
    (tmp_path / "shop.py").write_text(f"""
from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.outbox import Outbox
notices = Outbox("{shop}", HttpPartner("http://127.0.0.1:9"))
""")
    code = f"""
sys.path.insert(0, "{tmp_path}")
from tracing_2pc import ParticipantSink
from tracing_2pc.spark import two_phase_commit
sink = ParticipantSink({{"notices": "python:shop:notices"}})
job = two_phase_commit(sink, application="orders", log="sqlite:///{tmp_path}/log.db")
say(warned)
"""
    with receiving("http/protobuf") as receiver:
        said, _ = run(code, start=MEASURING + AT_LEISURE, **{BOTH: receiver.endpoint})
        (found,) = sent(receiver.all())
    assert (said, found.service) == ([], "orders")
    assert found.samples['tpc.outbox.backlog{participant="notices"}'] == 0


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({BOTH: "{}"}, 1),
        ({BOTH: "{}", "OTEL_METRICS_EXPORTER": "prometheus, otlp"}, 1),
        ({BOTH: "{}", "OTEL_METRICS_EXPORTER": "none"}, 0),
        ({BOTH: "{}", "OTEL_SDK_DISABLED": "true"}, 0),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "{}"}, 0),
    ],
)
def test_it_is_sent_where_it_was_asked_for(environment, expected):
    with receiving("http/protobuf") as receiver:
        told = {k: v.format(receiver.endpoint) for k, v in environment.items()}
        run("commit()\nsay(0)", start=START, **told)
        assert len(sent(receiver.all())) == expected


def test_nothing_is_loaded_unless_asked_for():
    """Who is not asked to measure pays for no SDK, and may count all the same."""
    said, _ = run(
        "commit()\ninstruments.observe('tpc.outbox.backlog', lambda: [(7, {})])\n"
        "loaded = [m for m in sys.modules if m.startswith('opentelemetry.sdk')]\n"
        "say([instruments.exposition(), loaded, warned])",
        start=START,
    )
    assert said == ["", [], []]


@pytest.mark.parametrize("how", DEAD)
@pytest.mark.parametrize(
    "protocol", ["http/protobuf", pytest.param("grpc", marks=pytest.mark.ci)]
)
def test_a_dead_collector_does_not_hold_up_the_exit(how, protocol):
    """Traces and metrics wait at the same time, for one bound."""
    with dead(how) as endpoint:
        told = to(endpoint, **{PROTOCOL: protocol})
        code = 'lifecycle.start("job")\nmade()\ncommit()\nsay(0)'
        _, seconds = run(code, start=MEASURING + AT_ITS_END + STARTED, **told)
    assert seconds < UNDELAYED


@pytest.mark.parametrize("status", [404, 501])
def test_a_collector_that_takes_traces_only(status, tmp_path):
    """One line in the log, however often it is asked, and spans go on."""
    code = f"""
from support.waiting import until
lifecycle.start("job")
commit(); made()
until(lambda: os.path.exists(os.environ["GO_ON"]))
say([warned, lifecycle.flush({PATIENT}), lifecycle.dropped()])
"""
    go_on = tmp_path / "go-on"
    with receiving("http/protobuf") as receiver:
        receiver.statuses["METRICS"] = status
        told = {BOTH: receiver.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "50"}
        with program(code, start=START, GO_ON=str(go_on), **told) as running:
            asked = 0
            while asked < 4:
                asked += receiver.next().signal == "METRICS"
            go_on.touch()
            (warning,), *spans = running.said()
    assert TEXTS["metrics are not delivered"] in warning
    assert spans == [True, 0]


def test_a_forked_worker_counts_and_sends_for_itself():
    """What its parent had counted is the parent's to report; nobody does it twice."""
    code = """
commit(5)
if os.fork() == 0:
    before = instruments.exposition()
    instruments.start("job")
    commit(2)
    sys.exit()
os.wait()
say(0)
"""
    with receiving("http/protobuf") as receiver:
        run(code, start=START, **where("http/protobuf", receiver.endpoint))
        found = sorted(one.samples[COMMITS] for one in sent(receiver.all()))
    assert found == [2, 5]


def test_a_fork_that_measures_nothing_sends_nothing():
    """Its copy of a reader that came along is silent, and asks no callback."""
    code = """
read, write = os.pipe()
instruments.observe("tpc.outbox.backlog", lambda: os.write(write, b"x") and [(1, {})])
provider, _ = instruments._process.exporting
commit()
if os.fork() == 0:
    provider.force_flush()
    os.write(write, b".")
    os._exit(0)
os.wait()
say(os.read(read, 100).decode())
"""
    with receiving("http/protobuf") as receiver:
        said, _ = run(code, start=START, **where("http/protobuf", receiver.endpoint))
        assert len(sent(receiver.all())) == 1
    assert said == "."


TASK = f"""{TASK_TO_RUN}
job.task(Rows(), record, 0, 0)
say([spans.is_set(), instruments.exposition()])
"""


@pytest.mark.ci
def test_a_task_measures_nothing():
    """A series for each of Spark's Python workers would be noise; they only trace."""
    with receiving("http/protobuf") as receiver:
        said, _ = run(TASK, start=MEASURING, **{BOTH: receiver.endpoint})
        assert (said, sent(receiver.all())) == ([True, ""], [])


@pytest.mark.parametrize(
    ("missing", "protocol", "cure"),
    [
        ("opentelemetry.exporter.otlp.proto.http", "http/protobuf", "otlp"),
        ("opentelemetry.exporter.otlp.proto.grpc", "grpc", "skywalking"),
        ("opentelemetry.sdk.metrics", "grpc", "skywalking"),
    ],
)
def test_a_library_that_is_missing_is_named_once(missing, protocol, cure):
    """With the extra to install; what is counted goes nowhere, and harms nobody."""
    code = f"""{MISSING}
for _ in range(10):
    instruments.start("job")
    commit()
say(warned)
"""
    said, _ = run(
        code, start=MEASURING, MISSING=missing, **where(protocol, "http://127.0.0.1:9")
    )
    assert said == [TEXTS["an extra is missing for metrics"].format(extra=cure)]


def test_a_protocol_that_there_is_not_is_named():
    said, _ = run(
        "say(warned)", start=START, **where("http/json", "http://127.0.0.1:9")
    )
    (warning,) = said
    assert TEXTS["not one of"].format(name=PROTOCOL, value="http/json") in warning
