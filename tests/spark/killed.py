"""A job and its participants, each a process that a failpoint can kill."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from support.spark import held
from support.waiting import AT_LAST

from participants.processes import Process, Service, free_ports
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.store import open_log
from tracing_2pc.testing import FaultProxy

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


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
            *("--pythonpath", str(HERE.parent), "--bind", f"127.0.0.1:{port}"),
            "support.service:create_app()",
        ]


class Crash:
    """Two participants, one behind a proxy, and a driver that is told where to die.

    Args:
        job: the program, beside this file.
        about: further arguments for it.
    """

    def __init__(
        self, folder: Path, stack: contextlib.ExitStack, job: str, *about: str
    ) -> None:
        self.folder = folder
        self.a, self.b = Participant("a", folder), Participant("b", folder)
        self.to_b = stack.enter_context(FaultProxy(self.b.url))
        path = os.pathsep.join([str(HERE.parent), str(ROOT)])
        command = [
            *(sys.executable, str(HERE / job), str(folder)),
            *(self.a.url, self.to_b.url, *about),
        ]
        self.job = Process("job", command, folder / "job.log", {"PYTHONPATH": path})

    def arm(self, failpoint: str) -> dict[str, str]:
        name = failpoint.partition(":")[0]
        file = self.folder / f"fired-{name}"
        return {"TPC_FAILPOINT": failpoint, "TPC_FAILPOINT_FILE": str(file)}

    def fired(self, failpoint: str) -> bool:
        return (self.folder / f"fired-{failpoint.partition(':')[0]}").exists()

    def run(self, **environment: str) -> int:
        self.job.start(**environment)
        return self.job.wait(AT_LAST)

    def held(self) -> tuple[int, int]:
        return held(self.a.database).total(), held(self.b.database).total()

    def state(self, transaction: str) -> TransactionState | None:
        log = open_log(f"sqlite:///{self.folder / 'log.db'}")
        try:
            record = log.read(TransactionId.parse(transaction))
            return record and record.state
        finally:
            log.close()

    def unfinished(self) -> list[str]:
        log = open_log(f"sqlite:///{self.folder / 'log.db'}")
        try:
            return [str(record.id) for record in log.unfinished()]
        finally:
            log.close()
