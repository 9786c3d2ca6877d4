"""Participants as they are run: ledgers under gunicorn, each a process of its own."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from participants.processes import Service, free_ports, start_together, stopping
from tracing_2pc import ParticipantSink


@contextlib.contextmanager
def ledgers(folder: Path, names: Sequence[str]) -> Iterator[ParticipantSink]:
    """Run a ledger on SQLite for each name; yield the sink that writes to all."""
    token = secrets.token_hex(16)
    (folder / "token").write_text(token)
    (folder / "tokens").write_text(f"job {token}\n")
    ports = free_ports(len(names))
    services = [_ledger(folder, n, p) for n, p in zip(names, ports, strict=True)]
    with stopping(*services):
        start_together(*services)
        urls = {n: s.url for n, s in zip(names, services, strict=True)}
        yield ParticipantSink(urls, token=f"file:{folder / 'token'}")


def _ledger(folder: Path, name: str, port: int) -> Service:
    environment = {
        "LEDGER_DATABASE": f"sqlite:///{folder / name}.db",
        "TPC_TOKENS_FILE": str(folder / "tokens"),
        # A machine that is busy for two seconds must not cost a connection.
        "GUNICORN_CMD_ARGS": "--keep-alive 60",
    }
    return Service("ledger", port, folder / f"{name}.log", environment)
