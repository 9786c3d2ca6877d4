"""`tracing-2pc watch`: what it prints, what it serves, and to whom; how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from flask import request
from support.kinds import tagged_rows
from support.metrics import samples
from support.participant import World
from support.spark import serving
from support.texts import texts
from support.waiting import AT_LAST, AT_ONCE, PATIENT, PAUSE, UNDELAYED, until

from tracing_2pc.cli import main
from tracing_2pc.cli import watch as cli_watch
from tracing_2pc.core.access import LoopbackGate, Role, TokenGate
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.settings import Settings
from tracing_2pc.http import metrics_server
from tracing_2pc.http.metrics_server import serve_metrics
from tracing_2pc.operations.watch import watch
from tracing_2pc.operations.watcher import Sweep
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.tracing import instruments
from tracing_2pc.wire.serving import open_gate, parse_address

TEXTS = texts("component")

QUICK = {
    "TPC_PAUSE": "100ms",
    "TPC_SWEEP": "200ms",
    "TPC_SAFETY_INTERVAL": "250s",
    "TPC_REQUEST_TIMEOUT": "200s",
    "TPC_ORPHAN_AFTER": "5m",
    "TPC_TOKEN": "anything",
}


class Ahead:
    """A participant's clock: what it prepares is old at once."""

    def __init__(self) -> None:
        self.by = 0.0

    def __call__(self) -> float:
        return time.time() + self.by


AHEAD = Ahead()


@pytest.fixture(autouse=True)
def _no_longer_observed(monkeypatch) -> None:
    """What a test has measured is not read in the next one."""
    monkeypatch.setattr(instruments, "_observed", dict(instruments._observed))


@pytest.fixture
def asked() -> list[str]:
    """Paths of the requests that the ledger has got."""
    return []


@pytest.fixture
def at(asked, tmp_path, monkeypatch) -> Iterator[World]:
    """A folder after `init`, and a ledger that the settings name."""
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    AHEAD.by = 0.0
    world = tagged_rows(f"sqlite:///{tmp_path}/ledger.db", clock=AHEAD)
    world.name = "ledger"
    world.app.before_request(lambda: asked.append(request.path))
    with contextlib.closing(world.resource), serving(world.app) as url:
        monkeypatch.setenv("TPC_PARTICIPANTS", f"ledger={url}")
        for name, value in QUICK.items():
            monkeypatch.setenv(name, value)
        yield world


def orphan(world: World) -> None:
    world.prepare("bookings.3.1")
    AHEAD.by = 400.0


def test_once_says_what_is_wrong_and_ends_with_1(at, capsys):
    """For a person, for a program; 0 where nothing is."""
    capsys.readouterr()
    assert main(["watch", "--once"]) == 0
    assert capsys.readouterr().out == "All is well\n"
    orphan(at)
    assert main(["watch", "--once"]) == 1
    line = capsys.readouterr().out
    assert "found      warning orphaned bookings.3.1: 3 rows" in line
    assert main(["watch", "--once", "--json"]) == 1
    item = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (item["where"], item["kind"]) == ("bookings.3.1", "orphaned")
    assert item["participants"] == ["ledger"]


NOBODY = (
    "All is well in the log; no participant was asked: `participants` in the "
    "settings is empty\n"
)


@pytest.mark.parametrize(
    ("addresses", "code", "said"),
    [
        ("", 0, f"^{NOBODY}$"),
        ("ledger=http://127.0.0.1:9", 1, "unreadable ledger nothing listens"),
    ],
    ids=["nobody", "unreadable"],
)
def test_once_says_who_was_not_looked_at(
    at, capsys, monkeypatch, addresses, code, said
):
    """Without addresses only the log is; not all is well where nobody could look."""
    monkeypatch.setenv("TPC_PARTICIPANTS", addresses)
    capsys.readouterr()
    assert main(["watch", "--once"]) == code
    assert re.search(said, capsys.readouterr().out)


def test_addresses():
    """Of both kinds."""
    assert parse_address("127.0.0.1:9095") == ("127.0.0.1", 9095)
    assert parse_address("[::1]:9095") == ("::1", 9095)


def test_strangers_are_not_answered_without_tokens(tmp_path):
    """Beyond this machine only with a tokens file; with one, for everybody."""
    assert isinstance(open_gate("127.0.0.1", None, LoopbackGate()), LoopbackGate)
    for host in ("0.0.0.0", "192.0.2.1", "::"):
        with pytest.raises(ConfigurationError, match=TEXTS["strangers"]):
            open_gate(host, None, LoopbackGate())
    tokens = tmp_path / "tokens"
    tokens.write_text("viewer 0123456789abcdef\n")
    for host in ("0.0.0.0", "127.0.0.1"):
        assert isinstance(open_gate(host, str(tokens), LoopbackGate()), TokenGate)


def test_strangers_behind_a_proxy_are_not_answered_without_tokens():
    """What a proxy of this machine passes on does not come from this machine."""
    with serve_metrics("127.0.0.1", 0, LoopbackGate(), lambda: True) as port:
        for name in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"):
            assert get(port, "/metrics", **{name: "x"}).status == 403
        assert get(port, "/metrics").status == 200


def test_a_page_in_a_browser_reads_no_metrics_without_tokens():
    """Whatever name of a stranger has led it to this machine."""
    with serve_metrics("127.0.0.1", 0, LoopbackGate(), lambda: True) as port:
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            assert get(port, "/metrics", **headers).status == 403
        assert get(port, "/metrics", Host=f"localhost:{port}").status == 200


