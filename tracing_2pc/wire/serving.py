"""Where the console and the watcher listen, and which hosts they answer."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from urllib.parse import urlsplit

from tracing_2pc.core.access import Gate, TokenGate
from tracing_2pc.core.errors import ConfigurationError


def parse_address(text: str) -> tuple[str, int]:
    """Read `host:port`, or raise `ConfigurationError`."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
        ipaddress.ip_address(host or "")
    except ValueError:
        host, port = None, None
    in_form = text.isprintable() and "@" not in text
    if host is None or port is None or parts.path or not in_form:
        shown = text if in_form else "…"
        raise ConfigurationError(
            f"--listen {shown}: expected address:port, as in 127.0.0.1:9095"
        )
    return host, port


def open_gate(host: str, tokens_file: str | None, without: Gate) -> Gate:
    """Return who is admitted: by the tokens of a file, or `without` one.

    Raises:
        ConfigurationError: no file, and not a loopback address; or it cannot be read.
    """
    if tokens_file is not None:
        return TokenGate.read(Path(tokens_file))
    if not is_loopback(host):
        raise ConfigurationError(
            f"--listen {host}: others can reach it. Listen on 127.0.0.1, or name a "
            "tokens file in `tokens_file` (TPC_TOKENS_FILE)"
        )
    return without


def is_loopback(host: str) -> bool:
    """Return whether an IP address is reached from this machine only."""
    return ipaddress.ip_address(host).is_loopback


def is_loopback_name(host: str) -> bool:
    """Return whether a header `Host` can only be a name of this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return f".{name}".endswith(".localhost") or is_loopback(name)
    except ValueError:
        return False


def listen_at(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an IP address; port 0 is one that is free."""
    six = ":" in host
    family = socket.AF_INET6 if six else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=six)
    except OSError as error:
        raise ConfigurationError(f"--listen {host}:{port}: {error.strerror}") from None
