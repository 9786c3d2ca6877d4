"""Requests to one participant: a urllib3 pool, no redirects, no proxies."""

from __future__ import annotations

import dataclasses
import functools
import http.client
import io
import socket
import time
from collections.abc import Mapping
from typing import IO, Any

import urllib3

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.settings import reveal
from tracing_2pc.transports import wire


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, read whole and bounded."""

    status: int
    content_type: str
    body: bytes


class _Timely(io.RawIOBase):
    """What a peer sends, as long as its socket's timeout lasts: in all, not by read.

    Without it a peer that sends a header now and then holds whoever asks for ever.
    """

    def __init__(self, sock: socket.socket, inner: io.RawIOBase) -> None:
        self._sock = sock
        self._inner = inner
        self._until = time.monotonic() + (sock.gettimeout() or 0.0)

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what there is; `TimeoutError` when the time is over."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)
        return self._inner.readinto(buffer)

    def close(self) -> None:
        """Let the socket go."""
        self._inner.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer whose status line, headers and body are timely."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Timely(sock, self.fp.detach()))


class _Connection(urllib3.connection.HTTPConnection):
    response_class = _Response


class _TlsConnection(urllib3.connection.HTTPSConnection):
    response_class = _Response


def ask(
    pool: urllib3.HTTPConnectionPool,
    method: str,
    path: str,
    body: bytes | IO[bytes] | None,
    headers: Mapping[str, str],
    timeout: float,
    most: int = wire.MAX_ANSWER_BYTES,
) -> Answer:
    """Send a request once, and read its answer whole within `timeout` seconds.

    An answer has `most` bytes at most.

    Raises:
        HTTPError, OSError: no answer, or one that is too long.
    """
    response = pool.urlopen(
        method,
        path,
        body=body,
        headers=headers,
        timeout=urllib3.Timeout(connect=timeout, read=timeout),
        retries=False,
        redirect=False,
        preload_content=False,
    )
    content = bytearray()
    until = time.monotonic() + timeout
    try:
        while part := response.read1(1 << 16):
            content += part
            if len(content) > most or time.monotonic() > until:
                raise urllib3.exceptions.ProtocolError("too long, or too slow")
        response.release_conn()
    finally:
        response.close()
    kind = response.headers.get("Content-Type", "")
    return Answer(response.status, kind, bytes(content))


def why_silent(error: Exception, request: wire.Request, timeout: float) -> str:
    """Say why there was no answer to a request."""
    changing = request.route.startswith("POST")
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        nobody = f"nothing listens at {request.url}"
        if not changing:
            return nobody
        asked = str(request).removesuffix(f" at {request.url}")
        return f"{nobody}, so {asked} was not sent: {request.cure_of_address}"
    unknown = ": it may or may not have happened" if changing else ""
    if isinstance(error, urllib3.exceptions.ProtocolError):
        # Said at once, by somebody who was killed, too: no time has run out.
        return f"the connection ended without a whole answer to {request}{unknown}"
    why = type(error).__name__
    return f"no answer to {request} within {timeout:.3g} s ({why}){unknown}"


@functools.cache
def pool_of(url: str, timeout: float, _pid: int) -> urllib3.HTTPConnectionPool:
    """Return this process's connections to a participant; opens none yet."""
    # By process: a connection is not shared over a fork, and outlives a batch.
    pool = urllib3.connectionpool.connection_from_url(
        url,
        maxsize=8,
        block=False,
        timeout=urllib3.Timeout(connect=timeout, read=timeout),
        retries=False,
    )
    pool.ConnectionCls = _TlsConnection if pool.scheme == "https" else _Connection
    return pool


def one_word(reference: str, what: str) -> str:
    """Reveal a token; `ConfigurationError` unless it is one word."""
    token = reveal(reference, what)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(
            f"{what}: {reference} must hold one token, and no more"
        )
    return token


def path_of(url: str) -> str:
    """Return what comes before a route."""
    return urllib3.util.parse_url(url).path or ""
