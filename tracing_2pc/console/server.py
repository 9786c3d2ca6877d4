"""`tracing-2pc console`: one process with threads, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import secrets
import time
from typing import Any, Final

from flask import Flask
from gunicorn.app.base import BaseApplication

from tracing_2pc.console.app import console
from tracing_2pc.console.state import ConsoleSources
from tracing_2pc.core.access import Gate, TokenGate
from tracing_2pc.core.ports import SystemClock
from tracing_2pc.core.settings import Settings
from tracing_2pc.http.gunicorn_worker import Worker
from tracing_2pc.http.time_limits import reading_ends_at
from tracing_2pc.operations.recover import deliver
from tracing_2pc.operations.wiring import open_configured_log, open_participants
from tracing_2pc.store import open_log
from tracing_2pc.wire.serving import is_loopback, listen_at, open_gate, parse_address

LISTEN: Final = "127.0.0.1:8090"
THREADS: Final = 8
PATIENCE: Final = 5.0
"""Seconds that a client has for its request, from its first byte to its last."""

_BY_HTTPS: Final = "; from other machines by https, through a proxy (forms need it)"


def gate_of(listen: str, tokens_file: str | None) -> tuple[Gate, str]:
    """Return the gate that knows the tokens, and a line about how to log in.

    Without a file there is one token for an operator, made now; on loopback only.

    Raises:
        ConfigurationError: no tokens for an address that others can reach, or a file
            that cannot be read.
    """
    host, _ = parse_address(listen)
    token = secrets.token_urlsafe(24)
    own = TokenGate([f"operator {token}"], "the console's own token")
    gate, known = open_gate(host, tokens_file or None, own), token
    if tokens_file:
        known = f"a viewer's or operator's token of {tokens_file}"
        known += "" if is_loopback(host) else _BY_HTTPS
    return gate, f"console at http://{listen}/: log in with {known}"


def serve(settings: Settings, listen: str, tokens_file: str | None) -> None:
    """Serve the console until SIGTERM or Ctrl-C, which end it in a second or two.

    Raises:
        ConfigurationError: an address, tokens or a log that cannot be used.
    """
    gate, welcome = gate_of(listen, tokens_file or settings.tokens_file)
    # Fail at once where something listens: gunicorn tries for seconds.
    listen_at(*parse_address(listen)).close()
    open_participants(settings)
    with open_configured_log(settings, may_be_down=True):
        pass  # what is wrong with it is said now, and not by every page
    _Server(settings, gate, listen, welcome).run()


class _Worker(Worker):
    """gunicorn's threads, none of which waits long for the rest of a request."""

    def handle(self, conn: Any) -> Any:
        """Serve a request; what has not come by then will not be read."""
        with reading_ends_at(conn.sock, time.monotonic() + PATIENCE):
            return super().handle(conn)


class _Server(BaseApplication):  # type: ignore[misc]
    """gunicorn with one worker: sessions and cached values are in its memory."""

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
        sources = ConsoleSources(
            log,
            open_participants(settings),
            settings,
            lambda record: deliver(log, settings, record),
            SystemClock(),
        )
        return console(sources, self._gate)
