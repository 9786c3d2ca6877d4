"""Start, watch, kill and restart the demo's services, each a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from .serve import PACKAGE, ROOT

TAIL: Final = 2000


def free_ports(count: int) -> list[int]:
    """Return loopback ports that were free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def answers(url: str, timeout: float = 1.0) -> bool:
    """Say whether a GET of this URL is answered 200. No proxy, no redirect."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=timeout
    )
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Process:
    """A command in a session of its own: a failpoint kills it and nothing else.

    Args:
        name: for messages.
        command: what to run.
        log: file to which its output is appended.
        environment: variables added to ours; None removes one.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = dict(environment or {})
        self._running: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str | None) -> None:
        """Start it, once; variables given here count for this life only."""
        if self.alive():
            raise RuntimeError(f"{self.name} is running already")
        variables = os.environ | self._environment | environment
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={k: v for k, v in variables.items() if v is not None},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id, which is that of its group and session too."""
        if self._running is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._running.pid

    def alive(self) -> bool:
        """Say whether it runs."""
        return self._running is not None and self._running.poll() is None

    def wait(self, timeout: float) -> int:
        """Wait for its end: its exit code, or minus the signal that ended it.

        Raises:
            TimeoutError: it is still running.
        """
        if self._running is None:
            raise RuntimeError(f"{self.name} was never started")
        try:
            return self._running.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} still runs after {timeout:g} s") from None

    def until_answers(self, url: str, timeout: float) -> None:
        """Wait until a GET of this URL, one of its own, is answered 200.

        Raises:
            RuntimeError: it ended, or time was up; with the end of its log.
        """
        deadline = time.monotonic() + timeout
        while self.alive() and time.monotonic() < deadline:
            if answers(url):
                return
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} did not start:\n{self.tail()}")

    def stop(self, timeout: float = 30.0) -> int | None:
        """Ask it to end, and after `timeout` make it. None: it did not run."""
        if not self.alive():
            return None
        os.kill(self.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            self.wait(timeout)
        if self.alive():
            self.kill()
        return self.wait(timeout)

    def kill(self) -> None:
        """Kill its whole group at once, as a power cut would."""
        if self.alive():
            os.killpg(self.pid, signal.SIGKILL)
            self.wait(60)

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_bytes()[-TAIL:].decode(errors="replace")


class Service(Process):
    """One of this folder's services: started when it is ready, not before."""

    def __init__(
        self, module: str, port: int, log: Path, environment: Mapping[str, str | None]
    ) -> None:
        command = [sys.executable, "-m", f"{PACKAGE}.{module}", "--port", str(port)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        super().__init__(module, command, log, {"PYTHONPATH": path, **environment})
        self.url = f"http://127.0.0.1:{port}"

    def start(self, **environment: str | None) -> None:
        """Start it and wait until it is ready.

        Raises:
            RuntimeError: it ended, or was not ready in 120 s; with the end of its log.
        """
        super().start(**environment)
        self.ready()

    def launch(self, **environment: str | None) -> None:
        """Start it without waiting; `ready` waits."""
        super().start(**environment)

    def ready(self) -> None:
        """Wait until it is ready, or raise as `start` does."""
        try:
            self.until_answers(f"{self.url}/health/ready", 120)
        except RuntimeError:
            self.kill()
            raise

    def restart(self, **environment: str | None) -> None:
        """Stop it if it runs, and start it again."""
        self.stop()
        self.start(**environment)


class Served(Service):
    """A participant that `tracing-2pc serve` serves, in one process.

    Args:
        name: the participant's.
        address: of its table, topic or queue, without a password.
        port: where to listen.
        log: file to which its output is appended.
        environment: variables added to ours.
    """

    def __init__(
        self,
        name: str,
        address: str,
        port: int,
        log: Path,
        environment: Mapping[str, str | None],
    ) -> None:
        own = {"WEB_CONCURRENCY": "1", "TPC_PARTICIPANTS": f"{name}={address}"}
        super().__init__(name, port, log, {**own, **environment})
        place = ("serve", name, "--listen", f"127.0.0.1:{port}")
        self._command = [sys.executable, "-m", "tracing_2pc", *place]


class Ledger(Served):
    """The ledger: sums per day, origin and carrier, or another table.

    It has no key on purpose: a batch that were applied twice would be seen twice.
    """

    def __init__(
        self,
        database: str,
        port: int,
        log: Path,
        environment: Mapping[str, str | None],
        table: str = "flights_daily",
    ) -> None:
        address = table_at(database, table)
        super().__init__("ledger", address, port, log, environment)


def table_at(database: str, table: str = "flights_daily") -> str:
    """Return the address of a table in a database that is given as SQLAlchemy's URL."""
    mark = "&" if "?" in database else "?"
    return f"{database.replace('+psycopg', '')}{mark}table={table}"


def make_table(database: str, statement: str) -> None:
    """Make a table in a database whose URL is SQLAlchemy's, by this statement."""
    import sqlalchemy as sa

    engine = sa.create_engine(database, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)


@contextlib.contextmanager
def stopping(*processes: Process) -> Iterator[None]:
    """Stop them all at the end, last first, whatever happens inside."""
    with contextlib.ExitStack() as stack:
        for process in processes:
            stack.callback(process.stop)
        yield


def start_together(*services: Service) -> None:
    """Start services side by side; all are ready when it returns."""
    for service in services:
        service.launch()
    for service in services:
        service.ready()
