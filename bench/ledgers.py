"""Participants as they are run: ledgers under gunicorn, each a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from participants.processes import Ledger, Service, free_ports, start_together, stopping
from tracing_2pc import ParticipantSink


@dataclasses.dataclass(frozen=True, slots=True)
class Ledgers:
    """Ledgers that run: their services by name, and a reference to the job's token."""

    services: Mapping[str, Service]
    token: str

    @property
    def urls(self) -> dict[str, str]:
        """Their base URLs, by name."""
        return {name: service.url for name, service in self.services.items()}


@contextlib.contextmanager
def running(folder: Path, databases: Mapping[str, str]) -> Iterator[Ledgers]:
    """Run a ledger for each name, on the database at its URL."""
    token = secrets.token_hex(16)
    (folder / "token").write_text(token)
    (folder / "tokens").write_text(f"job {token}\n")
    ports = free_ports(len(databases))
    services = {
        name: _ledger(folder, name, port, url)
        for port, (name, url) in zip(ports, databases.items(), strict=True)
    }
    with stopping(*services.values()):
        start_together(*services.values())
        yield Ledgers(services, f"file:{folder / 'token'}")


@contextlib.contextmanager
def ledgers(folder: Path, names: Sequence[str]) -> Iterator[ParticipantSink]:
    """Run a ledger on SQLite for each name; yield the sink that writes to all."""
    databases = {name: f"sqlite:///{folder / name}.db" for name in names}
    with running(folder, databases) as those:
        yield ParticipantSink(those.urls, token=those.token)


def _ledger(folder: Path, name: str, port: int, url: str) -> Service:
    environment = {
        "TPC_TOKENS_FILE": str(folder / "tokens"),
        # A machine that is busy for two seconds must not cost a connection.
        "GUNICORN_CMD_ARGS": "--keep-alive 60",
    }
    return Ledger(url, port, folder / f"{name}.log", environment)
