"""Time limits for a request's body, whichever server reads it.

Most servers wait for ever for a body that does not come, and a thread with them. So a
read that takes too long is ended here: the socket hears no more, and what waits for it
returns. An answer can still be written.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

from tracing_2pc.participant.problems import unavailable

PATIENCE = 10.0
"""Seconds that a read may take, and as many more as its bytes need at `SLOWEST`."""

SLOWEST = 1 << 15
"""Bytes a second."""

STRANGER: Final = 0.5
"""Seconds that the body of somebody who is not admitted may take, in all."""

_TICK: Final = 0.1

_lingering: Final = threading.BoundedSemaphore(2)
"""Threads of this process that read, at a time, for those who are not admitted."""


class TimedInput:
    """A request's body, as the server hands it over, with limits.

    Args:
        environ: WSGI's. A server that does not say which socket it reads from has to
            have limits of its own: its reads are not ended here.

    Attributes:
        left: bytes that were promised and not read yet.
    """

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self._stream: IO[bytes] = environ["wsgi.input"]
        self._client: socket.socket | None = environ.get(
            "gunicorn.socket"
        ) or environ.get("werkzeug.socket")
        length = environ.get("CONTENT_LENGTH") or "0"
        self.left = int(length) if length.isdecimal() else 0
        self._chunked = bool(environ.get("HTTP_TRANSFER_ENCODING"))

    def read(self, size: int = -1) -> bytes:
        """Read as the server does, in time.

        Raises:
            Problem: 503: it did not come in time; the client may ask again.
        """
        wanted = min(size, self.left) if size >= 0 else self.left
        return self._read(size, PATIENCE + wanted / SLOWEST)

    def linger(self, most: int) -> None:
        """Read and drop what a stranger sends, so that he gets to reading the answer.

        Args:
            most: bytes; more is not waited for, and nothing if others are waited for.
        """
        if not self.left or not _lingering.acquire(blocking=False):
            return
        try:
            self._read(min(most, self.left), STRANGER)
        finally:
            _lingering.release()

    def hang_up(self) -> None:
        """Hear no more of a client whose body was not read to its end.

        A server would wait for the rest of it, before it closes the connection.
        """
        if self._client is not None and (self.left or self._chunked):
            hear_no_more(self._client)

    def _read(self, size: int, seconds: float) -> bytes:
        with _watch.ending(self._client, time.monotonic() + seconds) as late:
            piece = self._stream.read(size)
        self.left -= len(piece)
        if late.is_set() and self.left:
            raise unavailable("the body did not come in time")
        return piece


class _Watch:
    """A thread that ends reads whose time is over; one for each process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._some = threading.Event()
        self._reads: dict[threading.Event, tuple[float, socket.socket]] = {}

    @contextlib.contextmanager
    def ending(
        self, client: socket.socket | None, until: float
    ) -> Iterator[threading.Event]:
        """End reads from a socket when time is up; the event says that it was."""
        late = threading.Event()
        if client is None:
            yield late
            return
        with self._lock:
            self._start()
            self._reads[late] = until, client
        self._some.set()
        try:
            yield late
        finally:
            with self._lock:
                del self._reads[late]

    def _start(self) -> None:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._some, self._reads = threading.Event(), {}
            name = "tpc-time-limits"
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while self._some.wait():
            time.sleep(_TICK)
            with self._lock:
                if not self._reads:
                    self._some.clear()
                for late, (until, client) in self._reads.items():
                    if until < time.monotonic():
                        late.set()
                        hear_no_more(client)


def hear_no_more(client: Any) -> None:
    """Let reads end, now and later; an answer can still be written, by TLS too."""
    with contextlib.suppress(OSError):
        if isinstance(client, socket.socket):
            socket.socket.shutdown(client, socket.SHUT_RD)
        else:  # a library's own kind
            client.shutdown(socket.SHUT_RD)


_watch: Final = _Watch()
