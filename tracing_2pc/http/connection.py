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

from tracing_2pc.http import contract

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
    all. What is over that, or over `most` bytes, is left unread if not `whole`.

    Raises:
        HTTPError, OSError: no answer, or one that is too long or too slow.
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


def why_silent(error: Exception, request: contract.Request, timeout: float) -> str:
    """Say why there was no answer to a request."""
    changing = request.route.startswith("POST")
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        why = f"nothing listens at {request.url}"
        if not changing:
            return why
        asked = str(request).removesuffix(f" at {request.url}")
        return f"{why}, so {asked} was not sent: {request.cure_of_address}"
    unknown = ": it may or may not have happened" if changing else ""
    if isinstance(error, urllib3.exceptions.ProtocolError):
        # At once, where the participant was killed too: no time has run out.
        return f"the connection ended without a whole answer to {request}{unknown}"
    kind = type(error).__name__
    return f"no answer to {request} within {timeout:.3g} s ({kind}){unknown}"


@functools.cache
def pool_of(url: str, timeout: float, _pid: int) -> urllib3.HTTPConnectionPool:
    """Return this process's connections to an address: a fork has others."""
    pool = urllib3.connectionpool.connection_from_url(
        url,
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
