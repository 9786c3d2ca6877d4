"""Who says nothing, or not all of it, keeps nobody else from being answered."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.branches import ONE, Branch, orders
from support.kinds import sqlite_url, tagged_rows
from support.participant import World, database_of
from support.producer import post_until_taken
from support.served import by_gunicorn
from support.spark import serving
from support.strangers import connected, many_files
from support.telemetry import TESTS
from support.waiting import AT_LAST, PAUSE, until

from participants import processes
from tracing_2pc.http import time_limits

pytestmark = [pytest.mark.ci, pytest.mark.usefixtures("many_files")]

__all__ = ["many_files"]

TOKEN = "a-token-of-the-job-0123456789"
MANY = 1_000
T = "orders.7.1"

POST = b"POST /prepare HTTP/1.1\r\nHost: x\r\nTpc-Version: 1\r\n"
NINE = b" HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
HALF = POST + b"Content-Length: 1000000\r\n"
STRANGERS = {
    "silent": b"",
    "half a head": POST,
    "half a body": HALF + b"\r\nhalf",
    "another token": HALF + b"Authorization: Bearer nobody-knows-it\r\n\r\nhalf",
    "chunked": POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhal",
    "a body for nothing": b"GET /metrics" + NINE,
    "no such page": b"POST /nothing" + NINE,
    "never hangs up": b"GET /health/live HTTP/1.0\r\n\r\n",
}
"""What each of a thousand sends, and then no more; none of them has a token."""

FOR_THE_BLUEPRINT = ("half a body", "another token", "chunked", "a body for nothing")
"""What any server hands over."""


def environment(folder: Path) -> dict[str, str | None]:
    (folder / "tokens").write_text(f"job {TOKEN}\n")
    return {
        "TPC_TOKENS_FILE": str(folder / "tokens"),
        "DATABASE": sqlite_url(folder),
        "TOKENS": str(folder / "tokens"),
    }


@pytest.fixture(scope="module")
def shipped(tmp_path_factory) -> Iterator[str]:
    """The ledger, by its one command."""
    folder = tmp_path_factory.mktemp("ledger")
    (port,) = processes.free_ports(1)
    log = folder / "ledger.log"
    ledger = processes.Ledger(sqlite_url(folder), port, log, environment(folder))
    with processes.stopping(ledger):
        ledger.start()
        yield ledger.url


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Iterator[str]:
    """The ledger under a gunicorn of somebody's own, which nobody has told anything."""
    folder = tmp_path_factory.mktemp("own")
    about = ("support.service:create_app()", folder, "--pythonpath", str(TESTS))
    with by_gunicorn(*about, "-w", "2", "--threads", "4", **environment(folder)) as url:
        yield url


PRODUCERS = ("shop-token-0123456789", "other-token-0123456789")


@pytest.fixture
def gateway(tmp_path) -> Iterator[str]:
    """The gateway, by its one command: a process of 32 threads."""
    shop, other = PRODUCERS
    (tmp_path / "tokens").write_text(f"producer {shop} shop\nproducer {other} other\n")
    about = {
        "TPC_TOKENS_FILE": str(tmp_path / "tokens"),
        "INBOX_DATABASE": f"sqlite:///{tmp_path}/inbox.db",
        "WEB_CONCURRENCY": "1",
    }
    (port,) = processes.free_ports(1)
    made = processes.Service("gateway", port, tmp_path / "gateway.log", about)
    with processes.stopping(made):
        made.start()
        yield made.url


@contextlib.contextmanager
def dripping(sockets: list[socket.socket]) -> Iterator[None]:
    """Send a byte on each of them, again and again."""
    over = threading.Event()

    def drip() -> None:
        while not over.wait(PAUSE):
            for one in sockets:
                with contextlib.suppress(OSError):
                    one.send(b"x", socket.MSG_DONTWAIT)

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def works(url: str, batch: int) -> None:
    """The job is served: a branch is prepared, and committed."""
    transaction = f"orders.{batch}.1"
    assert ask(url, "/prepare", ONE.body, **of_branch(transaction, ONE)) == 200
    order = {"transaction_id": transaction, "branches": [ONE.named]}
    body = json.dumps(order).encode()
    assert ask(url, "/commit", body, **{"Content-Type": "application/json"}) == 200


TO_LEDGER = {
    "Tpc-Version": "1",
    "Tpc-Participant": "ledger",
    "Authorization": f"Bearer {TOKEN}",
}


def of_branch(transaction: str, branch: Branch) -> dict[str, str]:
    return TO_LEDGER | {
        "Tpc-Transaction-Id": transaction,
        "Tpc-Branch": branch.branch,
        "Tpc-Rows": str(branch.rows),
        "Content-Digest": branch.digest,
        "Content-Type": branch.content_type,
    }


def ask(url: str, path: str, body: bytes, **headers: str) -> int:
    with contextlib.closing(connection_to(url)) as connection:
        connection.request("POST", path, body, TO_LEDGER | headers)
        return connection.getresponse().status


def connection_to(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=AT_LAST)


batches = iter(range(1, 1000))


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_thousand_strangers_keep_no_job_waiting(shipped, sent):
    """Each kind of them, all at once; they stay, and the job is served meanwhile."""
    with connected(shipped, MANY, sent):
        for _ in range(5):
            works(shipped, next(batches))


