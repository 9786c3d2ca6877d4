"""Real Prometheus, Alertmanager, Jaeger and SkyWalking, with the bundled files."""

from __future__ import annotations

import contextlib
import http.server
import json
import shutil
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from backends.demo_path import DemoPath
from backends.jaeger import Jaeger
from support.served import StandIn, served
from support.telemetry import PATH
from support.waiting import AT_LAST

from bundled.files import ALARMS, ALERTMANAGER, TOKEN, copied, program, replace
from participants.processes import Process, free_ports, stopping

THRESHOLDS: Final = {
    "TPC_STUCK_AFTER": "10s",
    "TPC_SAFETY_INTERVAL": "6s",
    "TPC_SWEEP": "2s",
    "TPC_PAUSE": "1s",
}
SHORTER: Final = {"for: 30s\n": "for: 2s\n"}
"""What a test does not wait for: a rule's `for` is one sweep, and a sweep is 2 s."""

_WEBHOOK: Final = "http://127.0.0.1:8099"
_SHARE: Final = "share/prometheus/alertmanager/default.tmpl"


class Call(NamedTuple):
    """A webhook that was called."""

    path: str
    body: Any
    at: float


class Webhook:
    """Somebody who is told of alerts, and remembers.

    Args:
        port: on loopback.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.calls: list[Call] = []

    def alerts(self, name: str, status: str) -> list[dict[str, Any]]:
        """Return what Alertmanager has said about an alert."""
        return [
            alert
            for call in tuple(self.calls)
            if call.path.startswith("/alerts")
            for alert in call.body["alerts"]
            if (alert["labels"]["alertname"], alert["status"]) == (name, status)
        ]

    def alarms(self, rule: str) -> list[dict[str, Any]]:
        """Return what SkyWalking has said about a rule."""
        return [
            alarm
            for call in tuple(self.calls)
            if call.path == "/skywalking"
            for alarm in call.body
            if alarm["ruleName"] == rule
        ]


@contextlib.contextmanager
def webhook() -> Iterator[Webhook]:
    """Listen on a free port of loopback."""
    (port,) = free_ports(1)
    heard = Webhook(port)

    class Handler(StandIn):
        def do_POST(self) -> None:  # noqa: N802 - as http.server has it
            body = json.loads(self.body())
            heard.calls.append(Call(self.path, body, time.monotonic()))
            self.answer(200)

    with served(http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)):
        yield heard


class Prometheus:
    """What it holds, by its API.

    Args:
        url: where it listens.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return what an expression is now."""
        return list(self._get("query", query=expression)["result"])

    def exemplars(self, expression: str) -> list[dict[str, str]]:
        """Return the labels of the exemplars of an expression, of the last minutes."""
        now = time.time()
        found = self._get(
            "query_exemplars", query=expression, start=now - 600, end=now + 60
        )
        return [one["labels"] for series in found for one in series["exemplars"]]

    def down(self) -> list[str]:
        """Say who cannot be scraped, and why."""
        found = self._get("targets")["activeTargets"]
        bad = [one for one in found if one["health"] != "up"]
        return [f"{one['scrapeUrl']} {one['lastError']}" for one in bad]

    def _get(self, path: str, **query: Any) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=AT_LAST) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]


def watcher(path: DemoPath, port: int) -> Process:
    """Return the watcher over a demo's log and services, with short thresholds."""
    told = {
        "TPC_LOG": f"sqlite:///{path.folder / 'decisions.db'}",
        "TPC_PARTICIPANTS": f"ledger={path.ledger.url},notifier={path.notifier.url}",
        "TPC_TOKEN": token(path, "operator"),
        "TPC_TOKENS_FILE": str(path.folder / "tokens"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": path.endpoint,
        "PYTHONPATH": PATH,
        **THRESHOLDS,
    }
    command = [sys.executable, "-m", "tracing_2pc", "watch"]
    where = ["--listen", f"127.0.0.1:{port}"]
    return Process("watcher", [*command, *where], path.folder / "watcher.log", told)


def token(path: DemoPath, role: str) -> str:
    """Return a role's token."""
    lines = (path.folder / "tokens").read_text().splitlines()[1:]
    return dict(line.split() for line in lines)[role]


@contextlib.contextmanager
def prometheus(
    folder: Path, path: DemoPath, watched: int, jaeger: Jaeger, heard: Webhook
) -> Iterator[Prometheus]:
    """Run Prometheus and Alertmanager, with the bundled files and other addresses."""
    port, alertmanager = free_ports(2)
    addresses = {
        "127.0.0.1:9093": f"127.0.0.1:{alertmanager}",
        "127.0.0.1:9095": f"127.0.0.1:{watched}",
        "127.0.0.1:8081": path.ledger.url.removeprefix("http://"),
        "127.0.0.1:8082": path.notifier.url.removeprefix("http://"),
        "127.0.0.1:8889": jaeger.metrics,
        "_interval: 15s": "_interval: 1s",
    }
    config = copied(folder / "prometheus", addresses, SHORTER)
    (config.parent / TOKEN).write_text(token(path, "viewer"), encoding="utf-8")
    process = Process(
        "prometheus",
        [
            program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'series'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--enable-feature=exemplar-storage",
        ],
        folder / "prometheus.log",
    )
    running = Prometheus(f"http://127.0.0.1:{port}")
    with alerting(folder, alertmanager, heard), stopping(process):
        process.start()
        process.until_answers(f"{running.url}/-/ready", 120)
        yield running


@contextlib.contextmanager
def alerting(folder: Path, port: int, heard: Webhook) -> Iterator[None]:
    """Run Alertmanager; it tells at once."""
    config = folder / "alertmanager" / ALERTMANAGER.name
    config.parent.mkdir()
    shutil.copy(ALERTMANAGER, config)
    at_once = {"group_wait: 30s": "group_wait: 1s", "group_wait: 10s": "group_wait: 1s"}
    replace(
        config.parent, {_WEBHOOK: heard.url, "group_interval: 5m": "group_interval: 1s"}
    )
    replace(config.parent, at_once)
    process = Process(
        "alertmanager",
        [
            *with_templates(Path(program("prometheus-alertmanager"))),
            f"--config.file={config}",
            f"--storage.path={folder / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ],
        folder / "alertmanager.log",
    )
    with stopping(process):
        process.start()
        process.until_answers(f"http://127.0.0.1:{port}/-/ready", 120)
        yield


def with_templates(binary: Path) -> list[str]:
    """Return how to run it, so that it finds its templates.

    Debian's wants them in /usr/share. Where its package is only unpacked, it sees the
    package's own folder there, and nobody else does.
    """
    if Path("/usr", _SHARE).exists():
        return [str(binary)]
    unpacked = binary.parents[1]
    assert (unpacked / _SHARE).exists()
    script = 'mount --bind "$0/share" /usr/share && exec "$@"'
    alone = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    return [*alone, str(unpacked), str(binary)]


def alarms_to(heard: Webhook, folder: Path) -> Path:
    """Copy SkyWalking's alarms, which call this webhook; return their folder."""
    folder.mkdir()
    shutil.copy(ALARMS, folder)
    replace(folder, {_WEBHOOK: heard.url})
    return folder
