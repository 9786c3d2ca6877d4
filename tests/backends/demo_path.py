"""The demo's path: partner, ledger, notifier and a job, each a process of its own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.exporting import to
from support.telemetry import PATH
from support.waiting import AT_LAST

from backends.job import AWAITED
from participants.processes import (
    Ledger,
    Process,
    Service,
    free_ports,
    start_together,
    stopping,
)
from tracing_2pc.core.settings import Settings
from tracing_2pc.operations.init import init


class DemoPath:
    """Services that run, and a job to be started.

    Args:
        folder: holds everything.
        endpoint: where all of them send their spans to.
    """

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder
        self.endpoint = endpoint
        tokens, ports = folder / "tokens", free_ports(3)
        log = Settings(log=f"sqlite:///{folder / 'decisions.db'}")
        list(init(folder / "tpc.toml", log, tokens))
        held = dict(line.split() for line in tokens.read_text().splitlines()[1:])
        self.spans = folder / "spans"
        self._telemetry = {"TPC_SPANS": str(self.spans), **to(endpoint)}
        self.token = held["job"]
        self.partner = self._service("partner", ports[0], "PARTNER_DATABASE", "")
        told = {"PARTNER_URL": f"{self.partner.url}/notifications"}
        kept = {"TPC_TOKENS_FILE": str(tokens)}
        self.notifier = self._service(
            "notifier", ports[2], "NOTIFIER_DATABASE", "sqlite:///", **kept, **told
        )
        url, log_file = f"sqlite:///{folder / 'ledger.db'}", folder / "ledger.log"
        self.ledger = Ledger(url, ports[1], log_file, {**self._telemetry, **kept})

    @property
    def services(self) -> tuple[Service, Service, Service]:
        """In the order of their start."""
        return self.partner, self.ledger, self.notifier

    def job(
        self,
        folder: Path,
        application: str,
        batches: int,
        *,
        notifier: str = "",
        python: Sequence[str] = (sys.executable,),
    ) -> Process:
        """Return a job without Spark.

        Args:
            folder: its log and checkpoint.
            application: its name.
            batches: how many it ends with.
            notifier: URL of a proxy that stands before it.
            python: what starts Python.
        """
        named = [
            f"ledger={self.ledger.url}",
            f"notifier={notifier or self.notifier.url}",
        ]
        about = [str(folder), application, str(batches)]
        return self._job(*python, "-m", "backends.job", *about, *named)

    def watch_once(self, folder: Path) -> Process:
        """Return a watcher's one look at a job's log, by which all is stuck soon."""
        soon = {"REQUEST_TIMEOUT": 0.1, "SAFETY_INTERVAL": 0.2, "STUCK_AFTER": 0.3}
        soon |= {"ORPHAN_AFTER": 100, "STUCK_CRITICAL": 200, "PAUSE": 0.1}
        settings = {f"TPC_{name}": f"{value}s" for name, value in soon.items()}
        return self._command(folder, "watch", "--once", **settings)

    def recovery(self, folder: Path) -> Process:
        """Return one sweep over a job's log."""
        return self._command(folder, "recover")

    def spark_job(self) -> Process:
        """Return the demo's own job, on the services' own folder."""
        urls = [self.ledger.url, self.notifier.url]
        job = [sys.executable, "-m", "participants.job", str(self.folder), *urls]
        return self._job(*job)

    def _service(
        self, name: str, port: int, variable: str, scheme: str, **environment: str
    ) -> Service:
        environment[variable] = f"{scheme}{self.folder / name}.db"
        log = self.folder / f"{name}.log"
        return Service(name, port, log, {**environment, **self._telemetry})

    def _command(self, folder: Path, *words: str, **settings: str) -> Process:
        settings["TPC_LOG"] = f"sqlite:///{folder / 'decisions.db'}"
        named = f"ledger={self.ledger.url},notifier={self.notifier.url}"
        settings["TPC_PARTICIPANTS"] = named
        command, log = [sys.executable, "-m", "tracing_2pc"], folder / "command.log"
        environment = {**settings, **self._environment}
        return Process(words[0], [*command, *words], log, environment)

    def _job(self, *command: str) -> Process:
        environment = {**self._environment, "PYTHONPATH": PATH, AWAITED: "yes"}
        return Process("job", command, self.folder / "job.log", environment)

    @property
    def _environment(self) -> dict[str, str]:
        return {"TPC_TOKEN": self.token, **self._telemetry}


@contextlib.contextmanager
def demo_path(folder: Path, endpoint: str) -> Iterator[DemoPath]:
    """Run the services; jobs are the caller's."""
    path = DemoPath(folder, endpoint)
    with stopping(*path.services):
        start_together(*path.services)
        yield path


def armed(failpoint: str, folder: Path) -> dict[str, str]:
    """Return what lets a job die there, once."""
    return {
        "TPC_FAILPOINT": failpoint,
        "TPC_FAILPOINT_FILE": str(folder / f"fired-{failpoint}"),
    }


def run(job: Process, **environment: str) -> int:
    """Run a job to its end, which may be its death; return its exit code."""
    with stopping(job):
        job.start(**environment)
        return job.wait(AT_LAST)
