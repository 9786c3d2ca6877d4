"""`tracing-2pc console`: one process with threads, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import threading
from pathlib import Path
from typing import Any, Final

from flask import Flask
from gunicorn.app.base import BaseApplication

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.interfaces import SystemClock
from tracing_2pc.operations.console.app import console
from tracing_2pc.operations.console.sight import Sources
from tracing_2pc.operations.observation import reachable
from tracing_2pc.operations.recover import configured_log, deliver, services_of
from tracing_2pc.operations.watch_server import address
from tracing_2pc.participant.auth import Gate, TokenGate
from tracing_2pc.participant.gunicorn_worker import Worker
from tracing_2pc.participant.time_limits import hear_no_more
from tracing_2pc.settings import Settings
from tracing_2pc.store import open_log

LISTEN: Final = "127.0.0.1:8090"
THREADS: Final = 8
PATIENCE: Final = 5.0
"""Seconds that a client has for its request, from its first byte to its last."""

_BY_HTTPS: Final = "; from other machines by https, through a proxy (forms need it)"


def gate_of(listen: str, tokens_file: str | None) -> tuple[Gate, str]:
    """Return who knows the tokens, and a line that says how to log in.

    Without a file there is one token for an operator, made now; on loopback only.

    Raises:
        ConfigurationError: no tokens for an address that others can reach, or a file
            that cannot be read.
    """
    host, _ = address(listen)
    near = ipaddress.ip_address(host).is_loopback
    where = f"console at http://{listen}/"
    if tokens_file:
        gate = TokenGate.read(Path(tokens_file))
        known = f"a viewer's or operator's token of {tokens_file}"
        return gate, f"{where}: log in with {known}{'' if near else _BY_HTTPS}"
    if not near:
        raise ConfigurationError(
            f"--listen {listen}: others can reach it; give --tokens-file, or listen on "
            "127.0.0.1"
        )
    token = secrets.token_urlsafe(24)
    made = TokenGate([f"operator {token}"], "the console's own token")
    return made, f"{where}: log in with {token}"


def serve(settings: Settings, listen: str, tokens_file: str | None) -> None:
    """Serve the console until SIGTERM or Ctrl-C, which end it in a second or two.

    Args:
        settings: log, participants, thresholds.
        listen: `address:port`.
        tokens_file: by default that of the settings.

    Raises:
        ConfigurationError: an address, tokens or a log that cannot be used.
    """
    gate, welcome = gate_of(listen, tokens_file or settings.tokens_file)
    _check_free(listen)
    reachable(settings)
    with configured_log(settings, may_be_down=True):
        pass  # what is wrong with it is said now, and not by every page
    _Server(settings, gate, listen, welcome).run()


class _Worker(Worker):
    """gunicorn's threads, none of which waits long for the rest of a request."""

    def handle(self, conn: Any) -> Any:
        """Serve a request; what has not come by then will not be read."""
        late = threading.Timer(PATIENCE, hear_no_more, [conn.sock])
        late.daemon = True
        late.start()
        try:
            return super().handle(conn)
        finally:
            late.cancel()


def _check_free(listen: str) -> None:
    """Say at once that something listens there; gunicorn tries for seconds.

    Raises:
        ConfigurationError: it cannot be listened on.
    """
    host, port = address(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            raise ConfigurationError(f"--listen {listen}: {error.strerror}") from error


class _Server(BaseApplication):  # type: ignore[misc]
    """gunicorn with one worker: sessions and what was read are in its memory."""

    def __init__(
        self, settings: Settings, gate: Gate, listen: str, welcome: str
    ) -> None:
        self._settings = settings
        self._gate = gate
        self._listen = listen
        self._welcome = welcome
        super().__init__()

    def load_config(self) -> None:
        wanted: dict[str, Any] = {
            "bind": self._listen,
            "workers": 1,
            "worker_class": _Worker,
            "threads": THREADS,
            "timeout": 60,
            "graceful_timeout": 1,
            "loglevel": "warning",
            "control_socket_disable": True,
            "when_ready": self._say,
        }
        for name, value in wanted.items():
            if name in self.cfg.settings:
                self.cfg.set(name, value)

    def _say(self, server: object) -> None:
        print(self._welcome, flush=True)  # noqa: T201 - for whoever started it

    def load(self) -> Flask:
        """Open everything in the worker: threads and connections survive no fork."""
        settings = self._settings
        log = open_log(settings.log or "", must_exist=True, may_be_down=True)
        sources = Sources(
            log,
            services_of(settings),
            settings,
            SystemClock(),
            deliver=lambda record: deliver(log, settings, record),
        )
        return console(sources, self._gate)
