"""Every way to reach a participant: suites that are about transports run over each.

Add a transport here: a server within the test's process, and one that is a process.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from support.spark import serving
from tracing_2pc.grpc import GrpcServer

_GUNICORN = Path(__file__).parents[2] / "participants" / "gunicorn_conf.py"


@dataclasses.dataclass(frozen=True)
class Transport:
    """One of them.

    Args:
        serve: serves a WSGI application from threads, and yields its URL; what has
            begun is answered at the end, and no thread is left.
        url: of what listens at a port of loopback.
        command: a program that serves `module:make()` at a port, until SIGTERM.
    """

    serve: Callable[[Any], AbstractContextManager[str]]
    url: Callable[[int], str]
    command: Callable[[str, int], list[str]]


@contextmanager
def _by_grpc(application: Any) -> Iterator[str]:
    with GrpcServer(application, "127.0.0.1:0") as server:
        yield server.url


def _gunicorn(application: str, port: int) -> list[str]:
    command = [sys.executable, "-m", "gunicorn", "--config", str(_GUNICORN)]
    return [*command, "--bind", f"127.0.0.1:{port}", application]


def _grpc(application: str, port: int) -> list[str]:
    command = [sys.executable, "-m", "tracing_2pc.grpc"]
    return [*command, "--listen", f"127.0.0.1:{port}", application]


TRANSPORTS = {
    "http": Transport(serving, "http://127.0.0.1:{}".format, _gunicorn),
    "grpc": Transport(_by_grpc, "grpc://127.0.0.1:{}".format, _grpc),
}
