"""One run's processes: started, killed by a failpoint, started again, looked at."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import socket
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection, wait
from pathlib import Path

from support.nats import shared
from support.waiting import AT_LAST, SOON

from crash import oracle, roles, source
from crash.deaths import Deaths
from crash.kinds import KINDS, REFUSED, TABLE, constrained, outbox
from crash.points import OUTSIDE, PARTICIPANTS, Scenario, Variant
from crash.processes import Life, Process, pipe
from participants.processes import answers
from tracing_2pc.core.remote_participant import open_participant
from tracing_2pc.embedded.addresses import with_options

APPLICATION = "crash"
_LIVES = 10
"""More than any scenario asks of a service."""

_PAUSE = 0.01
_PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to clients."""


@dataclasses.dataclass(slots=True)
class Driver:
    """The lives of one application's driver: how they ended, and the present one."""

    job: roles.Job
    process: Process
    ends: list[int] = dataclasses.field(default_factory=list)

    @property
    def finished(self) -> bool:
        """It came to the end of its source."""
        return self.ends[-1:] == [0]


class World:
    """Partner, participants, drivers with their executors, and recoveries.

    Args:
        folder: where everything is kept.
        scenario: who dies where.
        variant: what is special in this run.
        urls: of the databases: `log`, `ledger`, `notifier`.
        body: bytes of text in each branch.
    """

    def __init__(
        self,
        folder: Path,
        scenario: Scenario,
        variant: Variant,
        urls: Mapping[str, str],
        body: int,
    ) -> None:
        self.folder = folder
        self.scenario = scenario
        self.variant = variant
        self.urls = urls
        self.body = body
        points = [f"{scenario.point}:{variant.time}", *scenario.after]
        armed = "" if scenario.point in OUTSIDE else variant.victim
        self.deaths = Deaths(folder, armed, points)
        self.drivers: dict[str, Driver] = {}
        self._until = time.monotonic() + AT_LAST
        self._kind = KINDS[variant.kind]
        is_embedded = self._kind.transport == "embedded"
        services = [n for n in PARTICIPANTS if n != "ledger" or not is_embedded]
        self._ports = {name: _reserve_port() for name in ("partner", *services)}
        self._lifeline, self._held = pipe()
        self._services: dict[str, Process] = {}
        self._lives: Counter[str] = Counter()
        self._started: list[Process] = []

    def close(self) -> None:
        """Kill what runs, by its id. Whoever is left ends with the lifeline."""
        self._held.close()
        for process in self._started:
            process.kill()
        self._lifeline.close()
        for port in self._ports.values():
            port.close()

    @property
    def places(self) -> oracle.Places:
        """Where the oracle looks."""
        databases = {name: self.urls[name] for name in self._participants}
        told = f"{self._url('partner')}/notifications"
        source = self.folder / "source"
        out = self.folder / "out" if self.scenario.files else None
        refused = REFUSED if self.scenario.rejects else None
        about = source, self.urls["log"], databases, TABLE, told, out
        return oracle.Places(*about, refused=refused)

    @property
    def _participants(self) -> tuple[str, ...]:
        return (*PARTICIPANTS, *([roles.REJECTED] if self.scenario.rejects else []))

    def time_left(self) -> float:
        """Return the seconds that are left; below 0 the run is over."""
        return self._until - time.monotonic()

    def check_time(self) -> None:
        """Raise `TimeoutError` when the run is over."""
        if self.time_left() < 0:
            raise TimeoutError(f"not done after {AT_LAST:g} s")

    # --- services ----------------------------------------------------------------

    def start_services(self) -> None:
        """Start partner and participants side by side, and wait until all answer."""
        if self.scenario.rejects:
            oracle.write(self.urls["ledger"], constrained(self._kind))
        for name in self._ports:
            self._start_service(name)
        for name in self._ports:
            self._await(name)

    def tend(self) -> None:
        """Start the services again that have ended."""
        for name, process in list(self._services.items()):
            if process.ended() is not None:
                self._start_service(name)
                self._await(name)

    def process(self, role: str) -> Process:
        """Return the living process of a service, or of the one driver."""
        if role == "driver":
            (driver,) = self.drivers.values()
            return driver.process
        return self._services[role]

    def _start_service(self, name: str) -> None:
        self._lives[name] += 1
        if self._lives[name] > _LIVES:
            raise RuntimeError(f"{name} ends again and again: see its log")
        life = self._life(name, self.deaths.next_life(name))
        port, kind = self._port(name), self._kind
        if name == "partner":
            file = self.folder / "partner.db"
            process = Process(life, roles.partner, file, port)
        elif name == "ledger":
            url = self.urls[name]
            where = self._url(name) if kind.transport == "nats" else port
            about = (kind.ledger, (url,), where, kind.transport)
            process = Process(life, roles.participant, *about)
        else:
            about = (self.urls[name], f"{self._url('partner')}/notifications")
            process = Process(life, roles.participant, outbox, about, port)
        self._services[name] = process
        self._started.append(process)

    def _await(self, name: str) -> None:
        """Wait until a service answers; an outbox begins to send when it is asked."""
        while not self._is_ready(name):
            self.check_time()
            if self._services[name].ended() is not None:
                self._start_service(name)
            time.sleep(_PAUSE)

    def _is_ready(self, name: str) -> bool:
        url = self._url(name)
        if url.startswith("http:"):
            return answers(f"{url}/health/ready")
        described = open_participant(name, url, None, SOON).describe()
        return (described.unreachable, described.unready) == (None, None)

    def _url(self, name: str) -> str:
        if name == roles.REJECTED:
            return with_options(self.urls[name], {"table": name})
        transport = self._kind.transport if name == "ledger" else "http"
        if transport == "embedded":
            return f"{self.urls[name]}&into={TABLE}"
        if transport == "nats":  # a name of this world's own, at a server that lasts
            return shared().url(f"ledger-{self._port(name)}")
        return f"{transport}://127.0.0.1:{self._port(name)}"

    def _port(self, name: str) -> int:
        return int(self._ports[name].getsockname()[1])

    # --- drivers -----------------------------------------------------------------

    def start_driver(
        self,
        application: str = APPLICATION,
        environment: Mapping[str, str] | None = None,
        *,
        behind: float = 0.0,
    ) -> Driver:
        """Start an application's driver, with new executors.

        Args:
            application: whose.
            environment: instead of what the scenario arms it with.
            behind: seconds by which its clock is slow.
        """
        job = self._job(application, behind)
        armed = self.deaths.next_life("driver") if environment is None else environment
        with ExitStack() as ours:
            executors = self._start_executors(job, ours)
            life = self._life("driver", armed)
            process = Process(life, roles.driver, job, executors)
        self._started.append(process)
        ends = self.drivers[application].ends if application in self.drivers else []
        self.drivers[application] = Driver(job, process, ends)
        return self.drivers[application]

    def run_to_the_end(self) -> None:
        """Start again whatever ends, until every driver has finished.

        Raises:
            TimeoutError: one has not.
        """
        while unfinished := [d for d in self.drivers.values() if not d.finished]:
            self.check_time()
            self.tend()
            for driver in unfinished:
                self._look_after(driver)
            processes = [*self._services.values(), *(d.process for d in unfinished)]
            wait([process.sentinel for process in processes], 0.2)

    def _look_after(self, driver: Driver) -> None:
        if (code := driver.process.ended()) is None:
            return
        driver.ends.append(code)
        if code:
            time.sleep(_PAUSE * min(len(driver.ends), 10))
            self.start_driver(driver.job.application)

    def _job(self, application: str, behind: float) -> roles.Job:
        scenario = self.scenario
        return roles.Job(
            self.folder,
            application,
            self.urls["log"],
            {name: self._url(name) for name in self._participants},
            gate=scenario.gate,
            retries=scenario.retries,
            raises=scenario.raises,
            takes_driver=scenario.takes_driver,
            behind=behind,
            files=self.places.files,
            rejects=scenario.rejects,
        )

    def _start_executors(self, job: roles.Job, ours: ExitStack) -> list[Connection]:
        """Start one per partition, and a spare one if tasks are retried."""
        armed = self.deaths.next_life("executor")
        lives = [armed] * source.PARTITIONS + ([{}] if job.retries else [])
        connections = []
        for environment in lives:
            driver_end, executor_end = pipe()
            ours.enter_context(closing(driver_end))
            with closing(executor_end):
                life = self._life("executor", environment)
                self._started.append(Process(life, roles.executor, job, executor_end))
            connections.append(driver_end)
        return connections

    # --- recovery, and the gate ----------------------------------------------------

    def recover(self) -> int:
        """Run one recovery and return its exit code."""
        life = self._life("recovery", self.deaths.next_life("recovery"))
        addresses = {name: self._url(name) for name in self._participants}
        process = Process(life, roles.recovery, self.urls["log"], addresses)
        self._started.append(process)
        return process.wait(max(self.time_left(), 1.0))

    def settle(self) -> float:
        """Recover until no work is open; return when that was, Unix seconds.

        Raises:
            TimeoutError: some is.
        """
        while True:
            self.check_time()
            self.tend()
            transactions, branches, requests = oracle.open_work(self.places)
            if not transactions + branches + requests:
                return time.time()
            if transactions:
                self.recover()
            time.sleep(_PAUSE)

    def await_gate(self) -> None:
        """Wait until the driver stands at its gate."""
        (driver,) = self.drivers.values()
        while not driver.job.arrived.exists():
            self.check_time()
            if driver.process.ended() is not None:
                raise RuntimeError("the driver ended before its gate")
            time.sleep(_PAUSE)

    def open_gate(self) -> None:
        """Let the driver on."""
        (driver,) = self.drivers.values()
        driver.job.opened.touch()

    def _life(self, name: str, environment: Mapping[str, str]) -> Life:
        told = {"TPC_TOKEN": "none-is-needed", **environment}
        return Life(self.folder / f"{name}.txt", self._lifeline, told)


def _reserve_port() -> socket.socket:
    """Bind a port that nobody has. Only who shares it can listen there, we don't.

    A service that is down must not lose its port to another run's.
    """
    while True:
        address = ("127.0.0.1", random.choice(_PORTS))
        with contextlib.suppress(OSError):
            with socket.socket() as probe:
                probe.bind(address)
            held = socket.socket()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(address)
            return held
