"""`tracing-2pc console`: how it starts, what it refuses, how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from participants.processes import free_ports
from tracing_2pc.cli import main
from tracing_2pc.operations.console.server import PATIENCE, THREADS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that `init` has been run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TPC_TOKENS_FILE", raising=False)
    assert main(["init"]) == 0
    return tmp_path


@pytest.fixture
def started(folder: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Start a console; return its process and its first line."""
    processes = []

    def start(*options: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "tracing_2pc", "console", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline()

    yield start
    for process in processes:
        process.kill()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_it_says_how_to_log_in_and_ends_when_told(
    folder: Path, started: Callable[..., tuple[subprocess.Popen[str], str]], end: int
) -> None:
    """Without tokens it makes one; the address has none in it."""
    settings = folder / "tpc.toml"
    settings.write_text(settings.read_text().replace("tokens_file", "# tokens_file"))
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    process, line = started("--listen", listen)
    found = re.fullmatch(r"console at (\S+): log in with (\S{32})\n", line)
    assert found, line
    assert found[1] == f"http://{listen}/"
    with urllib.request.urlopen(f"{found[1]}health/live", timeout=20) as answer:
        assert answer.read() == b"ok\n"
    process.send_signal(end)
    assert process.wait(20) == 0


def test_the_settings_name_the_tokens(
    started: Callable[..., tuple[subprocess.Popen[str], str]], folder: Path
) -> None:
    """Then no other one is made, and none is shown."""
    _, line = started("--listen", f"127.0.0.1:{free_ports(1)[0]}")
    assert line.endswith("log in with a viewer's or operator's token of tokens\n")
    for token in (folder / "tokens").read_text().split():
        assert len(token) < 20 or token not in line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "0.0.0.0:8090"], "others can reach it"),
        (["--listen", "8090"], "--listen"),
        (["--tokens-file", "nowhere"], "nowhere"),
        (["--log", "sqlite:///nowhere/decisions.db"], "nowhere"),
    ],
)
def test_what_cannot_work_is_said_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    """Exit code 2, and what to change; nothing listens."""
    settings = folder / "tpc.toml"
    settings.write_text(settings.read_text().replace("tokens_file", "# tokens_file"))
    assert main(["console", *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /health/live HTTP/1.1\r\nHost: x\r\n",
        b"POST /login HTTP/1.1\r\nHost: x\r\nOrigin: http://x\r\nContent-Length: 99\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\n\r\ncsrf=",
    ],
    ids=["headers", "body"],
)
def test_strangers_who_never_finish_a_request_hold_nobody_up(
    folder: Path,
    started: Callable[..., tuple[subprocess.Popen[str], str]],
    begun: bytes,
) -> None:
    """There are more of them than threads, and the page comes all the same."""
    (port,) = free_ports(1)
    started("--listen", f"127.0.0.1:{port}")
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(THREADS + 2)]
    for one in slow:
        one.sendall(begun)
    live = f"http://127.0.0.1:{port}/health/live"
    with urllib.request.urlopen(live, timeout=3 * PATIENCE) as answer:
        assert answer.status == 200
    for one in slow:
        one.close()


def test_an_address_in_use_is_said_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the watcher says it; gunicorn would try for five seconds."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        assert main(["console", "--listen", listen]) == 2
    assert f"--listen {listen}: Address already in use" in capsys.readouterr().err
