"""The library's traces beside OpenTelemetry's own instrumentation.

    traced     the library traces, and exports its spans
    auto       `opentelemetry-instrument` traces Flask and urllib3; the library does not
    untraced   nobody does

Each arm is a driver without Spark and two ledgers on PostgreSQL under gunicorn, all in
one environment (`make auto-instrumented`) and alike in all else. CPU time is that of
the driver, the ledgers and what they start, until all spans are exported; neither the
collector nor PostgreSQL is in it. Time is what the driver takes for the batches alone.
What is stored is counted and removed after each block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench import pair
from bench.peers import own_tracing
from bench.peers.sizes import Sizes
from bench.postgresql import NewDatabase, postgresql
from bench.results import ROOT
from bench.stored import LEDGER, check_and_empty
from participants.processes import Process, free_ports, stopping

ENVIRONMENT: Final = ROOT / ".cache" / "auto-instrumented"
"""What `make auto-instrumented` makes."""
LEDGERS: Final = ("ledger-0", "ledger-1")
PAIRS: Final = (("traced", "auto"), ("traced", "untraced"), ("auto", "untraced"))
NAMES: Final = tuple(f"{a}-{what} {b}" for what in ("cpu", "wall") for a, b in PAIRS)
"""The comparisons, which need the environment."""
EXPORT_MS: Final = 200
"""How often spans are exported: all are gone soon after a block."""
_NOTHING: Final = {"OTEL_TRACES_EXPORTER": "none", "TPC_SPANS": "off"}
_QUIET: Final = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}


def is_ready() -> bool:
    """Whether the environment is there."""
    return (ENVIRONMENT / "ready").exists()


def measure(folder: Path, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield comparisons of CPU time, then of time; none without the environment."""
    if not is_ready():
        print("tracing is left out: make auto-instrumented", file=sys.stderr)
        return
    with contextlib.ExitStack() as stack:
        new_database = stack.enter_context(postgresql())
        endpoint = stack.enter_context(_collector(folder))
        arms = {
            name: stack.enter_context(
                _arm(folder / name, new_database, tracing, sizes, instrumented=auto)
            )
            for name, (tracing, auto) in _tracing(endpoint).items()
        }
        blocks: dict[str, pair.Block] = {n: arm.block for n, arm in arms.items()}
        cpu = pair.measure(blocks, sizes.rounds)
    wall = {
        name: arm.seconds[1:] for name, arm in arms.items()
    }  # the first is no round
    settings = {"batches": sizes.batches, "rows": sizes.rows}
    for what, costs in (("cpu", cpu), ("wall", wall)):
        for ours, other in PAIRS:
            ratio = pair.compare(costs[ours], costs[other])
            yield pair.peer(f"{ours}-{what} {other}", ratio, settings)


def _tracing(endpoint: str) -> Mapping[str, tuple[Mapping[str, str], bool]]:
    """Return the environment of each arm, and whether it is instrumented."""
    exported = {
        **_QUIET,
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": str(EXPORT_MS),
    }
    return {
        "traced": (exported, False),
        "auto": ({**exported, own_tracing.VARIABLE: "off"}, True),
        "untraced": ({**_QUIET, **_NOTHING}, False),
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _Arm:
    """A driver and its ledgers, which run. Each block adds to `seconds`."""

    driver: subprocess.Popen[str]
    ledgers: Sequence[Process]
    databases: Sequence[str]
    sizes: Sizes
    seconds: list[float] = dataclasses.field(default_factory=list)

    def block(self) -> float:
        """Apply batches; return the CPU time of all, with the export."""
        assert self.driver.stdin
        assert self.driver.stdout
        before, started = self._cpu(), time.perf_counter()
        self.driver.stdin.write(f"{self.sizes.batches}\n")
        self.driver.stdin.flush()
        if self.driver.stdout.readline() != "done\n":
            raise RuntimeError("a driver has ended")
        self.seconds.append(time.perf_counter() - started)
        time.sleep(3 * EXPORT_MS / 1000)
        cost = self._cpu() - before
        for url in self.databases:
            check_and_empty(url, self.sizes.batches * self.sizes.rows, *LEDGER)
        return cost

    def _cpu(self) -> float:
        import psutil

        roots = [psutil.Process(p.pid) for p in (self.driver, *self.ledgers)]
        every = [*roots, *(c for root in roots for c in root.children(recursive=True))]
        times = [process.cpu_times() for process in every]
        return sum(each.user + each.system for each in times)


@contextlib.contextmanager
def _collector(folder: Path) -> Iterator[str]:
    """Run a collector that keeps nothing; yield where traces go."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "bench.drain", str(port)]
    drain = Process("drain", command, folder / "drain.log", {"PYTHONPATH": str(ROOT)})
    with stopping(drain):
        drain.start()
        yield f"http://127.0.0.1:{port}/v1/traces"


@contextlib.contextmanager
def _arm(
    folder: Path,
    new_database: NewDatabase,
    tracing: Mapping[str, str],
    sizes: Sizes,
    *,
    instrumented: bool,
) -> Iterator[_Arm]:
    folder.mkdir()
    token = secrets.token_hex(16)
    (folder / "token").write_text(token)
    (folder / "tokens").write_text(f"job {token}\n")
    environment = {**tracing, "PYTHONPATH": str(ROOT)}
    programs = ENVIRONMENT / "bin"
    python = [str(programs / "opentelemetry-instrument")] if instrumented else []
    python.append(str(programs / "python"))
    databases = [new_database() for _ in LEDGERS]
    urls = [f"http://127.0.0.1:{port}" for port in free_ports(len(LEDGERS))]
    services = [
        _ledger(folder, name, python, url, {**environment, "LEDGER_DATABASE": database})
        for name, url, database in zip(LEDGERS, urls, databases, strict=True)
    ]
    with contextlib.ExitStack() as stack:
        stack.enter_context(stopping(*services))
        for service in services:
            service.start()
        for service, url in zip(services, urls, strict=True):
            service.until_answers(f"{url}/health/ready", 120)
        names = itertools.starmap("{}={}".format, zip(LEDGERS, urls, strict=True))
        arguments = [new_database(), f"file:{folder / 'token'}", str(sizes.rows)]
        driver = stack.enter_context(
            _driver(
                [*python, "-m", "bench.peers.traced_driver", *arguments, *names],
                environment,
            )
        )
        yield _Arm(driver, services, databases, sizes)


def _ledger(
    folder: Path,
    name: str,
    python: Sequence[str],
    url: str,
    environment: Mapping[str, str],
) -> Process:
    config = shlex.quote(str(ROOT / "participants" / "gunicorn_conf.py"))
    bind = url.removeprefix("http://")
    # Not in the command: `opentelemetry-instrument` would take `--config` for its own.
    settings = f"--config {config} --keep-alive 60 --bind {bind}"
    command = [*python, "-m", "gunicorn", "bench.peers.traced_ledger:create_app()"]
    about = {
        "GUNICORN_CMD_ARGS": settings,
        "TPC_TOKENS_FILE": str(folder / "tokens"),
        "OTEL_SERVICE_NAME": name,
    }
    return Process(name, command, folder / f"{name}.log", {**environment, **about})


@contextlib.contextmanager
def _driver(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **environment}
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
