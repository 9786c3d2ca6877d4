"""From a POST, and from a queue, to a ledger and the outgoing queue: once each."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from backends.backend import Backend, Span
from crash.deaths import variables
from support.activemq import Broker
from support.branches import TRACE
from support.brokers import NEEDS_ACTIVEMQ
from support.waiting import ANSWERED, AT_LAST, until

from participants.processes import (
    Ledger,
    Process,
    Served,
    Service,
    free_ports,
    start_together,
    stopping,
)
from tracing_2pc.core.settings import Settings
from tracing_2pc.operations.init import init

pytestmark = [
    pytest.mark.broker,
    pytest.mark.ci,
    pytest.mark.spark,
    NEEDS_ACTIVEMQ,
]
TOKEN = "shop-token-0123456789"


class Pipeline(NamedTuple):
    """Its processes, and where its events go."""

    gateway: Service
    ledger: Service
    notifier: Service
    intake: Process
    job: Process
    ledger_database: str
    queue: str


@pytest.fixture
def pipeline(activemq: Broker, backend: Backend, tmp_path: Path) -> Iterator[Pipeline]:
    tokens, logs = tmp_path / "tokens", tmp_path / "logs"
    list(
        init(
            tmp_path / "tpc.toml", Settings(log=f"sqlite:///{tmp_path}/log.db"), tokens
        )
    )
    token_of = dict(line.split() for line in tokens.read_text().splitlines()[1:])
    with tokens.open("a") as file:
        file.write(f"producer {TOKEN} shop\n")
    ports, queue = free_ports(3), activemq.topic()
    ledger_database = f"sqlite:///{tmp_path}/ledger.db"
    common = {
        "TPC_TOKENS_FILE": str(tokens),
        "OTEL_EXPORTER_OTLP_ENDPOINT": backend.endpoint,
        "INBOX_DATABASE": f"sqlite:///{tmp_path}/inbox.db",
    }
    outbox = f"outbox=sqlite:///{tmp_path}/notifier.db"
    address = f"activemq://{activemq.place}/{queue}?{outbox}"
    gateway = Service("gateway", ports[0], logs / "gateway.log", common)
    notifier = Served("notifier", address, ports[1], logs / "notifier.log", common)
    ledger = Ledger(ledger_database, ports[2], logs / "ledger.log", common, "events")
    took = {"ACTIVEMQ": activemq.place, "QUEUE": f"{queue}-in", "EVENT_ID": "order"}
    python = [sys.executable, "-m"]
    intake = Process(
        "intake", [*python, "participants.intake"], logs / "in", {**common, **took}
    )
    about = [*python, "participants.pipeline", str(tmp_path), ledger.url, notifier.url]
    job = Process("job", about, logs / "job", {"TPC_TOKEN": token_of["job"], **common})
    with stopping(gateway, ledger, notifier, intake, job):
        start_together(gateway, ledger, notifier)
        intake.start()
        yield Pipeline(gateway, ledger, notifier, intake, job, ledger_database, queue)


def post(gateway: Service, event: dict[str, Any]) -> int:
    address = gateway.url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=ANSWERED)
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Content-Type": "application/json",
        **TRACE,
    }
    connection.request("POST", "/events", json.dumps(event), headers)
    status = connection.getresponse().status
    connection.close()
    return status


def spans(backend: Backend, trace_id: str, *names: str) -> list[Span]:
    """Return the first span of each name of a trace, when all have come."""

    def found() -> list[Span]:
        trace = backend.trace(trace_id) if backend.services() else []
        return [next((s for s in trace if s["name"] == n), {}) for n in names]

    return until(found, all)


def test_each_event_is_applied_once(
    activemq: Broker, backend: Backend, pipeline: Pipeline, tmp_path: Path
) -> None:
    """Through a job that is killed after its decision; by both doors.

    And one trace leads from the POST to the header of the outgoing message.
    """
    assert post(pipeline.gateway, {"id": "order 1", "payload": {"amount": 3}}) == 202
    activemq.send(f"{pipeline.queue}-in", "4", order="order 2")
    fired = tmp_path / "fired"
    pipeline.job.start(**variables("driver.after_decide", fired))
    pipeline.job.wait(AT_LAST)
    assert fired.exists()
    pipeline.job.start()
    seen = until(lambda: activemq.read(pipeline.queue), lambda some: len(some) >= 2)
    messages = {json.loads(one.value)["id"]: json.loads(one.value) for one in seen}
    assert len(seen) == len(messages) == 2
    assert json.loads(messages["order 1"]["body"]) == {"amount": 3}
    assert messages["order 2"]["producer"] == f"{pipeline.queue}-in"
    engine = sa.create_engine(pipeline.ledger_database)
    with engine.connect() as connection:
        found = connection.execute(sa.text("SELECT id, processed_at FROM events")).all()
    engine.dispose()
    assert sorted(row.id for row in found) == ["order 1", "order 2"]
    (of,) = {one.headers["traceparent"].split("-")[1] for one in seen}
    posted = TRACE["traceparent"][3:35]
    root, told = spans(backend, of, "tpc.transaction", "tpc.outbox.send")
    (post_span,) = spans(backend, posted, "POST /events")
    assert [link["trace_id"] for link in root["links"]] == [posted]
    assert (post_span["service"], told["service"]) == ("gateway", "notifier")
