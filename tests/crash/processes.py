"""Real processes that start in milliseconds, and end by their id.

A fork server that has imported everything forks them: they share code with it, and
nothing that is open, as it opens nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from support import fork_server
from support.waiting import AT_LAST

from tracing_2pc.core import failpoints

_TESTS = Path(__file__).parents[1]
_PRELOAD = [
    "crash.kinds",
    "crash.roles",
    "pandas",  # PyArrow imports it at the first conversion
    "psycopg",
    "pyarrow.csv",
    "pyarrow.parquet",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "werkzeug.serving",
]
_context = multiprocessing.get_context("forkserver")


def pipe() -> tuple[Connection, Connection]:
    """Return both ends of a connection that can be given to processes."""
    return _context.Pipe()


def start_server() -> None:
    """Start the fork server unless it runs; it ends with this process."""
    # A child imports the main script again; with this it is in memory already.
    main = ["pytest"] if "pytest" in sys.modules else []
    fork_server.preload([*_PRELOAD, *main])
    path = os.pathsep.join([str(_TESTS), str(_TESTS.parent)])
    # Single threads: numpy's would be lost in the fork.
    with _environment(PYTHONPATH=path, OPENBLAS_NUM_THREADS="1"):
        forkserver.ensure_running()


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@dataclasses.dataclass(frozen=True, slots=True)
class Life:
    """What a process is told about its life.

    Args:
        log: file that its output is appended to.
        lifeline: it ends when the other end is closed, whoever closed it.
        environment: the `TPC_...` variables that it has.
    """

    log: Path
    lifeline: Connection
    environment: Mapping[str, str]


class Process:
    """One life of a role, in a session of its own.

    Args:
        life: its log, lifeline and environment.
        role: what it runs.
        about: arguments of the role.
    """

    def __init__(self, life: Life, role: Callable[..., None], *about: Any) -> None:
        self._forked: ForkServerProcess = _context.Process(
            target=_live, args=(life, role, about), daemon=True
        )
        self._forked.start()

    @property
    def pid(self) -> int:
        """Its process id, which is that of its session and group too."""
        assert self._forked.pid is not None
        return self._forked.pid

    @property
    def sentinel(self) -> int:
        """A file descriptor that is ready when it has ended."""
        return int(self._forked.sentinel)

    def ended(self) -> int | None:
        """Return its exit code, minus the signal that ended it, or None."""
        return self._forked.exitcode

    def wait(self, timeout: float) -> int:
        """Wait for its end and return its exit code.

        Raises:
            TimeoutError: it is still running.
        """
        self._forked.join(timeout)
        if (code := self.ended()) is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout:g} s")
        return code

    def kill(self) -> None:
        """Kill it, if it runs, as a power cut would."""
        if self.ended() is None:
            self._forked.kill()
            self.wait(AT_LAST)


def _live(life: Life, role: Callable[..., None], about: tuple[Any, ...]) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the harness's business
    _write_to(life.log)
    for name in [n for n in os.environ if n.startswith(("TPC_", "OTEL_"))]:
        del os.environ[name]
    os.environ.update({"TPC_SPANS": "off", **life.environment})
    failpoints.arm()
    threading.Thread(target=_end_with, args=(life.lifeline,), daemon=True).start()
    role(*about)


def _write_to(log: Path) -> None:
    file = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


def _end_with(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(3)
