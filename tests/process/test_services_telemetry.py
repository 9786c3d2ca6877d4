"""gunicorn's workers trace, each for itself; a dead collector keeps none of them."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.exporting import AT_ITS_END, importable, to
from support.telemetry import DEAD, dead
from support.texts import texts
from support.waiting import AT_LAST, PATIENT, UNDELAYED

from participants.processes import Ledger, Service, answers, free_ports, stopping
from tracing_2pc.testing import Collector, read_trace_file

TOKEN = "a-token-for-who-looks"
pytestmark = pytest.mark.ci
TEXTS = texts("process")


@contextlib.contextmanager
def ledger(
    folder: Path, endpoint: str, live: str = "", **environment: str
) -> Iterator[Service]:
    """Run the ledger, by `tracing-2pc serve`, until it is ready.

    With `live` until that route answers.
    """
    (port,) = free_ports(1)
    tokens = folder / "tokens"
    tokens.write_text(f"viewer {TOKEN}\n")
    tokens.chmod(0o600)
    told = {
        "TPC_TOKENS_FILE": str(tokens),
        "GUNICORN_CMD_ARGS": f"--graceful-timeout {PATIENT:g}",
        **to(endpoint, **environment),
    }
    database, log = f"sqlite:///{folder / 'ledger.db'}", folder / "ledger.log"
    service = Ledger(database, port, log, told)
    with stopping(service):
        service.launch()
        if live:
            service.until_answers(f"{service.url}{live}", AT_LAST)
        else:
            service.ready()
        yield service


def workers(service: Service) -> list[psutil.Process]:
    return psutil.Process(service.pid).children()


def ask(service: Service, transaction: str) -> int:
    """Ask what it holds of a transaction, on a connection of its own."""
    host = service.url.removeprefix("http://")
    headers = {"Authorization": f"Bearer {TOKEN}", "Connection": "close"}
    connection = http.client.HTTPConnection(host, timeout=AT_LAST)
    with contextlib.closing(connection):
        connection.request("GET", f"/transactions/{transaction}", headers=headers)
        return connection.getresponse().status


@contextlib.contextmanager
def paused(worker: psutil.Process) -> Iterator[None]:
    """Let the others do the work."""
    worker.suspend()
    try:
        yield
    finally:
        worker.resume()


def test_each_worker_sends_its_own_spans(tmp_path):
    """Started after the fork, at a worker's first request: nobody's are missing."""
    with (
        Collector() as collector,
        ledger(tmp_path, collector.endpoint, WEB_CONCURRENCY="2") as service,
    ):
        one, other = workers(service)
        for batch, idle in enumerate((one, other)):
            with paused(idle):
                assert ask(service, f"orders.{batch}.1") == 404
        spans = collector.wait_for(lambda spans: len(spans) >= 2)
        assert collector.connections == 2
    sent = {span["attributes"]["tpc.transaction.id"]: span for span in spans}
    assert sent.keys() == {"orders.0.1", "orders.1.1"}
    assert {span["service"] for span in spans} == {"ledger"}
    assert {span["name"] for span in spans} == {"GET /transactions/<transaction_id>"}


def test_the_last_spans_of_a_worker_arrive(tmp_path):
    """SIGTERM right after a request: it is exported before the worker is gone."""
    batches = {  # what is not enough for one is not sent by itself
        "OTEL_BSP_SCHEDULE_DELAY": f"{PATIENT * 1000:.0f}",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2",
    }
    with (
        Collector() as collector,
        ledger(tmp_path, collector.endpoint, **batches) as service,
    ):
        for batch in range(3):
            assert ask(service, f"orders.{batch}.1") == 404
        assert len(collector.wait_for(lambda spans: len(spans) >= 2)) == 2
        assert service.stop(AT_LAST) == 0
        sent = collector.spans()
    ids = {f"orders.{batch}.1" for batch in range(3)}
    assert {s["attributes"]["tpc.transaction.id"] for s in sent} == ids
    assert len(sent) == 3


def test_its_log_says_why_it_is_not_available(tmp_path):
    """Once when it is not ready, and for each request that it could not serve."""
    file = tmp_path / "trace.jsonl"
    (closed,) = free_ports(1)
    url = tmp_path / "url"
    url.write_text(f"postgresql+psycopg://u:hunter2@127.0.0.1:{closed}/x")
    there = {
        "TPC_PARTICIPANTS": f"ledger=postgresql:///?url_file={url}&table=t",
        "TPC_TRACE_FILE": str(file),
    }
    with ledger(tmp_path, "", live="/health/live", **there) as service:
        assert not answers(f"{service.url}/health/ready")
        assert not answers(f"{service.url}/health/ready")
        assert ask(service, "orders.7.1") == 503
        assert service.stop(AT_LAST) == 0
    ours = [line for line in service.tail().splitlines() if " WARNING " in line]
    waits, ready, asked = [line.split(" ", 3)[3] for line in ours]
    why = f'connection to server at "127.0.0.1", port {closed} failed: '
    why = f"OperationalError: connection failed: {why}Connection refused"
    assert waits == TEXTS["a database does not answer yet"] + f": {why}"
    assert ready == TEXTS["a participant is not ready"] + f": {why}"
    (span,) = read_trace_file(file)
    ids = f"trace_id={span['trace_id']} span_id={span['span_id']}"
    ids = f"tpc_transaction_id=orders.7.1 {ids}"
    assert asked == f"{TEXTS['a request could not be served']}: {why} {ids}"
    assert "hunter2" not in service.log.read_text()


@pytest.mark.parametrize("how", DEAD)
def test_a_dead_collector_does_not_keep_a_worker(tmp_path, how):
    """It answers as ever, and ends by itself when it is told to, with exit code 0."""
    first = {"PYTHONPATH": importable(tmp_path / "first", AT_ITS_END)}
    with dead(how) as endpoint, ledger(tmp_path, endpoint, **first) as service:
        (worker,) = workers(service)
        for batch in range(3):
            assert ask(service, f"orders.{batch}.1") == 404
        started = time.monotonic()
        assert service.stop(AT_LAST) == 0
        assert time.monotonic() - started < UNDELAYED
        assert not worker.is_running()
        assert "SIGKILL" not in service.tail()
