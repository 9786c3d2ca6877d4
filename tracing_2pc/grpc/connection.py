"""This process's connections to participants: no retries, no proxies, none forked."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc

from tracing_2pc.grpc.messages import METHODS, path_of
from tracing_2pc.wire import contract

_OPTIONS: Final = (
    ("grpc.enable_retries", 0),  # nor those that gRPC calls transparent
    ("grpc.service_config_disable_resolution", 1),  # nor those that DNS asks for
    ("grpc.enable_http_proxy", 0),
    # A forked child would find a connection of its parent's by its address.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", contract.MAX_SHOWN_BYTES + (1 << 16)),
)

_stubs: Final[dict[tuple[int, str], Stub]] = {}


class Stub:
    """The service's methods at one address. It connects at the first request."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme == "grpcs":
            trusted = grpc.ssl_channel_credentials(_trusted_by_python())
            channel = grpc.secure_channel(parts.netloc, trusted, _OPTIONS)
        else:
            channel = grpc.insecure_channel(parts.netloc, _OPTIONS)
        self.prepare: Any = self._method(channel.stream_unary, "Prepare")
        self.commit: Any = self._method(channel.unary_unary, "Commit")
        self.rollback: Any = self._method(channel.unary_unary, "Rollback")
        self.ask: Any = self._method(channel.unary_unary, "Ask")

    @staticmethod
    def _method(make: Any, name: str) -> Any:
        sent, received = METHODS[name]
        return make(path_of(name), sent.SerializeToString, received.FromString)


def stub_of(url: str) -> Stub:
    """Return this process's connection to an address: a child of a fork has another."""
    key = os.getpid(), url
    # Of two threads that come at once, one has made a stub for nothing.
    return _stubs.get(key) or _stubs.setdefault(key, Stub(url))


def forget(url: str) -> None:
    """Let the next request connect again, at once.

    A channel that failed to connect waits before it tries again, longer each time; and
    one whose server was silent may have lost the way to it.
    """
    _stubs.pop((os.getpid(), url), None)


def _trusted_by_python() -> bytes | None:
    """Return the certificates that `https://` trusts: gRPC's own list is another.

    They are the system's, or those of `SSL_CERT_FILE` or `SSL_CERT_DIR`.
    """
    paths = ssl.get_default_verify_paths()
    files: Iterable[Path] = [Path(paths.cafile)] if paths.cafile else []
    if not paths.cafile and paths.capath:
        files = sorted(Path(paths.capath).glob("*.[0-9]"))
    return b"\n".join(file.read_bytes() for file in files) or None