@pytest.mark.parametrize("kind", ["half a head", "half a body"])
def test_nor_do_those_who_drip(shipped, kind):
    """A byte now and then is no sign of life that helps."""
    with connected(shipped, MANY, STRANGERS[kind]) as sockets, dripping(sockets):
        for _ in range(5):
            works(shipped, next(batches))


@pytest.mark.parametrize("kind", FOR_THE_BLUEPRINT)
def test_nor_at_another_server(own, kind):
    """What is within a request the blueprint limits itself, whoever serves it."""
    with connected(own, 56, STRANGERS[kind]):
        for _ in range(3):
            works(own, next(batches))


def test_a_stranger_who_sent_all_of_it_is_told(shipped):
    """401, and why, also where the body was larger than is read for him."""
    for size in (0, 100, 60_000):
        assert ask(shipped, "/prepare", b"x" * size, Authorization="Bearer x") == 401


def test_slow_bodies_of_a_producer_leave_room_for_others(gateway):
    """More of them than there are threads: another producer is served while eight of
    them are still awaited, and what the same one sends whole; the others are told to
    send again."""
    slow, other = PRODUCERS
    head = f"POST /events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {slow}\r\n"
    kind = "Content-Type: application/json\r\nContent-Length: 8000000\r\n\r\n "
    with connected(gateway, 40, f"{head}{kind}".encode()) as sockets:
        event = '{"id": "a", "payload": 1}'
        assert post_until_taken(gateway, other, event) == [1]
        until(lambda: len(select.select(sockets, [], [], 0)[0]) >= 32)
        answered = select.select(sockets, [], [], 0)[0]
        assert len(answered) == 32
        for one in answered:
            assert b" 503 " in one.recv(1000).split(b"\r\n")[0]
        assert post_until_taken(gateway, slow, event) == [2]


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request, tmp_path, new_database, monkeypatch) -> Iterator[World]:
    monkeypatch.setattr(time_limits, "PATIENCE", 10 * PAUSE)
    monkeypatch.setattr(time_limits, "SLOWEST", 1 << 20)
    url = sqlite_url(tmp_path) if request.param == "sqlite" else new_database()
    made = tagged_rows(url)
    yield made
    made.resource.close()


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "drips"])
def test_half_open_uploads_end(world, drips):
    """Of the job's own, too: no thread, no session and no branch is left of them, and
    the same branch can be sent again.
    """
    head = [
        "POST /prepare HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {len(ONE.body)}\r\n"
        "Tpc-Version: 1\r\nTpc-Participant: participant\r\n"
        f"Tpc-Transaction-Id: {T}\r\nTpc-Branch: {number}.1\r\n"
        f"Tpc-Rows: 3\r\nContent-Digest: {ONE.digest}\r\n"
        f"Content-Type: {ONE.content_type}\r\n\r\n"
        for number in range(4)
    ]
    with serving(world.app) as url, contextlib.ExitStack() as stack:
        sockets = []
        for text in head:
            sent = text.encode() + ONE.body[:40]
            sockets += stack.enter_context(connected(url, 1, sent))
        if drips:
            stack.enter_context(dripping(sockets))
        for one in sockets:
            answer = one.recv(1000)
            assert b" 503 " in answer.split(b"\r\n")[0]
        until(lambda: world.listed() == [])
        assert world.prepare(T).status_code == 200
        pool: Any = database_of(world).engine.pool
        until(lambda: pool.checkedout() == 0)


def test_a_long_body_that_drips_ends(shipped):
    """However much of it has come: each piece has its time, not each byte."""
    branch = Branch(orders(*range(100_000)), 100_000)
    headers = of_branch("orders.91.1", branch) | {"Host": "x"}
    headers["Content-Length"] = str(len(branch.body))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    sent = f"POST /prepare HTTP/1.1\r\n{head}\r\n".encode() + branch.body[:300_000]
    with connected(shipped, 1, sent) as sockets, dripping(sockets):
        assert b" 503 " in sockets[0].recv(1000).split(b"\r\n")[0]


def test_no_header_names_another_path(shipped):
    """A proxy before us judges the path that it saw, and may be on this machine."""
    body = json.dumps({"transaction_id": "orders.92.1"}).encode()
    told = {"Content-Type": "application/json", "SCRIPT_NAME": "/shown"}
    assert ask(shipped, "/shown/abort", body, **told) == 404
    assert ask(shipped, "/abort", body, **told) == 200


def test_a_long_body_is_read_whole_and_no_byte_more(shipped):
    """Three prepares on one connection, in pieces that fit nobody's buffers."""
    with contextlib.closing(connection_to(shipped)) as connection:
        for number, rows in enumerate((3, 200_000, 3)):
            branch = Branch(orders(*range(rows)), rows, f"{number}.{number}")
            starts = range(0, len(branch.body), 77_777)
            pieces = (branch.body[start : start + 77_777] for start in starts)
            headers = of_branch("orders.90.1", branch)
            headers["Content-Length"] = str(len(branch.body))
            connection.request("POST", "/prepare", pieces, headers)
            response = connection.getresponse()
            vote = json.loads(response.read())
            told = (response.status, vote["vote"], vote["rows"])
            assert told == (200, "commit", rows)
