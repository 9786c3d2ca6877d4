"""Seconds until each alert fires at all defaults, of real faults; or that none fires.

    PYTHONPATH=tests:. python -m bundled.times_to_alert faults
    PYTHONPATH=tests:. python -m bundled.times_to_alert pending [rounds]
    PYTHONPATH=tests:. python -m bundled.times_to_alert restarts [minutes]
    PYTHONPATH=tests:. python -m bundled.times_to_alert healthy [minutes]

A real watcher and a real Prometheus, with the bundled files as they are but for
addresses. `faults` takes 20 minutes, a round of `pending` three, with other phases
between sweeps and scrapes; both have participants in this process. `restarts` and
`healthy` run the demo's own services and job, with a batch each 20 s, and print every
alert that is pending or fires. `restarts` kills the ledger every two minutes, `healthy`
nothing. With `TPC_JAEGER` there is a collector; without one `TpcCollectorDown` must
fire.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from backends.demo_path import DemoPath, demo_path
from backends.jaeger import jaeger
from support.branches import ONE
from support.spark import serving
from support.telemetry import PATH
from support.watch import NAMES, Site, Time, site

from bundled.backends import Prometheus, token
from bundled.files import TOKEN, copied, program
from participants.flights import DAYS, file_of
from participants.processes import Process, free_ports, stopping
from tracing_2pc.core.model import TransactionId

LABELS: Final = ("alertname", "severity", "application", "participant", "job")
OFFSETS: Final = range(0, 30, 5)
"""Seconds after the first fault, so that one of them is just after a sweep."""
CRITICAL: Final = 1020.0
SILENT: Final = 240.0


class RealTime(Time):
    """The clock of log and participants."""

    def now(self) -> float:
        return time.time()

    __call__ = now


class Seen:
    """When each alert was pending and firing, by a clock that began at a fault."""

    def __init__(self, asked: Prometheus) -> None:
        self._asked = asked
        self._seen: set[tuple[str, ...]] = set()
        self.since: dict[str, float] = {}
        self.firing: set[str] = set()

    def look(self) -> None:
        """Print what is new; a fault's own time where its application has one."""
        for alert in self._asked._get("alerts")["alerts"]:
            labels = [alert["labels"].get(label, "") for label in LABELS]
            key = (alert["state"], *labels)
            if key not in self._seen:
                self._seen.add(key)
                named = [label for label in labels if label and label in self.since]
                began = self.since[(named or [""])[0]]
                tell(f"{time.time() - began:6.0f} s {' '.join(key)}")
                if alert["state"] == "firing":
                    self.firing.add(labels[0])

    def wait(self, seconds: float, meanwhile: Callable[[], object] = int) -> None:
        """Look each second."""
        until = time.time() + seconds
        while time.time() < until:
            with contextlib.suppress(urllib.error.URLError, TimeoutError):
                self.look()
            meanwhile()
            time.sleep(1)


@contextlib.contextmanager
def scraping(
    folder: Path, addresses: Mapping[str, str], viewer: str = "none"
) -> Iterator[Seen]:
    """Run Prometheus with the bundled files, at their own intervals."""
    (port,) = free_ports(1)
    config = copied(folder / "prometheus", addresses)
    (config.parent / TOKEN).write_text(viewer, encoding="utf-8")
    where = [f"--storage.tsdb.path={folder / 'series'}"]
    command = [program("prometheus"), f"--config.file={config}", *where]
    command += [f"--web.listen-address=127.0.0.1:{port}"]
    process = Process("prometheus", command, folder / "prometheus.log")
    with stopping(process):
        process.start()
        process.until_answers(f"http://127.0.0.1:{port}/-/ready", 240)
        yield Seen(Prometheus(f"http://127.0.0.1:{port}"))


def watching(folder: Path, port: int, **environment: str) -> Process:
    """Return the watcher, at all defaults."""
    command = [sys.executable, "-m", "tracing_2pc", "watch"]
    where = ["--listen", f"127.0.0.1:{port}"]
    told = {"PYTHONPATH": PATH, "TPC_TOKEN": "anything", **environment}
    return Process("watcher", [*command, *where], folder / "watcher.log", told)


class Run(NamedTuple):
    """What faults are made of; the notifier's end is `down.close()`."""

    at: Site
    watcher: Process
    seen: Seen
    down: contextlib.ExitStack


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[Run]:
    """Run a ledger and a notifier in this process, the watcher and Prometheus."""
    (port,) = free_ports(1)
    with contextlib.ExitStack() as stack:
        at = stack.enter_context(site(folder, time=RealTime()))
        down = stack.enter_context(contextlib.ExitStack())
        urls = {
            name: (down if name == "notifier" else stack).enter_context(
                serving(at.worlds[name].app)
            )
            for name in NAMES
        }
        watcher = watching(
            folder,
            port,
            TPC_LOG=f"sqlite:///{folder}/log/decisions.db",
            TPC_PARTICIPANTS=",".join(f"{n}={url}" for n, url in urls.items()),
        )
        stack.enter_context(stopping(watcher))
        watcher.start()
        addresses = {"127.0.0.1:9095": f"127.0.0.1:{port}"}
        seen = stack.enter_context(scraping(folder, addresses))
        seen.since[""] = seen.since["tracing-2pc-otlp"] = time.time()
        seen.wait(75)
        yield Run(at, watcher, seen, down)


