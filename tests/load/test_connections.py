"""A thousand half-open connections, and slow bodies, at every route of every server.

Others are served while all of them are connected; the server drops each by its own
limits; then it has the files and threads that it had, and a second thousand takes no
more memory than the first. What was answered is counted in the tables, by SQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import socket
import sqlite3
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
import yaml
from support.branches import Branch, records
from support.producer import post_until_taken
from support.strangers import connected, many_files
from support.telemetry import PATH
from support.transports import TRANSPORTS
from support.waiting import AT_LAST, PATIENT, UNDELAYED, until

import tracing_2pc.http
from load.usage import usage
from participants.processes import Process, free_ports, stopping
from tracing_2pc.cli import main
from tracing_2pc.core.errors import ParticipantUnavailableError
from tracing_2pc.core.model import (
    BranchId,
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.remote_participant import open_participant
from tracing_2pc.core.states import Decision, TransactionState, Vote
from tracing_2pc.grpc.connection import forget
from tracing_2pc.nats.connection import Place
from tracing_2pc.nats.frames import Seal, seal_of_request

__all__ = ["many_files"]

pytestmark = pytest.mark.usefixtures("many_files")

JOB, PRODUCER = "a-token-of-the-job-0123456789", "a-token-of-the-shop-012345678"
MANY = [
    pytest.param(64, marks=pytest.mark.ci),
    pytest.param(1_000, marks=pytest.mark.nightly),
]
SLOW = 4
"""Slow bodies of who has a token: fewer than there are threads."""

POOL, FILES_EACH = 40, 4
"""Threads that a server may have, and files for each of them."""

CONSOLE = (
    *("GET /", "GET /login", "POST /login", "POST /logout", "GET /search"),
    *("GET /applications/orders", "GET /participants/ledger", "GET /incidents"),
    *("GET /transactions/orders.7.1", "POST /actions/resolve/do"),
    *("GET /refused", "POST /refused", "GET /health/live"),
)


@dataclasses.dataclass
class Server:
    """One that runs.

    Args:
        process: the server.
        port: where it listens.
        works: a request of somebody else, which raises if it is not answered well.
        kept: how many of those its tables have.
        routes: method and path of each.
        token: that it knows.
    """

    process: Process
    port: int
    works: Callable[[int], object]
    kept: Callable[[], int]
    routes: list[str]
    token: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def of(document: str) -> list[str]:
    """Return the routes of an OpenAPI document, with an id where one is asked."""
    text = (Path(tracing_2pc.http.__file__).parent / document).read_text()
    paths = yaml.safe_load(text)["paths"]
    return [
        f"{method.upper()} {path.replace('{transaction_id}', 'orders.7.1')}"
        for path, item in paths.items()
        for method in item
        if method in ("get", "post")
    ]


def counting(file: Path, table: str) -> Callable[[], int]:
    def count() -> int:
        with contextlib.closing(sqlite3.connect(file)) as opened:
            return int(opened.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    return count


@contextlib.contextmanager
def participant(transport: str, folder: Path, monkeypatch: Any) -> Iterator[Server]:
    """`tracing-2pc serve ledger`, reached by a transport."""
    (port,) = free_ports(1)
    way, tokens = TRANSPORTS[transport], folder / "tokens"
    tokens.write_text(f"job {JOB}\n")
    monkeypatch.setenv("TOKEN_OF_JOB", JOB)
    database = folder / "ledger.db"
    about = {
        "PYTHONPATH": PATH,
        "TPC_PARTICIPANTS": f"ledger=sqlite:///{database}?table=numbers",
        "TPC_TOKENS_FILE": str(tokens),
        "WEB_CONCURRENCY": "1",
        "GUNICORN_CMD_ARGS": "--threads 8",
    }
    process = Process(transport, way.command(port), folder / "log", about)
    name = "ledger"

    def works(batch: int) -> None:
        asked = open_participant(name, way.url(port), "env:TOKEN_OF_JOB", PATIENT)
        commit(asked, TransactionId("orders", batch, 1), records(value=[batch]))

    with stopping(process):
        process.start()
        asked = open_participant(name, way.url(port), "env:TOKEN_OF_JOB", PATIENT)
        until(
            lambda: asked.describe().unreachable is None, tell=lambda _: process.tail()
        )
        yield Server(
            *(process, port, works, counting(database, "numbers")),
            *(of("openapi.yaml"), JOB),
        )


def commit(asked: Any, id_: TransactionId, branch: Branch) -> None:
    at, body = BranchId.parse(branch.branch), branch.body
    about = {"rows": branch.rows, "length": len(body), "digest": branch.digest}
    assert asked.prepare(id_, at, lambda: io.BytesIO(body), **about) is Vote.COMMIT
    chosen = Receipt(at, asked.name, branch.rows, branch.digest, Vote.COMMIT)
    decided = TransactionState.COMMITTING, Decision.COMMIT, (asked.name,), frozenset()
    asked.commit(TransactionRecord(id_, "run", *decided, {}, 0.0, receipts=(chosen,)))


@contextlib.contextmanager
def gateway(folder: Path, _: Any) -> Iterator[Server]:
    """The gateway, by its one command."""
    (port,) = free_ports(1)
    (folder / "tokens").write_text(f"producer {PRODUCER} shop\n")
    database, url = folder / "inbox.db", f"http://127.0.0.1:{port}"
    about = {
        "PYTHONPATH": PATH,
        "INBOX_DATABASE": f"sqlite:///{database}",
        "TPC_TOKENS_FILE": str(folder / "tokens"),
    }
    command = [sys.executable, "-m", "participants.gateway", "--port", str(port)]
    process = Process("gateway", command, folder / "log", about)

    def works(number: int) -> None:
        event = json.dumps({"id": f"e{number}", "payload": number})
        assert post_until_taken(url, PRODUCER, event)

    with stopping(process):
        process.start()
        process.until_answers(f"{url}/health/live", AT_LAST)
        yield Server(
            *(process, port, works, counting(database, "events_tpc_event")),
            *(of("gateway.yaml"), PRODUCER),
        )


@contextlib.contextmanager
def console(folder: Path, monkeypatch: Any) -> Iterator[Server]:
    """The console, which keeps nothing."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TPC_TOKENS_FILE", raising=False)
    assert main(["init"]) == 0
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tracing_2pc", "console"]
    process = Process(
        "console",
        [*command, "--listen", f"127.0.0.1:{port}"],
        folder / "console.log",
        {"PYTHONPATH": PATH},
    )
    url, served = f"http://127.0.0.1:{port}", []

    def works(number: int) -> None:
        with urllib.request.urlopen(f"{url}/login", timeout=AT_LAST) as answer:
            assert answer.status == 200
        served.append(number)

    with stopping(process):
        process.start()
        process.until_answers(f"{url}/health/live", AT_LAST)
        yield Server(process, port, works, lambda: len(served), [*CONSOLE], "nobody's")


