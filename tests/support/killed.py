"""A job and its participants, each a process that a failpoint can kill."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from participants.processes import Process, Service, free_ports
from support.stream_world import Kept
from support.telemetry import PATH
from support.waiting import AT_LAST
from tracing_2pc.testing import FaultProxy

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent


class Participant(Service):
    """`support/service.py` under gunicorn, with its own SQLite file."""

    def __init__(self, name: str, folder: Path) -> None:
        (port,) = free_ports(1)
        self.database = folder / f"{name}.db"
        environment = {"DATABASE": f"sqlite:///{self.database}"}
        super().__init__(name, port, folder / f"{name}.log", environment)
        config = ROOT / "participants" / "gunicorn_conf.py"
        self._command = [
            *(sys.executable, "-m", "gunicorn", "--config", str(config)),
            *("--pythonpath", str(TESTS), "--bind", f"127.0.0.1:{port}"),
            "support.service:create_app()",
        ]


class Crash(Kept):
    """Two participants, one behind a proxy, and a driver that is told where to die.

    Args:
        job: the program, in `tests/`.
        about: further arguments for it.
    """

    def __init__(
        self, folder: Path, stack: contextlib.ExitStack, job: str, *about: str
    ) -> None:
        self.folder, self.log_url = folder, f"sqlite:///{folder / 'log.db'}"
        self.a, self.b = Participant("a", folder), Participant("b", folder)
        self.to_b = stack.enter_context(FaultProxy(self.b.url))
        self._program = sys.executable, str(TESTS / job), str(folder)
        self._about = about
        self.job = self._job(self.a.url, self.to_b.url)

    def _job(self, *urls: str) -> Process:
        command = [*self._program, *urls, *self._about]
        log = self.folder / "job.log"
        return Process("job", command, log, {"PYTHONPATH": PATH})

    def leave_services_out(self) -> None:
        """From now on the job opens the two databases itself."""
        files = (f"sqlite:///{self.folder}/{name}.db?table=numbers" for name in "ab")
        self.job = self._job(*files)

    def arm(self, failpoint: str) -> dict[str, str]:
        name = failpoint.partition(":")[0]
        file = self.folder / f"fired-{name}"
        return {"TPC_FAILPOINT": failpoint, "TPC_FAILPOINT_FILE": str(file)}

    def fired(self, failpoint: str) -> bool:
        return (self.folder / f"fired-{failpoint.partition(':')[0]}").exists()

    def run(self, **environment: str) -> int:
        self.job.start(**environment)
        return self.job.wait(AT_LAST)

    def totals(self) -> tuple[int, ...]:
        return tuple(numbers.total() for numbers in self.held())
