"""The command line in front of a log and two participants that are really there."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.telemetry import PATH
from support.waiting import AT_LAST
from support.watch import Running, Site, site
from tracing_2pc.cli import main

ROOT = Path(__file__).parents[2]


class Operator:
    """Somebody at the command line; the site's clock is the machine's unless shifted.

    Args:
        at: what there is.
        monkeypatch: sets the environment that the settings are read from.
        capsys: takes what is printed.
    """

    def __init__(
        self,
        at: Site,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.at = at
        self._set = monkeypatch.setenv
        self._capsys = capsys
        self._set("TPC_TOKEN", "a-token-of-an-operator")
        self._set("TPC_LOG", f"sqlite:///{at.folder}/log/decisions.db")
        self.reach()

    def reach(self, **urls: str) -> None:
        """Say where participants are; by default where they are."""
        known = {
            name: str(getattr(o, "url", "")) for name, o in self.at.observed.items()
        }
        known |= urls
        listed = ",".join(f"{name}={url}" for name, url in known.items())
        self._set("TPC_PARTICIPANTS", listed)

    def says(self, *command: str) -> tuple[int, str, str]:
        """Run a command; return its code, and what it printed and complained."""
        self._capsys.readouterr()
        code = main(command)
        out, err = self._capsys.readouterr()
        return code, out, err

    def out(self, code: int, *command: str) -> str:
        """Return what a command prints that ends with this code."""
        found, out, err = self.says(*command)
        assert found == code, err
        return out

    def err(self, code: int, *command: str) -> str:
        """Return what it complains of."""
        found, out, err = self.says(*command)
        assert found == code, out
        return err

    def json(self, *command: str) -> tuple[int, list[Any]]:
        """Run it for a program; each line is one object."""
        code, out, _ = self.says(*command, "--json")
        return code, [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def operator(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Operator]:
    """Somebody at the command line, 500 seconds after the log was made."""
    monkeypatch.chdir(tmp_path)
    with site(tmp_path, time=Running()) as at:
        at.time.time = time.time() - 500
        at.log.initialise("orders", 5)
        yield Operator(at, monkeypatch, capsys)


def steady(text: str) -> str:
    """Return a text without what differs from run to run: ports and moments."""
    text = re.sub(r"127\.0\.0\.1:[0-9]{1,5}", "127.0.0.1:PORT", text)
    text = re.sub(r"[0-9]{4}-[0-9-]{5} [0-9:]{8} UTC", "TIME", text)
    return re.sub(r"[+-][0-9]+\.[0-9] s", "+SKEW", text)


def on_a_terminal(
    *command: str, typed: str = "", **environment: str
) -> tuple[int, str]:
    """Run a command on a terminal of its own; return its code, and what it showed."""
    ours, theirs = pty.openpty()
    kept = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "TERM"}}
    running = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tracing_2pc", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "PYTHONPATH": PATH, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    if typed:
        os.write(ours, f"{typed}\n".encode())
    shown = bytearray()
    try:
        while part := os.read(ours, 1 << 16):
            shown += part
    except OSError:  # Linux says so when the other side has closed it
        pass
    os.close(ours)
    return running.wait(AT_LAST), shown.decode()
