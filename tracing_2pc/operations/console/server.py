"""`tracing-2pc console`: one process with threads, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import ipaddress
import secrets
from pathlib import Path
from typing import Any, Final, NamedTuple

from flask import Flask
from gunicorn.app.base import BaseApplication

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.interfaces import SystemClock
from tracing_2pc.operations.console.app import console
from tracing_2pc.operations.console.sight import Sources
from tracing_2pc.operations.observation import reachable
from tracing_2pc.operations.recover import configured_log, deliver
from tracing_2pc.participant.auth import Gate, TokenGate
from tracing_2pc.settings import Settings
from tracing_2pc.store import open_log

LISTEN: Final = "127.0.0.1:8090"
THREADS: Final = 8


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @property
    def text(self) -> str:
        """Return it as a URL and gunicorn have it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def near(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def read_address(text: str) -> Address:
    """Read `host:port`.

    Raises:
        ConfigurationError: it is none.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"--listen {text!r}: expected host:port, as {LISTEN}")
    return Address(host, int(port))


def gate_of(address: Address, tokens_file: str | None) -> tuple[Gate, str]:
    """Return who knows the tokens, and a line that says how to log in.

    Without a file there is one token for an operator, made now; on loopback only.

    Raises:
        ConfigurationError: no tokens for an address that others can reach, or a file
            that cannot be read.
    """
    where = f"console at http://{address.text}/"
    if tokens_file:
        gate = TokenGate.read(Path(tokens_file))
        return gate, f"{where}: log in with a viewer's or operator's token"
    if not address.near:
        raise ConfigurationError(
            f"--listen {address.text}: others can reach it; give --tokens-file, or "
            "listen on 127.0.0.1"
        )
    token = secrets.token_urlsafe(24)
    made = TokenGate([f"operator {token}"], "the console's own token")
    return made, f"{where}: log in with {token}"


def serve(settings: Settings, listen: str, tokens_file: str | None) -> None:
    """Serve the console until SIGTERM or Ctrl-C, which end it in a second or two.

    Args:
        settings: log, participants, thresholds.
        listen: `host:port`.
        tokens_file: by default that of the settings.

    Raises:
        ConfigurationError: an address, tokens or a log that cannot be used.
        DecisionLogError: the log cannot be reached.
    """
    address = read_address(listen)
    gate, welcome = gate_of(address, tokens_file or settings.tokens_file)
    with configured_log(settings):
        pass  # what is wrong with it is said now, and not by every page
    print(welcome, flush=True)  # noqa: T201 - for whoever started it
    _Server(settings, gate, address).run()


class _Server(BaseApplication):  # type: ignore[misc]
    """gunicorn with one worker: sessions and what was read are in its memory."""

    def __init__(self, settings: Settings, gate: Gate, address: Address) -> None:
        self._settings = settings
        self._gate = gate
        self._address = address
        super().__init__()

    def load_config(self) -> None:
        wanted: dict[str, Any] = {
            "bind": self._address.text,
            "workers": 1,
            "worker_class": "gthread",
            "threads": THREADS,
            "timeout": 60,
            "graceful_timeout": 1,
            "loglevel": "warning",
            "control_socket_disable": True,
        }
        for name, value in wanted.items():
            if name in self.cfg.settings:
                self.cfg.set(name, value)

    def load(self) -> Flask:
        """Open everything in the worker: threads and connections survive no fork."""
        settings = self._settings
        log = open_log(settings.log or "", must_exist=True)
        sources = Sources(
            log,
            reachable(settings),
            settings,
            SystemClock(),
            deliver=lambda record: deliver(log, settings, record),
        )
        return console(sources, self._gate)