def faults(folder: Path) -> None:
    """Make each fault once; commits that nobody acknowledges at several times."""
    with watched(folder) as (at, watcher, seen, down):
        seen.since["lost"] = time.time()
        decided(at, "lost")
        at.write(
            "ledger",
            "DELETE FROM orders_tpc_branch",
            "DELETE FROM orders_tpc_transaction",
        )
        seen.since["quarantined"] = time.time()
        at.log.quarantine(decided(at, "quarantined"), "it contradicts the decision")
        at.prepare("orphan.1.1", "ledger")
        seen.since["orphan"] = seen.since[""] = time.time()
        down.close()
        commits(at, seen, "pending")
        seen.since["unapplied"] = time.time()
        unacknowledged(at, "unapplied", "notifier")
        seen.wait(CRITICAL)
        watcher.kill()
        seen.since = {"": time.time()}
        tell("the watcher is dead")
        seen.wait(SILENT)


def pending(folder: Path, rounds: int) -> None:
    """Make commits that nobody acknowledges, and begin the sweeps at other times."""
    with watched(folder) as (at, watcher, seen, down):
        down.close()
        for number in range(rounds):
            commits(at, seen, f"round{number}-")
            seen.wait(95)
            watcher.stop()
            seen.wait(7)
            watcher.start()
            seen.wait(40)


def commits(at: Site, seen: Seen, name: str) -> None:
    """Decide commits, one after the other, that the notifier is not told."""
    for number, _ in enumerate(OFFSETS):
        seen.since[f"{name}{number}"] = time.time()
        unacknowledged(at, f"{name}{number}", "ledger")
        seen.wait(OFFSETS.step)


def unacknowledged(at: Site, application: str, told: str) -> None:
    """Decide commit and tell one participant only."""
    id_ = decided(at, application)
    at.worlds[told].commit(str(id_), ONE)
    at.log.acknowledge(id_, told)


def tell(line: str) -> None:
    """Print it at once: this takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def decided(at: Site, application: str) -> TransactionId:
    """Begin, prepare at both and decide; nobody is told."""
    id_ = at.begin(0, application=application).id
    at.prepare(id_)
    at.decide(id_)
    return id_


def nothing(path: DemoPath) -> None:
    """Say that time passes, and how busy this machine is."""
    tell(f"{committed(path)} transactions committed, load {os.getloadavg()[0]:.1f}")


def demo(folder: Path, minutes: float, meanwhile: Callable[[DemoPath], None]) -> None:
    """Run the demo, a batch each 20 s, and do something every two minutes."""
    (port,) = free_ports(1)
    with contextlib.ExitStack() as stack:
        endpoint, metrics = "", "127.0.0.1:8889"
        if binary := os.environ.get("TPC_JAEGER"):
            running = stack.enter_context(jaeger(Path(binary), folder / "jaeger"))
            endpoint, metrics = running.endpoint, running.metrics
        path = stack.enter_context(demo_path(folder, endpoint))
        watcher = watching(
            folder,
            port,
            TPC_LOG=f"sqlite:///{folder / 'decisions.db'}",
            TPC_PARTICIPANTS=f"ledger={path.ledger.url},notifier={path.notifier.url}",
            TPC_TOKEN=token(path, "operator"),
            TPC_TOKENS_FILE=str(folder / "tokens"),
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
        )
        fill(folder / "in", round(3 * minutes) + 1)
        job = path.spark_job()
        stack.enter_context(stopping(watcher, job))
        watcher.start()
        addresses = {
            "127.0.0.1:9095": f"127.0.0.1:{port}",
            "127.0.0.1:8081": path.ledger.url.removeprefix("http://"),
            "127.0.0.1:8082": path.notifier.url.removeprefix("http://"),
            "127.0.0.1:8889": metrics,
        }
        viewer = token(path, "viewer")
        seen = stack.enter_context(scraping(folder, addresses, viewer))
        job.start(DEMO_EVERY="20 seconds")
        seen.since[""] = time.time()
        until = time.time() + 60 * minutes
        while (left := until - time.time()) > 0:
            seen.wait(min(120, left))
            meanwhile(path)
        tell(f"{committed(path)} transactions committed; fired: {seen.firing}")


def fill(folder: Path, batches: int) -> None:
    """Put flights where the job reads them, the month again and again."""
    folder.mkdir()
    for number in range(batches):
        day = DAYS[number % len(DAYS)]
        shutil.copyfile(file_of(day), folder / f"flights-{number:05}.csv.gz")


def restart(path: DemoPath) -> None:
    """Kill the ledger, and start it again after five seconds."""
    path.ledger.kill()
    time.sleep(5)
    path.ledger.start()
    tell("the ledger was killed, and started after 5 s")


def committed(path: DemoPath) -> int:
    """Count what the decision log has finished as committed."""
    import sqlite3

    with contextlib.closing(sqlite3.connect(path.folder / "decisions.db")) as log:
        sql = "SELECT count(*) FROM tpc_transaction WHERE state = 'committed'"
        (count,) = log.execute(sql).fetchone()
    return int(count)


if __name__ == "__main__":
    Path("build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="build") as made:
        folder, number = Path(made).absolute(), float([*sys.argv, "12"][2])
        if sys.argv[1] == "faults":
            faults(folder)
        elif sys.argv[1] == "pending":
            pending(folder, int(number))
        else:
            demo(folder, number, restart if sys.argv[1] == "restarts" else nothing)
