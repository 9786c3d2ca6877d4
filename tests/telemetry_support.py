"""Programs with telemetry of their own, and collectors that are dead in each way."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from tracing_2pc.testing import Collector

DEAD = ("not there", "refusing", "hanging")
"""What `dead` can be asked for."""

START = """
import json, os, sys, time
from tracing_2pc.telemetry import lifecycle, spans
def timed(function, *arguments):
    start = time.monotonic()
    return function(*arguments), time.monotonic() - start
def made(count=1):
    for _ in range(count):
        with spans.span("tpc.decide"):
            pass
def say(what):
    print(json.dumps(what), flush=True)
lifecycle.start("job")
"""


@contextlib.contextmanager
def dead(how: str) -> Iterator[str]:
    """Yield the endpoint of a collector that takes nothing; it is so to the end."""
    if how == "not there":
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        yield f"http://127.0.0.1:{port}"
        return
    with Collector() as collector:
        collector.refuse() if how == "refusing" else collector.hang()
        yield collector.endpoint


class Program:
    """A process that has started telemetry and runs a piece of code.

    Args:
        running: it; what it says goes to its standard output.
    """

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self.running = running

    def said(self) -> Any:
        """Return what it says next, of which it can tell by `say`."""
        assert self.running.stdout is not None
        return json.loads(self.running.stdout.readline())

    def ended(self) -> float:
        """Return how long it took to end, from now on; it must end well."""
        since = time.monotonic()
        assert self.running.wait(60) == 0
        return time.monotonic() - since


@contextlib.contextmanager
def program(code: str, **environment: str) -> Iterator[Program]:
    """Run it; whatever happens, it is over at the end."""
    command = [sys.executable, "-W", "error", "-c", START + code]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment
    )
    with running:
        try:
            yield Program(running)
        finally:
            running.kill()


def run(code: str, **environment: str) -> tuple[Any, float]:
    """Run it; return what it said, and how long it took to exit after that."""
    with program(code, **environment) as started:
        return started.said(), started.ended()
