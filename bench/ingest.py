"""A gateway of an inbox, on PostgreSQL under gunicorn: what a 202 costs.

lines         requests of 1,000 events each, as NDJSON, one after the other
lines by hand the same requests to a route written by hand: `_by_hand`
copy          the same rows by COPY into a table with a unique key, a commit each

posts         single events from 32 clients at once
posts by hand the same requests to the route written by hand
empty         the same requests to a route of the same application that only reads
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import itertools
import json
import os
import random
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from bench import pair
from bench.postgresql import postgresql
from bench.results import ROOT
from participants.processes import Process, free_ports, stopping

if TYPE_CHECKING:
    from flask import Flask

ROUNDS: Final = 41
LINES: Final = 1_000
CLIENTS: Final = 32
LIMITS: Final = {"E1": 0.8, "E2": 1.0}

_DATABASE: Final = "TPC_BENCH_DATABASE"
_BY_HAND: Final = "TPC_BENCH_BY_HAND"

Requests = Callable[[int], Sequence[bytes]]


def measure(most: int, *, tiny: bool = False) -> Iterator[dict[str, Any]]:
    """Yield a line for each goal."""
    rounds, requests, posts = min(most, ROUNDS), 5, 40
    if tiny:
        requests, posts = 1, 2
    with contextlib.ExitStack() as stack:
        place = tempfile.TemporaryDirectory(prefix="tpc-bench-")
        folder = Path(stack.enter_context(place))
        copied, address, token = stack.enter_context(_gateway(folder))
        clients = [_Client(address) for _ in range(CLIENTS)]
        for client in clients:
            stack.callback(client.close)
        copy = stack.enter_context(_copying(copied))
        pool = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        fresh = functools.partial(next, itertools.count())

        def one_by_one(route: str) -> float:
            bodies = [_lines(fresh()) for _ in range(requests)]
            sent = [_post(route, token, "x-ndjson", body) for body in bodies]
            return _timed(lambda: [clients[0].send(one) for one in sent])

        def by_copy() -> float:
            rows = [_events(fresh()) for _ in range(requests)]
            return _timed(lambda: [copy(some) for some in rows])

        def at_once(route: str) -> float:
            sent = [
                [_post(route, token, "json", _one(fresh())) for _ in range(posts)]
                for _ in clients
            ]

            def send(client: _Client, mine: Sequence[bytes]) -> None:
                for one in mine:
                    client.send(one)

            return _timed(lambda: list(pool.map(send, clients, sent)))

        arms: dict[str, tuple[dict[str, pair.Block], dict[str, int]]] = {
            "E1": (
                {
                    "events": functools.partial(one_by_one, "/events"),
                    "by hand": functools.partial(one_by_one, "/by-hand"),
                    "copy": by_copy,
                },
                {"events": LINES},
            ),
            "E2": (
                {
                    "events": functools.partial(at_once, "/events"),
                    "by hand": functools.partial(at_once, "/by-hand"),
                    "empty": functools.partial(at_once, "/nothing"),
                },
                {"clients": CLIENTS},
            ),
        }
        for goal, (blocks, settings) in arms.items():
            ours, by_hand, least = pair.measure(blocks, rounds).values()
            ratio = pair.compare(ours, by_hand)
            yield pair.line(goal, ratio, LIMITS[goal], settings)
            name = f"events {list(blocks)[-1]}"
            yield pair.peer(name, pair.compare(ours, least), settings)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# --- what is sent -------------------------------------------------------------------


def _events(number: int) -> list[tuple[str, str]]:
    return [_event(f"{number}.{n}") for n in range(LINES)]


def _event(name: str) -> tuple[str, str]:
    amount = random.randrange(10**6) / 100
    remark = f"remark {amount} of this order"
    body = {"shop": name, "amount": amount, "units": 17, "remark": remark}
    return f"order-{name}", json.dumps(body)


def _lines(number: int) -> bytes:
    lines = (f'{{"id": "{n}", "payload": {body}}}\n' for n, body in _events(number))
    return "".join(lines).encode()


def _one(number: int) -> bytes:
    name, body = _event(f"one.{number}")
    return f'{{"id": "{name}", "payload": {body}}}'.encode()


def _post(route: str, token: str, kind: str, body: bytes) -> bytes:
    head = (
        f"POST {route} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/{kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Client:
    """A connection that is kept, and costs as little as can be."""

    def __init__(self, address: str) -> None:
        split = urlsplit(address)
        self._place = split.hostname, split.port
        self._socket: socket.socket | None = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def send(self, request: bytes) -> None:
        """Connect at the first request: a server hangs up on who says nothing."""
        if self._socket is None:
            self._socket = socket.create_connection(self._place)
        self._socket.sendall(request)
        text = b""
        while b"\r\n\r\n" not in text:
            text += self._more()
        head, _, body = text.partition(b"\r\n\r\n")
        assert head[9:12] == b"202", text
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r", 1)[0])
        while len(body) < length:
            body += self._more()

    def _more(self) -> bytes:
        assert self._socket is not None
        piece = self._socket.recv(1 << 16)
        assert piece, "the server has hung up"
        return piece


# --- the arms' servers --------------------------------------------------------------


def create_app() -> Flask:
    """Make the gateway, and a route that only reads."""
    from flask import Flask, request

    from tracing_2pc.http.events import events_blueprint
    from tracing_2pc.inbox import Inbox

    app = Flask(__name__)
    inbox = Inbox(f"env:{_DATABASE}")
    app.register_blueprint(events_blueprint(inbox))
    app.post("/nothing")(lambda: (request.get_data(), 202))
    app.post("/by-hand")(_by_hand)
    app.extensions["resource"] = inbox
    return app


_local: Final = threading.local()


@functools.cache
def _token() -> str:
    _, token, _ = Path(os.environ["TPC_TOKENS_FILE"]).read_text("utf-8").split()
    return token


def _by_hand() -> tuple[Any, int]:
    """Take events as one would write it: a transaction of a connection that is kept."""
    import psycopg
    from flask import jsonify, request

    given = request.headers.get("Authorization", "")
    if not hmac.compare_digest(given, f"Bearer {_token()}"):
        return jsonify(error="unauthorized"), 401
    if not hasattr(_local, "connection"):
        _local.connection = psycopg.connect(os.environ[_BY_HAND])
    events = [json.loads(line) for line in request.get_data().splitlines()]
    rows = [(event["id"], json.dumps(event["payload"])) for event in events]
    with _local.connection.transaction(), _local.connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO by_hand (id, payload) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            rows,
        )
        taken = cursor.rowcount
    return jsonify(taken=taken, known=len(rows) - taken), 202


@contextlib.contextmanager
def _gateway(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Serve it; yield a database for COPY in the same server, its URL and a token."""
    import psycopg

    token = secrets.token_hex(16)
    (folder / "tokens").write_text(f"producer {token} shop\n")
    (port,) = free_ports(1)
    command = [
        *(sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}"),
        *("--config", str(ROOT / "participants" / "gunicorn_conf.py")),
        *("--threads", "32"),
        "bench.ingest:create_app()",
    ]
    with postgresql() as new_database:
        by_hand = new_database()
        with psycopg.connect(by_hand) as connection:
            connection.execute(
                "CREATE TABLE by_hand (id text PRIMARY KEY, payload text NOT NULL, "
                "taken timestamptz NOT NULL DEFAULT now())"
            )
        environment = {
            "PYTHONPATH": str(ROOT),
            "TPC_TOKENS_FILE": str(folder / "tokens"),
            "WEB_CONCURRENCY": "2",
            _DATABASE: new_database(),
            _BY_HAND: by_hand,
        }
        server = Process("gateway", command, folder / "gateway.log", environment)
        with stopping(server):
            server.start()
            url = f"http://127.0.0.1:{port}"
            server.until_answers(f"{url}/health/ready", 120)
            yield new_database(), url, token


@contextlib.contextmanager
def _copying(url: str) -> Iterator[Callable[[Sequence[tuple[str, str]]], None]]:
    """Give what writes rows with one COPY, and commits."""
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE plain (id text PRIMARY KEY, body text)")
        connection.commit()

        def copy(rows: Sequence[tuple[str, str]]) -> None:
            with connection.cursor().copy("COPY plain FROM STDIN") as to:
                for row in rows:
                    to.write_row(row)
            connection.commit()

        yield copy