def get(port: int, path: str, token: str | None = None, **headers: str) -> Any:
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    url = f"http://127.0.0.1:{port}{path}"
    with urllib3.PoolManager() as pool:
        return pool.request("GET", url, headers=headers, retries=False)


@pytest.mark.usefixtures("measured")
def test_metrics_are_for_viewers_and_operators(tmp_path):
    """As at a participant; health needs no token, and tells nothing else."""
    lines = [f"{role} {role:x>16} orders" for role in map(str, Role)]
    gate = TokenGate(lines, "here")
    ready = [True]
    with serve_metrics("127.0.0.1", 0, gate, lambda: ready[0]) as port:
        statuses = {
            role: get(port, "/metrics", f"{role:x>16}").status
            for role in map(str, Role)
        }
        read = {role for role, status in statuses.items() if status == 200}
        assert read == {"operator", "viewer"}
        assert {*statuses.values()} == {200, 403}
        refused = get(port, "/metrics")
        assert refused.status == 401
        assert "WWW-Authenticate" in refused.headers
        assert get(port, "/metrics", "unknown-unknown-unknown").status == 401
        assert get(port, "/health/live").json() == {"status": "live"}
        assert get(port, "/health/ready").status == 200
        ready[0] = False
        assert get(port, "/health/ready").status == 503
        assert get(port, "/else").status == 404


def test_a_watch_serves_what_it_sees_until_it_is_stopped(
    at, measured, tmp_path, monkeypatch
):
    """Sweep after sweep; a diagnosis is told once, and measured until it goes."""
    orphan(at)
    stop, told, ports = threading.Event(), list[Sweep](), list[int]()

    @contextlib.contextmanager
    def serve_and_tell(*about: Any) -> Iterator[int]:
        with serve_metrics(*about) as port:
            ports.append(port)
            yield port

    monkeypatch.setattr(metrics_server, "serve_metrics", serve_and_tell)
    settings = Settings.load(_empty(tmp_path))  # without the tokens of `init`
    more = {"listen": "127.0.0.1:0", "stop": stop}
    with contextlib.closing(_log(tmp_path)) as log:
        thread = threading.Thread(
            target=lambda: watch(log, settings, told.append, **more)
        )
        thread.start()
        try:
            until(lambda: len(told) >= 3 or not thread.is_alive())
            found = samples(get(ports[0], "/metrics").data.decode())
            ready = get(ports[0], "/health/ready").status
        finally:
            stop.set()
            thread.join(AT_LAST)
    assert not thread.is_alive()
    assert ready == 200
    labels = 'application="bookings",diagnosis="orphaned",participant="ledger"'
    orphaned = f"tpc_diagnoses{{{labels}}}"
    assert found[orphaned] == 1
    added = [str(one.kind) for sweep in told for one in sweep.added]
    assert added == ["orphaned", "clock_differs"], "the ledger's clock is ahead"


def _empty(folder: Path) -> Path:
    config = folder / "empty.toml"
    config.touch()
    return config


def _log(folder: Path) -> SqlDecisionLog:
    return open_log(f"sqlite:///{folder}/state/decisions.db")


def test_a_signal_ends_a_watch(at, asked, tmp_path):
    """SIGTERM: with 0, at once, whatever it waits for."""
    orphan(at)
    command = [sys.executable, "-m", "tracing_2pc", "watch", "--recover"]
    patient = {"TPC_PAUSE": f"{PATIENT:g}s", "TPC_SWEEP": f"{AT_LAST:g}s"}
    environment = {**os.environ, **patient}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until(lambda: "/transactions" in asked or process.poll() is not None)
        os.kill(process.pid, signal.SIGTERM)
        output, beside = process.communicate(timeout=UNDELAYED)
    assert process.returncode == 0
    assert "orphaned bookings.3.1" in output
    assert "watching sqlite:///" in beside


def test_a_watch_says_now_and_then_that_it_goes_on(at, monkeypatch, capsys):
    """Beside its lines, where nothing has changed for a while."""
    monkeypatch.setattr(cli_watch, "ALIVE", 0.0)

    def sweeps(log, settings, report, **_):
        report(Sweep(1_700_000_000.0))
        return Sweep(1_700_000_000.0)

    monkeypatch.setattr(cli_watch, "watch", sweeps)
    assert main(["watch"]) == 0
    out, beside = capsys.readouterr()
    assert out == ""
    assert "2023-11-14T22:13:20.000Z watching: All is well" in beside


WAITING = """
import os, signal, threading
from tracing_2pc.operations.watch import _signals
stop = threading.Event()
with _signals(stop):
    with stop._cond:  # as in the midst of a wait
        os.kill(os.getpid(), signal.SIGTERM)
    print(stop.wait())
"""


def test_a_signal_in_the_midst_of_a_wait_ends_it():
    """Wherever the main thread is; it once hung there for ever."""
    command = [sys.executable, "-c", WAITING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=AT_LAST)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_who_drips_a_request_to_it_is_let_go(monkeypatch):
    """A stranger keeps no thread by sending a header now and then."""
    monkeypatch.setattr(metrics_server, "_PATIENCE", AT_ONCE)

    def is_let_go() -> bool:
        try:
            stranger.sendall(b"y")
            stranger.recv(1000)
        except (TimeoutError, ConnectionError) as error:
            return isinstance(error, ConnectionError)
        return True

    with (
        serve_metrics("127.0.0.1", 0, LoopbackGate(), lambda: True) as port,
        socket.create_connection(("127.0.0.1", port)) as stranger,
    ):
        stranger.settimeout(PAUSE)
        stranger.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
        until(is_let_go)
