"""Programs with telemetry of their own, and collectors that are dead in each way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.served import unserved
from support.waiting import AT_LAST
from tracing_2pc.testing import Collector

DEAD = ("not there", "refusing", "hanging")
"""What `dead` can be asked for."""

TESTS = Path(__file__).parents[1]
PATH = os.pathsep.join([str(TESTS), str(TESTS.parent)])
PRELUDE = """
import json, os, sys, time
from tracing_2pc.tracing.sdk import lifecycle
from tracing_2pc.tracing import spans
def timed(function, *arguments):
    start = time.monotonic()
    return function(*arguments), time.monotonic() - start
def made(count=1):
    for _ in range(count):
        with spans.span("tpc.decide"):
            pass
def say(what):
    print(json.dumps(what), flush=True)
"""
START = f'{PRELUDE}lifecycle.start("job")\n'
TASK_TO_RUN = """
import pyspark
from backends import job
from tracing_2pc.core.model import TransactionId, TransactionRecord
from tracing_2pc.core.states import TransactionState
class Rows:
    def begin(self, context): return {}
    def invoke(self, handle, record): pass
    def pre_commit(self, handle): pass
    def commit(self, handle): pass
    def abort(self, handle): pass
record = TransactionRecord(
    TransactionId("numbers", 0, 1), "run", TransactionState.ACTIVE, None, ("Rows",),
    frozenset(), {}, 0.0,
)
"""
"""For `job.task(Rows(), record, partition, attempt)`: a sink that nobody is behind."""


@contextlib.contextmanager
def dead(how: str) -> Iterator[str]:
    """Yield the endpoint of a collector that takes nothing; it is so to the end."""
    if how == "not there":
        with unserved() as url:
            yield url
        return
    with Collector() as collector:
        collector.refuse() if how == "refusing" else collector.hang()
        yield collector.endpoint


class Program:
    """A process that says something, a line of JSON at a time.

    Args:
        running: it; what it says goes to its standard output.
    """

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self.running = running

    def said(self) -> Any:
        """Return what it says next; a program does so by `say`."""
        assert self.running.stdout is not None
        return json.loads(self.running.stdout.readline())

    def ended(self) -> float:
        """Return how long it took to end, from now on; it must end well."""
        since = time.monotonic()
        assert self.running.wait(AT_LAST) == 0
        return time.monotonic() - since


@contextlib.contextmanager
def started(*command: str, **environment: str) -> Iterator[Program]:
    """Run Python with these arguments; whatever happens, it is over at the end."""
    running = subprocess.Popen(
        [sys.executable, "-W", "error", *command],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": PATH, "TPC_SPANS": "off", **environment},
        start_new_session=True,
    )
    with running:
        try:
            yield Program(running)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)


def program(
    code: str, *, start: str = START, **environment: str
) -> contextlib.AbstractContextManager[Program]:
    """Run a piece of code that has started telemetry; after `PRELUDE` it has not."""
    return started("-c", start + code, **environment)


def run(code: str, *, start: str = START, **environment: str) -> tuple[Any, float]:
    """Run it; return what it said, and how long it took to exit after that."""
    with program(code, start=start, **environment) as running:
        return running.said(), running.ended()
