"""A real NATS server, which tests kill and start again, and participants behind it."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from participants.processes import Process, free_ports
from support.telemetry import PATH
from support.waiting import until
from tracing_2pc import cli
from tracing_2pc.core.access import TokenGate, digest_of
from tracing_2pc.nats import NatsServer
from tracing_2pc.nats.link import LOOP
from tracing_2pc.wire.bridge import PARTICIPANT, PROVEN

TOKEN = "0123456789abcdef0123"
"""Of the role job, where a test makes the tokens file."""


_COMMAND = """
import logging, sys
logging.getLogger("tracing_2pc.nats").setLevel(logging.INFO)
from tracing_2pc.cli import main
sys.exit(main())
"""
"""`tracing-2pc`, which says when it is served by NATS."""


class Nats(Process):
    """`nats-server`, on loopback; its port stays when it is started again.

    Args:
        folder: of its configuration and its log.
        configuration: further lines, as of users and what they may do.
    """

    def __init__(self, folder: Path, configuration: str = "", port: int = 0) -> None:
        self.port = port or free_ports(1)[0]
        file = folder / "nats.conf"
        file.write_text(f'listen: "127.0.0.1:{self.port}"\n{configuration}')
        program = Path(sys.executable).with_name("nats-server")
        self.command = [str(program), "--config", str(file)]
        super().__init__("nats", self.command, folder / "nats.log")

    def url(self, name: str = "ledger", scheme: str = "nats") -> str:
        return f"{scheme}://127.0.0.1:{self.port}/{name}"

    def listen(self) -> None:
        """Start it, and wait until it listens."""
        self.start()
        until(self._listens, tell=lambda _: self.tail())

    def _listens(self) -> bool:
        assert self.alive(), self.tail()
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


@contextlib.contextmanager
def running(folder: Path, configuration: str = "") -> Iterator[Nats]:
    """Run one, and hang up to it at the end."""
    node = Nats(folder, configuration)
    try:
        node.listen()
        yield node
    finally:
        LOOP.close()
        node.kill()


@functools.cache
def shared() -> Nats:
    """Return one that runs until this process ends, for who does not harm it."""
    folder = tempfile.TemporaryDirectory()
    node = Nats(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(node.kill)
    node.listen()
    return node


class Instance(Process):
    """`tracing-2pc serve ledger --nats`."""

    def __init__(self, folder: Path, name: str, url: str, database: str) -> None:
        tokens = folder / "tokens"
        tokens.write_text(f"job {TOKEN}\n")
        command = [
            *(sys.executable, "-c", _COMMAND),
            *("serve", "ledger", "--nats", url),
        ]
        environment = {
            "PYTHONPATH": PATH,
            "TPC_PARTICIPANTS": f"ledger=sqlite:///{folder / database}?table=numbers",
            "TPC_TOKENS_FILE": str(tokens),
        }
        super().__init__(name, command, folder / f"{name}.log", environment)

    def is_ready(self) -> None:
        """Wait until it is served."""

        def served() -> bool:
            assert self.alive(), self.tail()
            return "serving: url=" in self.tail()

        until(served, tell=lambda _: self.tail())


@contextlib.contextmanager
def near(application: Any) -> Iterator[Any]:
    """Let one that was told `insecure=True` take who asks by NATS for a neighbour.

    For suites that are about routes. That it is refused otherwise has its own test.
    """
    participant = application.extensions[PARTICIPANT]
    if isinstance(participant.gate, TokenGate):
        yield application
        return
    wsgi = application.wsgi_app
    kept = dict(application.extensions)

    def nearby(environ: dict[str, Any], start: Any) -> Any:
        environ.pop(PROVEN, None)
        return wsgi({"REMOTE_ADDR": "127.0.0.1", **environ}, start)

    class AnyToken(TokenGate):
        digests = tuple(map(digest_of, (TOKEN, "anything", "none-is-needed")))

    class Open:
        gate, resource = AnyToken([f"job {TOKEN}"], "a test"), participant.resource

    application.wsgi_app = nearby
    application.extensions[PARTICIPANT] = Open
    try:
        yield application
    finally:
        application.wsgi_app = wsgi
        application.extensions.update(kept)


@contextlib.contextmanager
def serving_by_nats(application: Any, url: str) -> Iterator[str]:
    """Serve an application at a NATS server that runs."""
    with near(application) as served, NatsServer(served, url) as server:
        until(lambda: server.is_connected)
        yield server.url


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main(port: str) -> None:
    """Serve `ledger`, with a NATS server at this port that ends with us."""
    with tempfile.TemporaryDirectory() as folder:
        node = Nats(Path(folder), port=int(port))
        command = subprocess.Popen(node.command, preexec_fn=_end_with_parent)
        try:
            cli.main(["serve", "ledger", "--nats", node.url()])
        finally:
            command.kill()
            command.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
