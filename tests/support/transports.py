"""Every way to reach a participant: suites that are about transports run over each.

Add a transport here: a server within the test's process, and one that is a process.
With `over` a suite that asks a `World` by Flask's client asks it over a transport.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from participants.processes import Process, free_ports
from support.nats import TOKEN, serving_by_nats, shared
from support.participant import World
from support.spark import serving
from support.telemetry import PATH
from support.waiting import PATIENT, until
from tracing_2pc.core.access import TokenGate
from tracing_2pc.core.remote_participant import RemoteParticipant, open_participant
from tracing_2pc.grpc import GrpcServer
from tracing_2pc.nats.link import LOOP
from tracing_2pc.wire import contract
from tracing_2pc.wire.bridge import PARTICIPANT

_names = itertools.count()


@dataclasses.dataclass(frozen=True)
class Transport:
    """One of them.

    Args:
        serve: serves a WSGI application from threads, and yields its URL; what has
            begun is answered at the end, and no thread is left.
        url: of what listens at a port of loopback.
        command: `tracing-2pc serve ledger` at a port, until SIGTERM.
    """

    serve: Callable[[Any], AbstractContextManager[str]]
    url: Callable[[int], str]
    command: Callable[[int], list[str]]


def through(url: str, place: str) -> str:
    """Return the URL with another host and port, as of a cable before it."""
    return urlsplit(url)._replace(netloc=place).geturl()


@contextmanager
def _by_grpc(application: Any) -> Iterator[str]:
    with GrpcServer(application, "127.0.0.1:0") as server:
        yield server.url


@contextmanager
def _by_nats(application: Any) -> Iterator[str]:
    # Behind one name there is one database, as long as a client lives.
    with serving_by_nats(application, shared().url(f"p{next(_names)}")) as url:
        yield url
    LOOP.close()


def _by_program(*words: str) -> Callable[[int], list[str]]:
    def command(port: int) -> list[str]:
        return [*SERVE, *words, "--listen", f"127.0.0.1:{port}"]

    return command


def _nats(port: int) -> list[str]:
    return [sys.executable, "-m", "support.nats", str(port)]


SERVE = (sys.executable, "-m", "tracing_2pc", "serve", "ledger")

TRANSPORTS = {
    "http": Transport(serving, "http://127.0.0.1:{}".format, _by_program()),
    "grpc": Transport(_by_grpc, "grpc://127.0.0.1:{}".format, _by_program("--grpc")),
    "nats": Transport(_by_nats, "nats://127.0.0.1:{}/ledger".format, _nats),
}


OPERATOR = "an-operator-0123456789"
"""Beside `support.nats.TOKEN`, the job's."""


class Served(Process):
    """`tracing-2pc serve ledger`, reached by a transport with the token `TPC_TOKEN`.

    Args:
        transport: one of `TRANSPORTS`.
        address: that it serves.
        folder: of its tokens and of its log.
        words: further arguments.
        key: its name in the settings, where that is another one.
    """

    def __init__(
        self,
        transport: str,
        address: str,
        folder: Path,
        *words: str,
        key: str = "ledger",
    ) -> None:
        (port,) = free_ports(1)
        way, tokens = TRANSPORTS[transport], folder / "tokens"
        tokens.write_text(f"job {TOKEN}\noperator {OPERATOR}\n")
        command = [key if w == "ledger" else w for w in (*way.command(port), *words)]
        environment = {
            "PYTHONPATH": PATH,
            "TPC_PARTICIPANTS": f"{key}={address}",
            "TPC_TOKENS_FILE": str(tokens),
        }
        super().__init__(transport, command, folder / "log", environment)
        self.url = way.url(port)

    def start(self, **environment: str | None) -> None:
        """Start it, and wait until it answers."""
        super().start(**environment)
        until(
            lambda: self.asked().describe().unreachable is None,
            tell=lambda _: self.tail(),
        )

    def asked(self, timeout: float = PATIENT) -> RemoteParticipant:
        return open_participant("ledger", self.url, "env:TPC_TOKEN", timeout)


OTHERS = [name for name in TRANSPORTS if name != "http"]
"""For what is held against HTTP by Flask's own client."""


@contextmanager
def over(transport: str, world: World) -> Iterator[World]:
    """Return a participant as it is asked over a transport, with the client's words.

    `flask` is Flask's own client, over none.
    """
    if transport == "flask":
        yield world
        return
    asked: Any = copy.copy(world)
    has_tokens = isinstance(world.app.extensions[PARTICIPANT].gate, TokenGate)
    # By NATS no body is read of a caller without one.
    sent = {} if has_tokens else {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}
    with TRANSPORTS[transport].serve(world.app) as url:
        asked.app = _Asking(url, sent)
        yield asked


class _Asking:
    """In the place of a Flask application: its test client asks by `exchange`."""

    def __init__(self, url: str, sent: Mapping[str, str]) -> None:
        self._url = url
        self._sent = sent
        self.environ_base = {**sent}

    def test_client(self) -> _Asking:
        return _Asking(self._url, self._sent)

    def get(self, path: str, **how: Any) -> _Answer:
        return self._ask("GET", path, **how)

    def post(self, path: str, **how: Any) -> _Answer:
        return self._ask("POST", path, **how)

    def _ask(
        self, method: str, path: str, headers: Any = (), data: Any = None, **how: Any
    ) -> _Answer:
        environ = {**self.environ_base, **how.pop("environ_overrides", {})}
        sent = {"Tpc-Version": "1", "Accept": contract.JSON}
        for name, value in environ.items():
            if name.startswith("HTTP_"):
                sent[name[5:].replace("_", "-").title()] = value
        if "json" in how:
            data = json.dumps(how.pop("json")).encode()
            sent["Content-Type"] = contract.JSON
        assert not how, how
        sent |= {"Content-Length": str(len(data or b"")), **dict(headers)}
        name = sent.get("Tpc-Participant", "")
        participant: Any = open_participant(name, self._url, None, PATIENT)
        body = data and io.BytesIO(data) if path == "/prepare" else data
        most = contract.MAX_SHOWN_BYTES
        return _Answer(*participant.exchange(method, path, body, sent, PATIENT, most))


@dataclasses.dataclass(frozen=True)
class _Answer:
    status_code: int
    content_type: str
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def get_json(self) -> Any:
        return json.loads(self.body)
