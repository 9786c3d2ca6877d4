"""The ledger and the notifier, each by its one command, with a partner behind."""

import http.client
import json
import signal
import time
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from participants import oracle, processes
from participants.oracle import expected
from tracing_2pc.core import content
from tracing_2pc.http import contract

TOKEN = "a-token-of-the-job-0123456789"


class World:
    """Three services that run, and a client that plays the coordinator."""

    def __init__(self, folder, database=None):
        ports = processes.free_ports(3)
        (folder / "tokens").write_text(f"job {TOKEN}\n")
        self.traces = folder / "traces"
        tokens = {
            "TPC_TOKENS_FILE": str(folder / "tokens"),
            "TPC_TRACE_FILE": str(self.traces),
        }
        self.database = database or f"sqlite:///{folder}/ledger.db"
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
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        common = {
            contract.VERSION_HEADER: contract.VERSION,
            contract.PARTICIPANT_HEADER: name,
        }
        named |= common | {"Content-Type": contract.JSON} | named
        if token:
            named["Authorization"] = f"Bearer {token}"
        try:
            connection.request("POST", path, body, named)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

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

    def judge(self, *days):
        partner = self.services["partner"].url
        return oracle.judge(self.database, partner, days, timeout=30)


def as_arrow(records):
    """Return records as a Spark job sends them: one Arrow stream."""
    table = pa.Table.from_pylist(records)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def check_two_days(world):
    """Commit two days everywhere, each twice, and judge."""
    for batch, day in enumerate((1, 2)):
        for name, records in world.day(day).items():
            branch = world.prepare(name, batch, records)
            assert world.commit(name, batch, branch) == 200
            assert world.commit(name, batch, branch) == 200
    verdict = world.judge(1, 2)
    assert verdict.good, list(verdict.lines())


@pytest.fixture
def world(tmp_path):
    """All three are ready; they are stopped at the end."""
    world = World(tmp_path)
    with processes.stopping(*world.services.values()):
        processes.start_together(*world.services.values())
        yield world


def test_without_a_token_nothing_is_answered(world):
    """401 from both participants, whatever is asked."""
    for name in ("ledger", "notifier"):
        assert world.call(name, "/commit", b"{}", token=None)[0] == 401
        assert world.call(name, "/prepare", b"", token="x" * 20)[0] == 401


def test_they_end_on_sigterm_within_seconds(world):
    """Each exits 0 by itself, with rows prepared and a connection once used."""
    for name, records in world.day(1).items():
        world.prepare(name, 0, records)
    for service in world.services.values():
        started = time.monotonic()
        assert service.stop() == 0, service.tail()
        assert time.monotonic() - started < 5
    spans = [json.loads(line) for line in world.traces.read_text().splitlines()]
    prepared = {span["service"] for span in spans if span["name"] == "POST /prepare"}
    assert prepared == {"ledger", "notifier"}, "telemetry was started and flushed"


def test_two_days_arrive_once_at_both(world):
    """Prepared and committed rows are what the oracle expects, also after repeats."""
    check_two_days(world)


def test_the_ledger_works_in_postgresql_too(tmp_path, postgres_database):
    """The same two days, by the URL that the demo gives it."""
    url = postgres_database.replace("postgresql:", "postgresql+psycopg:")
    world = World(tmp_path, url)
    with processes.stopping(*world.services.values()):
        processes.start_together(*world.services.values())
        check_two_days(world)


def test_what_is_prepared_is_visible_to_nobody(world):
    """Before the decision the ledger shows nothing and the partner hears nothing."""
    for name, records in world.day(1).items():
        world.prepare(name, 0, records)
    verdict = oracle.judge(
        world.database, world.services["partner"].url, (1,), timeout=2, stall=1
    )
    assert (verdict.ledger_rows, verdict.requests) == (0, 0)


def test_a_partner_that_fails_is_told_again(world):
    """An answer is lost, another is bad; every flight arrives once all the same."""
    for batch, (day, fault) in enumerate([(1, "drop"), (2, "error")]):
        plan = json.dumps({"fault": fault, "times": 1}).encode()
        assert world.call("partner", "/faults", plan)[0] == 200
        for name, records in world.day(day).items():
            assert world.commit(name, batch, world.prepare(name, batch, records)) == 200
        verdict = world.judge(*range(1, day + 1))
        assert verdict.good, list(verdict.lines())
        assert verdict.requests == verdict.deliveries + day


def test_a_participant_killed_before_commit_still_holds_its_vote(tmp_path):
    """Killed at its failpoint and restarted, each commits what it had prepared."""
    point = "participant.before_commit"
    world = World(tmp_path)
    with processes.stopping(*world.services.values()):
        for name, service in world.services.items():
            file = str(tmp_path / f"{name}.failpoint")
            service.launch(TPC_FAILPOINT=point, TPC_FAILPOINT_FILE=file)
        for service in world.services.values():
            service.ready()
        for name, records in world.day(1).items():
            branch = world.prepare(name, 0, records)
            with pytest.raises((OSError, http.client.HTTPException)):
                world.commit(name, 0, branch)
            assert world.services[name].wait(120) == -signal.SIGKILL
            assert (tmp_path / f"{name}.failpoint").read_text() == point
            world.services[name].restart()
            assert world.commit(name, 0, branch) == 200
        verdict = world.judge(1)
        assert verdict.good, list(verdict.lines())
