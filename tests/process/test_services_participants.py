"""The ledger and the notifier, each by its one command, with a partner behind."""

import io
import json
import time

import pyarrow as pa
import pytest
from support.branches import arrow, committing
from support.waiting import AT_LAST, PATIENT, UNDELAYED

from participants import oracle, processes
from participants.oracle import expected
from tracing_2pc.core.content import digest_of
from tracing_2pc.core.errors import ParticipantUnavailableError
from tracing_2pc.core.model import (
    BranchId,
    TransactionId,
    branch_receipts,
)
from tracing_2pc.http.client import HttpParticipant

TOKEN, VARIABLE = "a-token-of-the-job-0123456789", "TOKEN_OF_THE_JOB"


class World:
    """Three services that run, and the client of a coordinator."""

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
            "partner": {"PARTNER_DATABASE": f"{folder}/partner.db", **tokens},
            "notifier": {
                "NOTIFIER_DATABASE": f"sqlite:///{folder}/notifier.db",
                "PARTNER_URL": f"http://127.0.0.1:{ports[0]}/notifications",
                **tokens,
            },
        }
        self.services = {
            name: processes.Service(name, port, folder / f"{name}.log", environment)
            for port, (name, environment) in zip(ports, settings.items(), strict=False)
        }
        log = folder / "ledger.log"
        ledger = processes.Ledger(self.database, ports[2], log, tokens)
        self.services["ledger"] = ledger

    def participant(self, name, token=f"env:{VARIABLE}"):
        return HttpParticipant(name, self.services[name].url, token, AT_LAST)

    def prepare(self, name, batch, records):
        """Prepare one branch with these records; return the commit that names it."""
        body, branch = arrow(pa.Table.from_pylist(records)), BranchId(0, 1)
        id_, digest = TransactionId("flights", batch, 1), digest_of(body)
        about = {"rows": len(records), "length": len(body), "digest": digest}
        participant = self.participant(name)
        vote = participant.prepare(id_, branch, lambda: io.BytesIO(body), **about)
        receipts = branch_receipts(branch, len(records), digest, {name: vote})
        return committing(id_, *receipts)

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


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Services for all tests of this file; stopped at the end."""
    world = World(tmp_path_factory.mktemp("services"))
    with processes.stopping(*world.services.values()):
        yield world


@pytest.fixture
def world(started, monkeypatch):
    """All three are ready, also after a test that stopped them."""
    monkeypatch.setenv(VARIABLE, TOKEN)
    down = [s for s in started.services.values() if not s.alive()]
    processes.start_together(*down)
    return started


@pytest.mark.parametrize("token", [None, "env:ANOTHER"])
def test_without_a_token_nothing_is_answered(world, monkeypatch, token):
    """401 from both participants, whatever is asked."""
    monkeypatch.setenv("ANOTHER", "x" * 20)
    for name in ("ledger", "notifier"):
        with pytest.raises(ParticipantUnavailableError, match="401"):
            world.participant(name, token).prepared()


def test_only_what_is_committed_is_visible(world):
    """The ledger shows it, the partner hears of it once, and of no other day.

    Batches are told in their order: what was prepared before would have come before.
    """
    for batch, day in enumerate((1, 2)):
        for name, records in world.day(day).items():
            decided = world.prepare(name, batch, records)
            for _ in range(2 * (day == 2)):  # an answer may be lost
                world.participant(name).commit(decided)
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
