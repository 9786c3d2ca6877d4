"""Requests to a participant or a partner: urllib3 pools, no redirects, no proxies."""

from __future__ import annotations

import functools
import http.client
import io
import socket
import time
from collections.abc import Mapping
from typing import IO, Any, Final

import urllib3

from tracing_2pc.wire.contract import NoAnswerError, Silence

_BLOCK: Final = 1 << 18
"""Bytes of a body that are sent at a time; each block has the timeout."""


class _DeadlineReader(io.RawIOBase):
    """Reads from a socket while its timeout lasts: in all, not for each header."""

    def __init__(self, sock: socket.socket, inner: io.RawIOBase) -> None:
        self._sock = sock
        self._inner = inner
        self._until = time.monotonic() + (sock.gettimeout() or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)
        return self._inner.readinto(buffer)

    def close(self) -> None:
        self._inner.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer whose status line, headers and body are timely."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_DeadlineReader(sock, self.fp.detach()))


def ask(
    pool: urllib3.HTTPConnectionPool,
    method: str,
    path: str,
    body: bytes | IO[bytes] | None,
    headers: Mapping[str, str],
    timeout: float,
    most: int,
    *,
    whole: bool = True,
) -> tuple[int, Mapping[str, str], bytes]:
    """Send a request once; return status, headers and body.

    It has `timeout` seconds to connect, for each read, and for the answer's body in
    all. If not `whole`, the part beyond that time, or beyond `most` bytes, is left
    unread.

    Raises:
        NoAnswerError: no answer, or one that is too long or too slow.
    """
    try:
        return _ask(pool, method, path, body, headers, timeout, most, whole=whole)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise NoAnswerError(_silence_of(error), type(error).__name__) from error


def _ask(
    pool: urllib3.HTTPConnectionPool,
    method: str,
    path: str,
    body: bytes | IO[bytes] | None,
    headers: Mapping[str, str],
    timeout: float,
    most: int,
    *,
    whole: bool,
) -> tuple[int, Mapping[str, str], bytes]:
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
                if whole:
                    raise urllib3.exceptions.ProtocolError("too long, or too slow")
                break
        else:
            response.release_conn()
    except urllib3.exceptions.ReadTimeoutError:
        if whole:
            raise
    finally:
        response.close()
    return response.status, response.headers, bytes(content)


def _silence_of(error: Exception) -> Silence:
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return Silence.NOT_SENT
    if isinstance(error, urllib3.exceptions.ProtocolError):
        return Silence.CUT
    return Silence.LATE


@functools.cache
def pool_of(
    url: str,
    timeout: float,
    _pid: int,
    ca_file: str | None = None,
    certificate: tuple[str, str] | None = None,
) -> urllib3.HTTPConnectionPool:
    """Return this process's connections to an address: a fork has others.

    A `certificate` of ours is a file with it, and one with its key.
    """
    tls: dict[str, Any] = {}
    if url.startswith("https:"):
        mine = dict(zip(("cert_file", "key_file"), certificate or (), strict=False))
        tls = {"ca_certs": ca_file, **mine}
    pool = urllib3.connectionpool.connection_from_url(
        url,
        **tls,
        maxsize=8,
        block=False,
        blocksize=_BLOCK,
        timeout=urllib3.Timeout(connect=timeout, read=timeout),
        retries=False,
    )

    class Connection(pool.ConnectionCls):  # type: ignore[misc,name-defined]
        response_class = _Response

    pool.ConnectionCls = Connection
    return pool
