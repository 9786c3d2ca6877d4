"""Connections of clients that nobody knows, by the thousand."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from support.waiting import AT_LAST

FILES = 4_000


@pytest.fixture(scope="module")
def many_files() -> Iterator[None]:
    """A socket is a file, and some systems give a process a thousand of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def connected(url: str, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """Connect so many times, send this each time, and stay."""
    parts = urlsplit(url)
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            one = socket.create_connection((parts.hostname, parts.port), AT_LAST)
            sockets.append(stack.enter_context(one))
            with contextlib.suppress(OSError):  # let go already
                one.sendall(sent)
        yield sockets
