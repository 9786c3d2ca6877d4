"""A round whose members and faults are drawn by its seed; numbers to all of them.

Services over each transport, with a key, a relay to Kafka; folders, a Delta table and a
sink of one's own; by each way into Spark. What a reader of each sees is compared with
what was fed, by `chaos/readers.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
from confluent_kafka import KafkaException
from deltalake import DeltaTable
from support.nats import Nats
from support.programs import descendants
from support.spark import ROWS, write_numbers
from support.telemetry import PATH, TESTS
from support.transports import SERVE, TRANSPORTS
from support.waiting import SOON, until

from bench.kafka_broker import Broker
from chaos import readers
from chaos.world import AHEAD, Place, check_progress, made
from participants.processes import Process, Service, free_ports
from tracing_2pc.embedded.addresses import with_options
from tracing_2pc.testing import Fault, FaultProxy

WAYS: Final = ("foreachBatch", "source", "routes", "scheduler")
PLACES: Final = ("parquet", "lines", "delta", "own")
"""What is no service: two folders, a table, and a sink of one's own."""

REFUSED: Final = {"a": (7, 11, 3), "b": (5, 13, 4), "own": (3, 17, 2)}
"""A member that refuses rows takes no value with `value * x % y = z`."""

_APPLICATION = "support.service:create_app()"
_TOKEN: Final = "job-token-0123456789"
_JUMPS: Final = (0, 90, 7200, -90, -86400)
"""Seconds by which a clock is wrong from then on; PostgreSQL's, and services'."""
_LATE: Final = (0.5, 3.0, 9.0)
_NETWORK: Final = (Fault.DROP, Fault.LOSE_ANSWER, Fault.DELAY, Fault.DUPLICATE)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a round has.

    Args:
        way: into Spark.
        transport: of service b; a is reached by HTTP, through a network that fails.
        places: some of `PLACES`.
        state: whether the query keeps state, in RocksDB, and drops what comes twice.
        topic: whether there is a relay to Kafka.
        clocks: whether clocks of services and of PostgreSQL jump.
        embedded: whether b and the topic have no service: the job opens them.
        rejects: whether members refuse rows, for which there is a table of its own.
    """

    way: str
    transport: str = "http"
    places: tuple[str, ...] = ()
    state: bool = False
    topic: bool = False
    clocks: bool = False
    embedded: bool = False
    rejects: bool = False

    @classmethod
    def drawn(cls, chance: random.Random, number: int) -> Plan:
        """Draw the plan of a round; each way has its turn."""
        way = WAYS[number % len(WAYS)]
        places = [name for name in PLACES if chance.random() < 0.5]
        return cls(
            way,
            chance.choice(list(TRANSPORTS)),
            tuple(places),
            chance.random() < 0.5 and way != "scheduler",
            chance.random() < 0.5 and "TPC_KAFKA" in os.environ,
            chance.random() < 0.5 and shutil.which("gcc") is not None,
            chance.random() < 0.5,
            chance.random() < 0.5,
        )

    def members(self) -> list[str]:
        """Say what it has, in words that can be counted."""
        more = {"RocksDB": self.state, "Kafka": self.topic, "clocks": self.clocks}
        more["rejects"] = self.rejects
        drawn = [name for name, has in more.items() if has]
        b = "embedded" if self.embedded else self.transport
        return [self.way, f"b by {b}", *self.places, *drawn]

    @property
    def refusing(self) -> dict[str, tuple[int, int, int]]:
        """Return the members that refuse rows, in their order, and which."""
        here = {"a", "b", *self.places} if self.rejects else set()
        return {name: which for name, which in REFUSED.items() if name in here}

    def refused_by(self, value: int) -> list[str]:
        """Name the members that refuse a row."""
        return [n for n, (x, y, z) in self.refusing.items() if value * x % y == z]


class Mixed(Place):
    """All processes of such a round.

    Args:
        folder: where everything is kept.
        url: of the first database of a PostgreSQL that is ours alone.
        plan: what it has.
    """

    most = 30

    def __init__(self, folder: Path, url: str, plan: Plan) -> None:
        names = ["a", "b", *(["topic"] if plan.topic else [])]
        log = made(url, "log")
        self._databases = {name: made(url, name) for name in names}
        super().__init__(url, log, "mixed")
        self.journals += self._databases.items()
        self._rejected = made(url, "rejected") if plan.rejects else ""
        if plan.rejects:
            self.journals.append(("rejected", self._rejected))
            for name in "ab":
                self._constrain(name)
        self._folder, self._plan, self._fed = folder, plan, 0
        self.checkpoint = folder / "checkpoint"
        self._clock = folder / "clock"
        if plan.clocks:
            self._set_clock(0)
            _build_clock(folder)
        self._tokens = folder / "tokens"
        self._tokens.write_text(f"job {_TOKEN}\n")
        self._squeezed: dict[int, tuple[threading.Timer, tuple[int, int]]] = {}
        (folder / "in").mkdir()
        (folder / "own").mkdir()
        if "delta" in plan.places:
            numbers = pa.schema([(n, pa.int64()) for n in ("value", "part", "slot")])
            DeltaTable.create(folder / "delta", numbers, partition_by=["part"])
        self._broker: Broker | None = None
        kafka = {}
        if plan.topic:
            self._broker = Broker(folder / "broker")
            self._broker.folder.mkdir()
            kafka = {"KAFKA": f"{self._broker.address} topic1"}
            log_file = folder / "broker.log"
            self.others["broker"] = Process("broker", self._broker.command, log_file)
        ports = free_ports(len(names))
        self._add(_Serving("a", ports[0], folder, self._environment("a")))
        self._b = TRANSPORTS[plan.transport].url(ports[1])
        environment = self._environment("b", key="slot")
        self._embedded: dict[str, str] = {}
        if plan.embedded:
            self._embedded = self._addresses()
        elif plan.transport == "http":
            self._add(_Serving("b", ports[1], folder, environment))
        else:
            command = TRANSPORTS[plan.transport].command(ports[1])
            if plan.transport == "nats":  # the server is one more that may be killed
                self.others["nats"] = Nats(folder, port=ports[1])
                command = [*SERVE, "--nats", self._b]
            self.others["b"] = Process("b", command, folder / "b.log", environment)
        if plan.topic and not plan.embedded:
            environment = {**self._environment("topic"), **kafka}
            self._add(_Gunicorn("topic", ports[2], folder, environment))
        self._proxy = FaultProxy(self.services["a"].url)
        command = [sys.executable, str(TESTS / "chaos/mixed_job.py"), str(folder)]
        own = {"PYTHONPATH": PATH, "TPC_TOKEN": _TOKEN, "TPC_REQUEST_TIMEOUT": "5s"}
        self.drivers = {
            name: Process(name, command, folder / f"{name}.log", own)
            for name in ("job", "rival")
        }
        recover = [sys.executable, "-m", "tracing_2pc", "recover"]
        self._recovery = Process("recovery", recover, folder / "recovery.log")

    def _constrain(self, name: str) -> None:
        """Make a member's table, which refuses rows; a may not have one of them twice.

        So no row of an earlier attempt, and none of a task that was tried again, may
        get a good row rejected.
        """
        x, y, z = REFUSED[name]
        columns = "value bigint, part bigint, slot bigint, tpc_tag bigint NOT NULL, "
        columns += f"CHECK (value * {x} % {y} <> {z}), "
        columns += {
            "a": "UNIQUE (value)",
            "b": "tpc_application varchar(40) NOT NULL, tpc_batch bigint NOT NULL",
        }[name]
        with psycopg.connect(_plain(self._databases[name])) as connection:
            connection.execute(f"CREATE TABLE numbers_tpc ({columns})")

    def _addresses(self) -> dict[str, str]:
        """Return those of what has no service."""
        urls = {name: _plain(url) for name, url in self._databases.items()}
        addresses = {"b": with_options(urls["b"], {"table": "numbers", "key": "slot"})}
        if self._broker is not None:
            topic = f"kafka://{self._broker.address}/topic1"
            options = {"outbox": urls["topic"], "prefix": "outbox"}
            addresses["topic"] = with_options(topic, options)
        return addresses

    def _add(self, service: Service) -> None:
        self.services[service.name] = service

    def _environment(self, name: str, **options: str) -> dict[str, str]:
        wrong = _wrong_clock(self._clock) if self._plan.clocks else {}
        database, tokens = self._databases[name], str(self._tokens)
        address = with_options(_plain(database), {"table": "numbers", **options})
        own = {"DATABASE": database, "TOKENS": tokens, "TPC_TOKENS_FILE": tokens}
        own["TPC_PARTICIPANTS"] = f"ledger={address}"
        return {"PYTHONPATH": PATH, "WEB_CONCURRENCY": "2", **own, **wrong}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the round; its network and its broker, too."""
        with self._proxy, super().running():
            services = {name: s.url for name, s in self.services.items()}
            services |= {"a": self._proxy.url, "b": self._b} | self._embedded
            if self._rejected:
                table = {"table": "rejected"}
                services["rejected"] = with_options(_plain(self._rejected), table)
            plan = dataclasses.asdict(self._plan)
            about = {**plan, "services": services, "log": self.log}
            about["refuses"] = self._plan.refusing.get("own")
            (self._folder / "plan.json").write_text(json.dumps(about))
            if self._broker is not None:
                self.others["broker"].start()
                until(self._broker_answers)
                self._broker.topic()
            yield

    def tend(self) -> None:
        """Start again what has ended, feed the job."""
        if self._fed < min(self.committed() + AHEAD, self.most):
            self._feed()
        super().tend()

    def _feed(self) -> None:
        """Bring the next file, whole; with state, what came before comes once more."""
        write_numbers(self._folder / "aside", range(self._fed, self._fed + 1))
        file = self._folder / "aside" / "in" / f"{self._fed}.json"
        if self._plan.state and self._fed:
            again = self._folder / "in" / f"{self._fed - 1}.json"
            about = file.stat()
            file.write_text(f"{file.read_text()}\n{again.read_text()}")
            os.utime(file, (about.st_atime, about.st_mtime))
        file.rename(self._folder / "in" / file.name)
        self._fed += 1

    def _tend_services(self) -> None:
        with _given(_wrong_clock(self._clock) if self._plan.clocks else {}):
            self._tend_server()
        super()._tend_services()

    # --- what is done to it, beside kills --------------------------------------------

    def more_deeds(self, chance: random.Random) -> list[tuple[int, Callable[[], str]]]:
        """Return them, with weights."""
        deeds = [
            (4, lambda: self._fail_network(chance)),
            (2, lambda: self._squeeze(chance)),
            (1, self.start_rival),
        ]
        return deeds + ([(3, lambda: self._jump(chance))] if self._plan.clocks else [])

    def start_rival(self) -> str:
        """Start a second driver on the same checkpoint; nobody starts it again."""
        if not self.drivers["rival"].alive():
            self._start("rival")
        return "a second driver"

    def _fail_network(self, chance: random.Random) -> str:
        """Lose what one way brings, hold it back for seconds, or bring it twice."""
        fault, verb = chance.choice(_NETWORK), chance.choice(("prepare", "commit"))
        after = chance.choice(_LATE) if fault is Fault.DELAY else None
        times = chance.randint(1, 4)
        self._proxy.plan(verb, fault, times=times, after=after)  # type: ignore[arg-type]
        return f"network: {fault} a {verb} for {times} requests"

    def _squeeze(self, chance: random.Random) -> str:
        """Leave a service next to no memory beyond what it has."""
        services = [s for s in self.services.values() if s.alive()]
        if not services:
            return ""
        service, room = chance.choice(services), chance.choice((0, 1, 8)) << 20
        seconds = chance.uniform(0.5, 6)
        for pid in (service.pid, *descendants(service.pid)):
            if pid in self._squeezed:
                continue
            with contextlib.suppress(OSError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
                hard = resource.prlimit(pid, resource.RLIMIT_AS)[1]
                most = pages * resource.getpagesize() + room
                before = resource.prlimit(pid, resource.RLIMIT_AS, (most, hard))
                timer = threading.Timer(seconds, self._relieve, [pid])
                self._squeezed[pid] = timer, before
                timer.start()
        return f"squeeze memory of {service.name} for {seconds:.1f} s"

    def _relieve(self, pid: int) -> None:
        timer, before = self._squeezed.pop(pid, (None, (-1, -1)))
        if timer is None:
            return
        timer.cancel()
        with contextlib.suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_AS, before)

    def _jump(self, chance: random.Random) -> str:
        seconds = chance.choice(_JUMPS)
        self._set_clock(seconds)
        return f"clocks jump for {seconds:+d} s"

    def _set_clock(self, seconds: int) -> None:
        with os.fdopen(os.open(self._clock, os.O_WRONLY | os.O_CREAT), "wb") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    def wake(self) -> None:
        """Let go on what is paused or squeezed or held back."""
        super().wake()
        for pid in list(self._squeezed):
            self._relieve(pid)
        if self._plan.clocks:
            self._set_clock(0)
        self._proxy.clear()
        self._proxy.release()

    # --- afterwards ------------------------------------------------------------------

    def settle(self) -> None:
        """Stream what is left; a data source's last commit may wait for one more batch.

        Raises:
            TimeoutError: something is stuck.
        """
        super().settle()
        moved = time.monotonic()
        while left := len(self._log.unfinished()):
            check_progress(moved, f"transactions that are left: {left}")
            self._feed()
            super().settle()
        if self._broker is not None:
            until(lambda: not self._wanted()["topic"] - self._sent())

    def _broker_answers(self) -> bool:
        assert self._broker is not None
        with contextlib.suppress(KafkaException):
            return bool(self._broker.admin.list_topics(timeout=SOON).brokers)
        return False

    def _sent(self) -> Counter[Any]:
        """Return what a reader of the topic sees; what no job sends, `recover` sends.

        It leaves out the participants that it needs a token for.
        """
        if self._embedded and not self._recovery.alive():
            participants = ",".join(f"{n}={u}" for n, u in self._embedded.items())
            self._recovery.start(TPC_LOG=self.log, TPC_PARTICIPANTS=participants)
        return self._records()

    def beside(self) -> tuple[Process, ...]:
        """Return what runs beside the services."""
        return (*super().beside(), self._recovery)

    def _records(self) -> Counter[Any]:
        """Return what a reader of the topic sees; nothing while nobody says it."""
        self._tend_services()
        if self._broker is None or not self._broker_answers():
            return Counter()
        return readers.topic(seen.value for seen in self._broker.read("topic1"))

    def faults(self) -> tuple[str, ...]:
        """Compare what each reader sees with what was fed."""
        wanted = self._wanted()
        seen = {
            name: readers.read(name, self._folder / name) for name in self._plan.places
        }
        for name in "ab":
            with psycopg.connect(_plain(self._databases[name])) as a:
                seen[name] = readers.table(a)
        if self._rejected:
            with psycopg.connect(_plain(self._rejected)) as rejected:
                seen["rejected"] = readers.rejected(rejected)
        if self._broker is not None:
            seen["topic"] = self._records()
        return tuple(
            line
            for name, found in seen.items()
            for line in readers.differences(name, found, wanted[name])
        )

    def _wanted(self) -> dict[str, Counter[Any]]:
        """Say what is at each member: a row that one refuses is at none, and rejected.

        By routes each has rows of its own: then it is at the others.
        """
        plan, numbers = self._plan, range(ROWS * self._fed)
        refusing = {value: plan.refused_by(value) for value in numbers}
        wanted: dict[str, Counter[Any]] = {}
        for name in ("a", "b", "topic", *plan.places):
            own = {name} if plan.way == "routes" else set(plan.refusing)
            wanted[name] = Counter(v for v in numbers if not own & {*refusing[v]})
        newest = {value % 10: value for value in sorted(wanted["b"])}  # by its key
        wanted["b"] = Counter(newest.values())
        first = slice(None) if plan.way == "routes" else slice(1)
        wanted["rejected"] = Counter(
            (name, value) for value in numbers for name in refusing[value][first]
        )
        return wanted


