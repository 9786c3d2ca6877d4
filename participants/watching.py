"""The operator's side of the demo: a watcher that flags, and the console to look at."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from .processes import Process, free_ports
from .serve import ROOT

THRESHOLDS: Final = {
    "TPC_STUCK_AFTER": "10s",
    "TPC_SAFETY_INTERVAL": "6s",
    "TPC_SWEEP": "2s",
    "TPC_PAUSE": "1s",
}
"""Short enough to be watched; the settings check accepts them together."""

PATIENCE: Final = 30.0
"""Seconds for which the demo waits to have a transaction flagged."""


@dataclasses.dataclass(frozen=True)
class Flag:
    """What the watcher said of a transaction, and so many seconds after it was hit."""

    transaction: str
    diagnosis: str
    why: str
    seconds: float

    def __str__(self) -> str:
        about = f"{self.transaction} is {self.diagnosis}: {self.why}"
        return f"{about} ({self.seconds:.0f} s after the kill)"


class Operator:
    """A watcher and a console, each a process of its own.

    Args:
        folder: where their logs go.
        token: the operator's, for both and to log in with.
        settings: variables that name the decision log, the tokens and the services.
    """

    def __init__(self, folder: Path, token: str, settings: Mapping[str, str]) -> None:
        (port,) = free_ports(1)
        about = {
            **THRESHOLDS,
            **settings,
            "TPC_TOKEN": token,
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "tracing_2pc"]
        self.token = token
        self.url = f"http://127.0.0.1:{port}"
        self.watcher = Process(
            "watcher", [*command, "watch", "--json"], folder / "watcher.log", about
        )
        self.console = Process(
            "console",
            [*command, "console", "--listen", f"127.0.0.1:{port}"],
            folder / "console.log",
            about,
        )

    def __str__(self) -> str:
        return f"{self.url}: log in with {self.token}"

    @property
    def processes(self) -> tuple[Process, Process]:
        """In the order of their start."""
        return self.watcher, self.console

    def start(self) -> None:
        """Start both; the console answers when this returns."""
        self.watcher.start()
        self.console.start()
        self.console.until_answers(f"{self.url}/health/live", 30)

    def flag(self, transaction: str) -> Flag | None:
        """Wait until the watcher reports a transaction; None if it does not."""
        started = time.monotonic()
        while time.monotonic() - started < PATIENCE:
            for finding in self._findings():
                if finding.get("where") == transaction:
                    return Flag(
                        transaction,
                        str(finding["kind"]),
                        str(finding["why"]),
                        time.monotonic() - started,
                    )
            time.sleep(0.2)
        return None

    def _findings(self) -> Iterator[Mapping[str, Any]]:
        for line in self.watcher.log.read_text().splitlines():
            if not line.startswith("{"):
                continue
            if (event := json.loads(line))["event"] == "found":
                yield event
