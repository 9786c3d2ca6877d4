"""The unchanged compose file comes up, and keeps what it promises through a death."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from backends.jaeger import Jaeger
from support.activemq import connected
from support.waiting import AT_LAST, until

from containers.engine import Engine, build, engine
from containers.files import ENGINE, ONCE, services
from containers.running import DAYS, PROFILES, Stack, stack

SWITCH = "TPC_COMPOSE"
pytestmark = [
    pytest.mark.compose,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not (os.environ.get(SWITCH) and (ENGINE / "base").exists()),
        reason="containers are started by `make test-compose`, as root on Debian",
    ),
]
TRACE = (
    """query($i: ID!){ queryTrace(traceId: $i){ spans{ serviceCode endpointName } } }"""
)
ASK = """
import json, sys, urllib.request as r
body = json.dumps({"query": sys.argv[1], "variables": {"i": sys.argv[2]}}).encode()
q = r.Request("http://oap:12800/graphql", body, {"Content-Type": "application/json"})
print(r.urlopen(q, timeout=AT_LAST).read().decode())
"""


SOURCE = """
import os, pathlib
from tracing_2pc._participants import flights, job
from tracing_2pc.spark.data_source import TwoPhaseCommitDataSource

spark = job.session()
spark.dataSource.register(TwoPhaseCommitDataSource)
state, where = pathlib.Path("/srv/state"), {"participants": "ledger=http://ledger:8081"}
days = spark.read.schema(flights.SCHEMA).options(header=True).csv(f"{state}/in")
rows = flights.to_ledger(days)
rows.write.format("two_phase_commit").mode("append").options(
    application="frame", **where).save()
(state / "rows").mkdir()
(state / "rows" / "1.json").write_text("\\n".join(rows.toJSON().collect()))
stream = spark.readStream.schema(rows.schema).json(f"{state}/rows")
(stream.writeStream.format("two_phase_commit").options(
    application="stream", checkpointLocation=f"{state}/stream", **where)
    .trigger(availableNow=True).start().awaitTermination())
"""
"""Both ways of the data source, in the place of the job, on the master and worker."""
COUNT = """
import os, psycopg
url = os.environ["TPC_PARTICIPANTS"].partition("=")[2].partition("?")[0]
with psycopg.connect(url) as server:
    sums = server.execute("SELECT count(*), sum(flights) FROM flights_daily")
    print(*sums.fetchone())
"""


class Story(NamedTuple):
    """What was seen while services and the worker were killed, and after that."""

    stuck: str
    trace: str
    firing: list[str]
    snapshots: set[str]
    skywalking: set[str]
    killed: str
    resolved: list[str]
    worker: str


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Engine]:
    scratch, folder = (tmp_path_factory.mktemp(name) for name in ("images", "engine"))
    with engine(folder) as made:
        build(made, scratch)
        yield made


@pytest.fixture(scope="module")
def site(running) -> Iterator[Stack]:
    with stack(running) as made:
        yield made


@pytest.fixture
def beside(running, request) -> Iterator[Stack]:
    """Some services of a profile, and what they need, in a project of their own."""
    profile, *wanted = request.param
    told = {
        "COMPOSE_PROJECT_NAME": f"tracing-2pc-{profile}",
        "COMPOSE_ENV_FILES": f".env,compose/{profile}.env",
        "COMPOSE_PROFILES": profile,
        "TRACES_EXPORTER": "none",
    }
    with stack(running, *wanted, **told) as made:
        yield made


@pytest.fixture(scope="module")
def story(site) -> Story:
    """The ledger stops before a commit; notifier and worker are killed; all return."""
    until(lambda: site.in_state("committed"))
    site.compose(
        "up", "--detach", "--pull", "never", "--no-build", "--no-deps", "ledger",
        STOP_LEDGER_AT="participant.before_commit",
    )  # fmt: skip
    began = time.monotonic()
    warned = "warning firing TpcTransactionStuck ledger"
    firing = until(lambda: site.called(warned))
    tell(f"the webhook was called after {time.monotonic() - began:.0f} s")
    (stuck,) = site.in_state("committing")
    jaeger = Jaeger(0, site.port("JAEGER"), 0)
    search = {"service": "tracing-2pc-watch", "operation": "tpc.in_doubt.snapshot"}
    snapshots = until(lambda: jaeger.found(**search, lookback="1h"))
    trace = trace_of(site, stuck)
    skywalking = until(lambda: in_skywalking(site, trace), lambda s: "notifier" in s)
    site.compose("kill", "notifier")
    killed = site.containers()["notifier"]["State"]
    site.compose("start", "notifier")
    site.compose("kill", "spark-worker")
    worker = site.containers()["spark-worker"]["State"]
    site.compose("restart", "ledger")  # as the README says
    began = time.monotonic()
    over = warned.replace("firing", "resolved")
    resolved = until(lambda: site.called(over))
    tell(f"it was told that it is over after {time.monotonic() - began:.0f} s")
    site.compose("start", "spark-worker")
    return Story(stuck, trace, firing, snapshots, skywalking, killed, resolved, worker)


def tell(line: str) -> None:
    """Say it to whoever looks (`-s`)."""
    sys.stdout.write(f"  {line}\n")
    sys.stdout.flush()


def trace_of(site: Stack, transaction: str) -> str:
    """Return the id of a transaction's trace."""
    told = site.operator("show", transaction, "--json")
    return str(json.loads(told)["trace"])