class _Serving(Service):
    """`tracing-2pc serve`, in two forks."""

    def __init__(
        self, name: str, port: int, folder: Path, environment: dict[str, str]
    ) -> None:
        super().__init__(name, port, folder / f"{name}.log", environment)
        self._command = TRANSPORTS["http"].command(port)


class _Gunicorn(_Serving):
    """`support/service.py`, so that it may have a relay."""

    def __init__(
        self, name: str, port: int, folder: Path, environment: dict[str, str]
    ) -> None:
        super().__init__(name, port, folder, environment)
        self._command = [
            *(sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}"),
            *("--config", "python:tracing_2pc.http.gunicorn_conf", _APPLICATION),
        ]


def _plain(url: str) -> str:
    """Return a URL of SQLAlchemy's as PostgreSQL has it."""
    return url.replace("+psycopg", "")


def _build_clock(folder: Path) -> None:
    """Build what makes a wall clock wrong; a folder that PostgreSQL may enter, too."""
    source, built = TESTS / "chaos/clock.c", folder / "clock.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(built), str(source)]
    subprocess.run(command, check=True)
    folder.chmod(0o711)


def _wrong_clock(clock: Path) -> dict[str, str]:
    """Return what gives a process a wall clock that is as wrong as a file says."""
    return {"LD_PRELOAD": str(clock.with_suffix(".so")), "CLOCK": str(clock)}


@contextlib.contextmanager
def _given(environment: dict[str, str]) -> Iterator[None]:
    """Give what is started meanwhile some variables."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in environment.keys() - before.keys():
            del os.environ[name]
        os.environ.update({n: before[n] for n in environment.keys() & before.keys()})
