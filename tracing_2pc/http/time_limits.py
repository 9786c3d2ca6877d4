"""Time limits for a request's body, whichever server reads it.

Most servers wait for ever for a body that does not come, and a thread with them. Here a
read that takes too long is ended: the socket is shut for reading, and the thread that
waits for it returns. An answer can still be written.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import IO, Any, Final, NamedTuple

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.forks import after_fork
from tracing_2pc.core.settings import READ_WAIT
from tracing_2pc.core.states import Refusal

PATIENCE = READ_WAIT
"""Seconds that a read may take, and as many more as its bytes need at `SLOWEST`."""

SLOWEST = 1 << 15  # bytes a second

STRANGER: Final = 0.5
"""Seconds that the body of a caller who is not admitted may take, in all."""

_TICK: Final = 0.1

_SHARE: Final = 8
"""Bodies of one producer that may come slowly, at a time, in this process."""

_LINGERING: Final = 2
"""Threads of this process that read, at a time, bodies of callers not admitted."""


class TimedInput:
    """A request's body, as the server hands it over, with limits.

    A WSGI server that names neither its socket nor a `tpc.client` has to have limits of
    its own: its reads are not ended here. `left` are the bytes that were promised and
    not read yet. Of a `producer` that is named, few reads may take long at a time.
    """

    producer = ""

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self._stream: IO[bytes] = environ["wsgi.input"]
        sockets = ("gunicorn.socket", "werkzeug.socket", "tpc.client")
        self._client = next(filter(None, map(environ.get, sockets)), None)
        length = environ.get("CONTENT_LENGTH") or "0"
        self.left = int(length) if length.isdecimal() else 0
        self._chunked = bool(environ.get("HTTP_TRANSFER_ENCODING"))

    def read(self, size: int = -1) -> bytes:
        """Read as the server does, in time; else `RefusalError`, *not now*."""
        wanted = min(size, self.left) if size >= 0 else self.left
        return self._read(size, PATIENCE + wanted / SLOWEST)

    def linger(self, most: int) -> None:
        """Read and drop up to `most` bytes: the stranger is to read the answer."""
        places = _watch.lingering
        if not self.left or not places.acquire(blocking=False):
            return
        try:
            self._read(min(most, self.left), STRANGER)
        finally:
            places.release()

    def hang_up(self) -> None:
        """Shut the socket, not fully read: a server would wait for the rest of it."""
        if self._client is not None and (self.left or self._chunked):
            end_reading(self._client)

    def _read(self, size: int, seconds: float) -> bytes:
        until = time.monotonic() + seconds
        with reading_ends_at(self._client, until, self.producer) as late:
            piece = self._stream.read(size)
        self.left -= len(piece)
        if late.is_set() and self.left:
            detail = "the body did not come in time: ask again"
            raise RefusalError(Refusal.NOT_NOW, detail)
        return piece


class _Read(NamedTuple):
    client: socket.socket
    until: float
    producer: str
    since: float


class _Watch:
    """A thread that ends reads whose time is over; one for each process."""

    def __init__(self) -> None:
        self._reset()
        after_fork(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._is_started = False
        self._some = threading.Event()
        self._reads: dict[threading.Event, _Read] = {}  # the oldest first
        self.lingering = threading.BoundedSemaphore(_LINGERING)

    @contextlib.contextmanager
    def reading_ends_at(
        self, client: socket.socket | None, until: float, producer: str = ""
    ) -> Iterator[threading.Event]:
        """End reads from a socket when that monotonic time comes, and set the event.

        Of a producer with many that are slow, the newest are ended at once.
        """
        late = threading.Event()
        if client is None:
            yield late
            return
        with self._lock:
            self._start()
            self._reads[late] = _Read(client, until, producer, time.monotonic())
        self._some.set()
        try:
            yield late
        finally:
            with self._lock:
                del self._reads[late]

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            name = "tpc-time-limits"
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while self._some.wait():
            time.sleep(_TICK)
            with self._lock:
                if not self._reads:
                    self._some.clear()
                for late, client in self._overdue(time.monotonic()):
                    late.set()
                    end_reading(client)

    def _overdue(self, now: float) -> Iterator[tuple[threading.Event, socket.socket]]:
        slow = Counter[str]()
        for late, read in self._reads.items():
            # Once a producer has its share of slow bodies, a further one ends at once.
            allowed = STRANGER if slow[read.producer] < _SHARE else _TICK
            is_slow = bool(read.producer) and read.since + allowed < now
            slow[read.producer] += is_slow
            if read.until < now or (is_slow and slow[read.producer] > _SHARE):
                yield late, read.client


def end_reading(client: Any) -> None:
    """Let reads end, now and later; an answer can still be written, by TLS too."""
    with contextlib.suppress(OSError):
        if isinstance(client, socket.socket):
            socket.socket.shutdown(client, socket.SHUT_RD)
        else:  # a library's own kind
            client.shutdown(socket.SHUT_RD)


_watch: Final = _Watch()

reading_ends_at: Final = _watch.reading_ends_at