def in_skywalking(site: Stack, trace: str) -> set[str]:
    """Return the services of which SkyWalking has spans in a trace."""
    answer = json.loads(site.inside("console", "python", "-c", ASK, TRACE, trace))
    return {span["serviceCode"] for span in answer["data"]["queryTrace"]["spans"]}


@pytest.mark.parametrize(
    "beside", [("ingest", "gateway", "intake", "pipeline")], indirect=True
)
def test_events_come_in_by_both_doors(beside):
    """What is posted, and what is sent to a queue, is in a table and another queue."""
    token = beside.inside("gateway", "cat", "/srv/ours/producer.token")
    posted = urllib.request.Request(
        f"{beside.url('GATEWAY')}/events",
        json.dumps({"id": "posted", "payload": 1}).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(posted, timeout=AT_LAST) as said:
        assert said.status == 202
    headers = {"persistent": "true", "order-id": "sent"}
    with connected(beside.port("ACTIVEMQ")) as sender:
        sender.send("event-queue-in", "2", headers, "0")

    def left() -> dict[str, str]:
        with connected(beside.port("ACTIVEMQ")) as reader:
            found = [
                json.loads(frame.body) for frame in reader.browse("event-queue-out")
            ]
        return {one["id"]: one["body"] for one in found}

    assert until(left, lambda some: len(some) == 2) == {"posted": "1", "sent": "2"}
    asked = ("psql", "-U", "postgres", "-Atc", "SELECT id, body FROM events", "events")
    rows = beside.inside("postgres", *asked).split()
    assert sorted(rows) == ["posted|1", "sent|2"]


@pytest.mark.parametrize("beside", [("kafka", "job", "console")], indirect=True)
def test_the_notifier_publishes_to_a_topic(beside):
    """The oracle finds there what the ledger has."""
    until(lambda: len(beside.in_state("committed")), lambda n: n == DAYS)
    assert beside.oracle() == {"0"}


def test_everything_comes_up(site):
    """Each is healthy, or has done its work; nobody was started twice."""
    found = site.containers()
    chosen = set(PROFILES.split(","))
    wanted = {
        n for n, s in services().items() if chosen.issuperset(s.get("profiles", ()))
    }
    assert found.keys() == wanted
    for name, container in found.items():
        assert container["ExitCode"] == 0, name
        if name in ONCE:
            assert container["State"] == "exited", name
        else:
            assert container["Health"] == "healthy", name


def test_the_console_lists_where_to_look(site):
    """It answers at its published port, and wants a token before it shows anything."""
    with urllib.request.urlopen(site.url("CONSOLE"), timeout=AT_LAST) as page:
        assert "/login" in page.url
    told = site.inside("console", "printenv", "TPC_LINKS")
    for name in ("JAEGER", "SKYWALKING", "GRAFANA", "PROMETHEUS", "SPARK"):
        assert site.url(name) in told


def test_prometheus_scrapes_everybody(site):
    """With its token, by names of this network."""

    def down() -> list[str]:
        with urllib.request.urlopen(f"{site.url('PROMETHEUS')}/api/v1/targets") as said:
            targets = json.load(said)["data"]["activeTargets"]
        assert len(targets) == 4
        return [t["scrapeUrl"] + t["lastError"] for t in targets if t["health"] != "up"]

    assert until(down, lambda bad: not bad) == []


def test_a_stuck_transaction_is_seen_by_all(story):
    """The alert reaches the webhook; Jaeger and SkyWalking show where it stands."""
    assert len(story.firing) == 1
    assert story.snapshots == {story.trace}
    assert {"flights", "ledger", "notifier"} <= story.skywalking


def test_killed_participants_come_back(site, story):
    """One container was killed, one restarted; what was decided is finished."""
    assert story.killed == "exited"
    assert len(story.resolved) == 1
    until(lambda: story.stuck in site.in_state("committed"))


def test_the_oracle_holds(site, story):
    """All days are there, once, in both services; the work was the cluster's.

    Its only worker was killed under the job, which waits for it and is not restarted.
    """
    assert story.worker == "exited"
    until(lambda: len(site.in_state("committed")), lambda n: n == DAYS)
    assert site.in_state("committing") == []
    assert site.oracle() == {"0"}
    with urllib.request.urlopen(f"{site.url('SPARK_MASTER')}/json/") as said:
        assert [app["name"] for app in json.load(said)["activeapps"]] == ["flights"]
    assert site.restarts("job") == 0


@pytest.mark.usefixtures("story")
def test_the_data_source_writes_to_the_same_services(site):
    """A stream and a DataFrame each land once, written by the cluster's tasks."""
    before = site.inside("ledger", "python", "-c", COUNT).split()
    site.compose("stop", "job")
    site.compose(
        *("run", "--rm", "--no-deps", "--use-aliases", "--entrypoint", "python"),
        *("job", "-c", SOURCE),
    )
    after = site.inside("ledger", "python", "-c", COUNT).split()
    assert [int(n) for n in after] == [3 * int(n) for n in before] != [0, 0]
    assert {"frame.0.1", "stream.0.1"} <= set(site.in_state("committed"))