SERVERS = {
    "participant": lambda *about: participant("http", *about),
    "gateway": gateway,
    "console": console,
}


def half_open(server: Server) -> list[bytes]:
    """Return what strangers send, at every route: half a head, and half a body."""
    sent = [b""]
    for route in server.routes:
        head = f"{route} HTTP/1.1\r\nHost: x\r\nTpc-Version: 1\r\n".encode()
        sent.append(head)
        sent.append(head + b"Content-Length: 1000000\r\n\r\nhalf")
        sent.append(head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhal")
        sent.append(head + b"Authorization: Bearer x\r\nContent-Length: 9\r\n\r\n")
    return sent


def hung_up(client: socket.socket) -> bool:
    """Read to the end: the server has ended the connection, and not we."""
    with contextlib.suppress(ConnectionResetError):
        while client.recv(1 << 16):
            pass
    return True


@contextlib.contextmanager
def wave(server: Server, many: int, sent: list[bytes]) -> Iterator[list[socket.socket]]:
    """Open so many connections, of each kind in turn; the slow ones have a token."""
    with contextlib.ExitStack() as stack:
        opened = []
        for n, text in enumerate(sent):
            count = len(range(n, many, len(sent)))
            opened += stack.enter_context(connected(server.url, count, text))
        yield opened


def judge(server: Server, many: int, half: list[bytes], batches: Iterator[int]) -> None:
    """Three waves: the first warms up, and the third takes what the second took."""
    done, taken = 0, []
    for _ in range(3):
        with wave(server, many, half) as opened:
            for _ in range(3):
                server.works(next(batches))
                done += 1
            since = time.monotonic()
            assert all(map(hung_up, opened))
            assert time.monotonic() - since < UNDELAYED
        if taken:
            until(lambda: usage(server.process.pid).sockets <= taken[0].sockets)
        taken.append(usage(server.process.pid))
        server.works(next(batches))
        done += 1
    assert server.kept() == done
    _, second, third = taken
    assert third.memory < 1.1 * second.memory, taken
    # Threads of a pool come one by one; each has a connection to its database.
    assert third.threads <= max(second.threads, POOL), taken
    assert third.files <= max(second.files, FILES_EACH * POOL), taken
    sys.stdout.write(f"{many} at {server.process.name}: {taken}\n")


@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("kind", SERVERS)
def test_half_open_connections(kind, many, tmp_path, monkeypatch):
    """By HTTP; a few of them have a token, and send their bodies in drops."""
    with SERVERS[kind](tmp_path, monkeypatch) as server:
        slow = [
            f"{route} HTTP/1.1\r\nHost: x\r\nTpc-Version: 1\r\n"
            f"Authorization: Bearer {server.token}\r\nContent-Length: 999\r\n\r\nhalf"
            for route in server.routes
            if route.startswith("POST")
        ]
        half, batches = half_open(server), iter(range(10_000))
        judge(server, many, half, batches)
        for first in range(0, len(slow), SLOW):
            with contextlib.ExitStack() as stack:
                some = [text.encode() for text in slow[first : first + SLOW]]
                clients = [
                    client
                    for text in some
                    for client in stack.enter_context(connected(server.url, 1, text))
                ]
                server.works(next(batches))
                assert all(map(hung_up, clients))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0" + b"\0\0\0\4\1\0\0\0\0"
"""A client's, and its answer to the server's: a whole handshake."""


HANDSHAKES = {
    "in the middle of the handshake": [b"", PREFACE[:9], PREFACE],
    "without a call": [PREFACE + SETTINGS],
}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", HANDSHAKES)
def test_half_open_connections_by_grpc(kind, tmp_path, monkeypatch):
    """A job that is connected is served; the others go, and not after minutes."""
    with participant("grpc", tmp_path, monkeypatch) as server:
        judge(server, 1_000, HANDSHAKES[kind], iter(range(10_000)))


@pytest.mark.nightly
def test_a_job_that_comes_when_strangers_have_all_places(tmp_path, monkeypatch):
    """By gRPC: it is told so, and has a place as soon as one of them was put out."""
    with participant("grpc", tmp_path, monkeypatch) as server:
        before = usage(server.process.pid).sockets
        forget(TRANSPORTS["grpc"].url(server.port))
        until(lambda: usage(server.process.pid).sockets < before)
        with wave(server, 1_000, HANDSHAKES["without a call"]):
            with pytest.raises(ParticipantUnavailableError):
                server.works(0)
            until(lambda: served(server, 0, again=True))
        assert server.kept() == 1


@pytest.mark.parametrize(
    "many",
    [
        pytest.param(300, marks=pytest.mark.ci),
        pytest.param(1_000, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("half", [False, True], ids=["question", "half a body"])
def test_half_open_requests_by_nats(half, many, tmp_path, monkeypatch):
    """Strangers who take up room and go no further: the job is served meanwhile.

    At once beside questions; beside half a body each, as soon as those are refused
    that came before.
    """
    with participant("nats", tmp_path, monkeypatch) as server:
        batches, taken = iter(range(10_000)), []
        for _ in range(3):
            with asking(server, many, half=half):
                for _ in range(3):
                    batch = next(batches)
                    until(lambda batch=batch: served(server, batch, again=half))
            taken.append(usage(server.process.pid))
        assert server.kept() == next(batches)
        assert taken[2].memory < 1.1 * taken[1].memory, taken
        sys.stdout.write(f"{many} by NATS: {taken}\n")


def served(server: Server, batch: int, *, again: bool) -> bool:
    """Say whether a batch is served; where it may be asked again, *not now* is no."""
    try:
        server.works(batch)
    except ParticipantUnavailableError:
        if not again:
            raise
        return False
    return True


@contextlib.contextmanager
def asking(server: Server, many: int, *, half: bool) -> Iterator[None]:
    """Ask so often without a token, at every route in turn, and stay."""
    place = Place(f"nats://127.0.0.1:{server.port}/ledger")
    ready, over = threading.Event(), threading.Event()

    async def ask() -> None:
        client = await nats.connect(place.url.rpartition("/")[0])
        answers: list[Any] = []

        async def answered(message: Any) -> None:
            answers.append(message)
            head, _ = Seal(None, "").read(message.data)
            if half and "challenge" in head:
                nonce = message.subject.rpartition(".")[2]
                route = server.routes[len(answers) % len(server.routes)]
                method, path = route.split(" ")
                first = {"n": 0, "length": 10**6, "method": method, "path": path}
                seal = seal_of_request(None, nonce, head["challenge"])
                frame = seal.write({**first, "headers": {}}, b"half")
                await client.publish(head["subject"], frame)

        inbox = client.new_inbox()
        await client.subscribe(f"{inbox}.*", cb=answered)
        for n in range(many):
            question = Seal(None, "").write({"nonce": str(n)})
            await client.publish(place.subject, question, reply=f"{inbox}.{n}")
        await client.flush()
        while len(answers) < many:
            await asyncio.sleep(0)
        ready.set()
        await asyncio.to_thread(over.wait)
        await client.close()

    thread = threading.Thread(target=asyncio.run, args=(ask(),))
    thread.start()
    try:
        assert ready.wait(AT_LAST)
        yield
    finally:
        over.set()
        thread.join()
