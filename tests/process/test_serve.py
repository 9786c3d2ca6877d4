"""`tracing-2pc serve` as the process that it becomes: reload, TLS, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from support.branches import prepare_at
from support.nats import TOKEN
from support.skywalking import certificate
from support.transports import Served
from support.waiting import AT_LAST, PATIENT, until

from participants.processes import Process, answers, stopping
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import Vote

NEXT = "the-next-token-0123456789"


@pytest.fixture(autouse=True)
def _token(monkeypatch) -> None:
    monkeypatch.setenv("TPC_TOKEN", TOKEN)


@contextlib.contextmanager
def serving(
    transport: str, address: str, folder: Path, *words: str, **environment: str
) -> Iterator[Served]:
    """Run it until the end of the block, where SIGTERM ends it with 0."""
    service = Served(transport, address, folder, *words)
    with stopping(service):
        service.start(**environment)
        yield service
        assert service.stop(PATIENT) == 0, service.tail()


def children(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def test_it_is_gunicorn_with_two_processes(tmp_path):
    """It has tables, health and metrics before anything was asked."""
    service = Served("http", f"sqlite:///{tmp_path}/l.db?table=orders", tmp_path)
    (tmp_path / "tokens").write_text(f"job {TOKEN}\nviewer {NEXT}\n")
    with stopping(service):
        service.start()
        assert (tmp_path / "l.db").exists()
        assert answers(f"{service.url}/health/ready")
        metrics = Request(f"{service.url}/metrics")
        metrics.add_header("Authorization", f"Bearer {NEXT}")
        with urlopen(metrics) as answer:
            assert b"tpc_in_doubt_branches" in answer.read()
        until(lambda: children(service.pid), lambda found: len(found) == 2)


def test_a_reload_reads_the_tokens_anew(tmp_path):
    """Without an end: a token that was taken out is refused, the next one is known."""
    address = f"sqlite:///{tmp_path}/l.db?table=orders"
    with serving("http", address, tmp_path) as service:
        assert prepare_at(service.asked(), TransactionId("orders", 1, 1)) is Vote.COMMIT
        (tmp_path / "tokens").write_text(f"job {NEXT}\n")
        before = children(service.pid)
        os.kill(service.pid, signal.SIGHUP)
        until(lambda: children(service.pid), lambda found: not found & before)
        assert "not known" in (service.asked().describe().refused or "")
        os.environ["TPC_TOKEN"] = NEXT
        assert len(service.asked().prepared().branches) == 1


@pytest.mark.parametrize(
    "transport", ["http", pytest.param("grpc", marks=pytest.mark.ci)]
)
def test_it_is_reached_by_tls(transport, tmp_path, monkeypatch):
    """With a certificate and its key."""
    made = certificate(tmp_path, "ledger")
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    files = str(made), str(made.with_suffix(".key"))
    address = f"sqlite:///{tmp_path}/l.db?table=orders"
    service = Served(transport, address, tmp_path, "--tls", *files)
    service.url = service.url.replace(f"{transport}:", f"{transport}s:")
    with stopping(service):
        service.start()
        assert service.asked().describe().role == "job"


def test_a_module_of_the_working_directory_is_served(tmp_path, monkeypatch):
    """To an application by its own name of the participant."""
    (tmp_path / "shop_rows.py").write_text(
        "from tracing_2pc.participant import TaggedRows\n"
        "rows = TaggedRows('sqlite:///l.db', 'orders')\n"
    )
    monkeypatch.chdir(tmp_path)
    service = Served("http", "python:shop_rows:rows", tmp_path, key="shop/ledger")
    with stopping(service):
        service.start()
        assert prepare_at(service.asked(), TransactionId("shop", 1, 1)) is Vote.COMMIT


def test_a_worker_that_cannot_start_says_why_in_a_line(tmp_path):
    """And ends the service: a module that is not there, another table."""
    with contextlib.closing(sqlite3.connect(tmp_path / "l.db")) as database:
        database.execute("CREATE TABLE orders (id INTEGER)")
    for address, line in (
        ("python:nowhere:rows", "python:nowhere:rows cannot be imported"),
        (f"sqlite:///{tmp_path}/l.db?table=orders", "RENAME TO orders_tpc"),
    ):
        service = Served("http", address, tmp_path)
        Process.start(service)
        assert service.wait(AT_LAST) != 0
        said = service.tail()
        assert "participant 'ledger': " in said
        assert line in said
        assert "Traceback" not in said
