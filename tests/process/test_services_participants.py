"""The ledger and the notifier, each by its one command, with a partner behind."""

import contextlib
import http.client
import json
import time
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from support.waiting import AT_LAST, PATIENT, UNDELAYED

from participants import oracle, processes
from participants.oracle import expected
from tracing_2pc.core import content
from tracing_2pc.http import contract

TOKEN = "a-token-of-the-job-0123456789"


class World:
    """Three services that run, and a client that plays the coordinator."""

    def __init__(self, folder):
        ports, limit = processes.free_ports(3), int(PATIENT)
        (folder / "tokens").write_text(f"job {TOKEN}\n")
        self.traces = folder / "traces"
        tokens = {
            "TPC_TOKENS_FILE": str(folder / "tokens"),
            "TPC_TRACE_FILE": str(self.traces),
            # What is not ended when it should be, is seen: these would wait for it.
            "GUNICORN_CMD_ARGS": f"--graceful-timeout {limit} --keep-alive {limit}",
        }
        self.database = f"sqlite:///{folder}/ledger.db"
        settings = {
            "partner": {"PARTNER_DATABASE": f"{folder}/partner.db"},
            "ledger": {"LEDGER_DATABASE": self.database, **tokens},
            "notifier": {
                "NOTIFIER_DATABASE": f"sqlite:///{folder}/notifier.db",
                "PARTNER_URL": f"http://127.0.0.1:{ports[0]}/notifications",
                **tokens,
            },
        }
        self.services = {
            name: processes.Service(name, port, folder / f"{name}.log", environment)
            for port, (name, environment) in zip(ports, settings.items(), strict=True)
        }

    def call(self, name, path, body=b"", token=TOKEN, **headers):
        """POST to a service; return status and body."""
        parts = urlsplit(self.services[name].url)
        connection = http.client.HTTPConnection(
            parts.hostname, parts.port, timeout=AT_LAST
        )
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        common = {
            contract.VERSION_HEADER: contract.VERSION,
            contract.PARTICIPANT_HEADER: name,
        }
        named |= common | {"Content-Type": contract.JSON} | named
        if token:
            named["Authorization"] = f"Bearer {token}"
        with contextlib.closing(connection):
            connection.request("POST", path, body, named)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def prepare(self, name, batch, records):
        """Prepare one branch with these records; return what commit must name."""
        body = as_arrow(records)
        branch = {
            "branch": "0.1",
            "rows": len(records),
            "digest": content.digest_of(body),
        }
        headers = {
            contract.TRANSACTION_HEADER: f"flights.{batch}.1",
            contract.BRANCH_HEADER: "0.1",
            contract.ROWS_HEADER: str(len(records)),
            contract.DIGEST_HEADER: branch["digest"],
            "Content-Type": content.ARROW,
        }
        status, answer = self.call(name, "/prepare", body, **headers)
        assert status == 200, answer
        return branch

    def commit(self, name, batch, branch):
        """Commit one branch; return the status."""
        body = {"transaction_id": f"flights.{batch}.1", "branches": [branch]}
        body["forgotten_through"] = None
        return self.call(name, "/commit", json.dumps(body).encode())[0]

    def day(self, day):
        """Return what the job would write of one day, by service."""
        source = expected.read_day(f"2013-01-{day:02}")
        sums = ("flights", "cancelled", "dep_delay_sum", "arr_delay_sum")
        told = ("origin", "dest", "sched_dep_time", "reason", "arr_delay")
        return {
            "ledger": [
                dict(zip(("day", "origin", "carrier", *sums), (*k, *v), strict=True))
                for k, v in expected.expected_sums(source).items()
            ],
            "notifier": [
                dict(zip(("day", "carrier", "flight", *told), (*k, *v), strict=True))
                for k, v in expected.expected_notices(source).items()
            ],
        }


def as_arrow(records):
    """Return records as a Spark job sends them: one Arrow stream."""
    table = pa.Table.from_pylist(records)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Services for all tests of this file; stopped at the end."""
    world = World(tmp_path_factory.mktemp("services"))
    with processes.stopping(*world.services.values()):
        yield world


@pytest.fixture
def world(started):
    """All three are ready, also after a test that stopped them."""
    down = [s for s in started.services.values() if not s.alive()]
    processes.start_together(*down)
    return started


def test_without_a_token_nothing_is_answered(world):
    """401 from both participants, whatever is asked."""
    for name in ("ledger", "notifier"):
        assert world.call(name, "/commit", b"{}", token=None)[0] == 401
        assert world.call(name, "/prepare", b"", token="x" * 20)[0] == 401


def test_only_what_is_committed_is_visible(world):
    """The ledger shows it, the partner hears of it once, and of no other day.

    Batches are told in their order: what was prepared before would have come before.
    """
    for batch, day in enumerate((1, 2)):
        for name, records in world.day(day).items():
            branch = world.prepare(name, batch, records)
            for _ in range(2 * (day == 2)):  # an answer may be lost
                assert world.commit(name, batch, branch) == 200
    verdict = oracle.judge(
        world.database,
        world.services["partner"].url,
        [2],
        timeout=AT_LAST,
        stall=AT_LAST,
    )
    assert verdict.good, list(verdict.lines())
    assert verdict.requests == verdict.deliveries > 0


def test_they_end_on_sigterm_without_a_wait(world):
    """Each exits 0 by itself, with rows prepared and a connection once used."""
    for name, records in world.day(3).items():
        world.prepare(name, 2, records)
    for service in world.services.values():
        started = time.monotonic()
        assert service.stop(AT_LAST) == 0, service.tail()
        assert time.monotonic() - started < UNDELAYED
    spans = [json.loads(line) for line in world.traces.read_text().splitlines()]
    prepared = {span["service"] for span in spans if span["name"] == "POST /prepare"}
    assert prepared == {"ledger", "notifier"}, "telemetry was started and flushed"
