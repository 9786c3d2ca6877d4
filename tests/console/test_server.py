"""`tracing-2pc console`: how it starts, what it refuses, how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from support.console import OURS, csrf_in
from support.texts import texts
from support.waiting import AT_LAST, PATIENT, until

from participants.processes import free_ports
from tracing_2pc.cli import main
from tracing_2pc.console.server import THREADS, gate_of
from tracing_2pc.console.state import ASKING, RESOLVING
from tracing_2pc.core.model import BranchId, branch_receipts
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision, Vote
from tracing_2pc.store import open_log

TEXTS = texts("console")
LATER = "\n".join(
    f'{name} = "{2 * PATIENT + number:g}s"\n'
    for number, name in enumerate(
        ["safety_interval", "orphan_after", "stuck_after", "stuck_critical"]
    )
)
"""Settings that must be longer than a request may take, each than those before it."""

ROOT = Path(__file__).parents[2]
Start = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder that `init` has been run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TPC_TOKENS_FILE", raising=False)
    assert main(["init"]) == 0
    return tmp_path


@pytest.fixture
def started(folder) -> Iterator[Start]:
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
        process.wait(AT_LAST)
        assert process.stdout is not None
        process.stdout.close()


def is_alive(listen: str) -> bool:
    live = f"http://{listen}/health/live"
    with urllib.request.urlopen(live, timeout=AT_LAST) as answer:
        return bool(answer.read() == b"ok\n")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_it_says_how_to_log_in_and_ends_when_told(folder, started, end):
    """Without tokens it makes one; the address has none in it."""
    settings = folder / "tpc.toml"
    settings.write_text(settings.read_text().replace("tokens_file", "# tokens_file"))
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    process, line = started("--listen", listen)
    found = re.fullmatch(r"console at (\S+): log in with (\S{32})\n", line)
    assert found, line
    assert found[1] == f"http://{listen}/"
    assert is_alive(listen)
    process.send_signal(end)
    assert process.wait(AT_LAST) == 0


def test_it_starts_before_its_log_does(folder, started, monkeypatch):
    """Its pages say that the log cannot be read, as when that happens later."""
    monkeypatch.setenv("TPC_LOG", "postgresql://me@127.0.0.1:9/log")
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    process, line = started("--listen", listen)
    assert line.startswith(TEXTS["it is at"].format(listen=listen)), line
    assert is_alive(listen)
    assert process.poll() is None


def test_the_settings_name_the_tokens(started, folder):
    """Then no other one is made, and none is shown."""
    _, line = started("--listen", f"127.0.0.1:{free_ports(1)[0]}")
    assert line.endswith(TEXTS["tokens of a file"] + "\n")
    for token in (folder / "tokens").read_text().split():
        assert len(token) < 20 or token not in line


def test_others_are_told_to_come_by_https(folder):
    """Where it listens for them: a form is refused without."""
    _, said = gate_of("0.0.0.0:8090", str(folder / "tokens"))
    assert TEXTS["by https"] in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "0.0.0.0:8090"], TEXTS["others can reach it"]),
        (["--listen", "8090"], "--listen"),
        (["--tokens-file", "nowhere"], "nowhere"),
        (["--log", "sqlite:///nowhere/decisions.db"], "nowhere"),
    ],
)
def test_what_cannot_work_is_said_at_once(folder, capsys, options, said):
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
def test_strangers_who_never_finish_a_request_hold_nobody_up(folder, started, begun):
    """There are more of them than threads, and the page comes all the same."""
    (port,) = free_ports(1)
    started("--listen", f"127.0.0.1:{port}")
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(THREADS + 2)]
    for one in slow:
        one.sendall(begun)
    assert is_alive(f"127.0.0.1:{port}")
    for one in slow:
        one.close()


def test_an_address_in_use_is_said_at_once(folder, capsys):
    """As the watcher says it; gunicorn would try for five seconds."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        assert main(["console", "--listen", listen]) == 2
    assert TEXTS["in use"].format(listen=listen) in capsys.readouterr().err


def test_pages_that_wait_for_a_participant_hold_the_list_up_for_nobody(folder, started):
    """One hangs, and more pages are open than there are threads: the list comes.

    It hangs until its listener is closed: nobody's patience ends before.
    """
    assert 0 < ASKING + RESOLVING < THREADS
    with socket.create_server(("127.0.0.1", 0), backlog=100) as hanging:
        ids = _undelivered(folder, *hanging.getsockname()[:2])
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        started("--listen", listen)
        person = _logged_in(f"http://{listen}", folder)
        pages: dict[int, str] = {}

        def look(number: int) -> None:
            # Half of them at one transaction, the others at one each.
            id_ = ids[0] if number % 2 else ids[number]
            pages[number] = _text(person, f"http://{listen}/transactions/{id_}")

        looking = [threading.Thread(target=look, args=(n,)) for n in range(len(ids))]
        for one in looking:
            one.start()
        until(lambda: len(pages) == len(ids) - ASKING)
        assert "Unfinished" in _text(person, f"http://{listen}/")
        assert len(pages) == len(ids) - ASKING, "it came before whoever waits"
    for one in looking:
        one.join(AT_LAST)
    alone = [text for text in pages.values() if TEXTS["the log alone"] in text]
    assert len(pages) == len(ids)
    assert len(ids) - len(alone) == ASKING
    assert all(TEXTS["decided"] in text for text in pages.values())


def _undelivered(folder: Path, host: str, port: int) -> list[str]:
    """Decide more than there are threads, for a participant that is never told."""
    settings = folder / "tpc.toml"
    address = f'participants = {{ledger = "http://{host}:{port}"}}\n'
    settings.write_text(settings.read_text() + address)
    (folder / "token").write_text("an-operator-0123456789")
    more = f'token = "file:token"\nrequest_timeout = "{PATIENT:g}s"\n{LATER}'
    settings.write_text(settings.read_text() + more)
    log = open_log("sqlite:///state/decisions.db")
    ids = []
    for number in range(THREADS + 4):
        log.initialise(f"orders{number}", 0)
        about = {"run": "run", "query": None, "participants": ["ledger"], "carrier": {}}
        begun = log.begin(f"orders{number}", 0, Opening(**about))
        votes = branch_receipts(BranchId(0, 0), 1, "d", {"ledger": Vote.COMMIT})
        log.decide(begun.record.id, Decision.COMMIT, votes)
        ids.append(str(begun.record.id))
    log.close()
    return ids


def _logged_in(at: str, folder: Path) -> urllib.request.OpenerDirector:
    """Log in as an operator of the tokens file."""
    jar = urllib.request.HTTPCookieProcessor(CookieJar())
    person = urllib.request.build_opener(jar)
    person.addheaders = list(OURS.items())
    (token,) = re.findall(r"^operator (\S+)", (folder / "tokens").read_text(), re.M)
    fields = {"csrf": csrf_in(_text(person, f"{at}/login")), "token": token, "name": ""}
    person.open(f"{at}/login", urllib.parse.urlencode(fields).encode(), AT_LAST).close()
    return person


def _text(person: urllib.request.OpenerDirector, url: str) -> str:
    with person.open(url, timeout=AT_LAST) as answer:
        text: str = answer.read().decode()
    return text
