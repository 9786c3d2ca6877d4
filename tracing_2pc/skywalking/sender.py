"""Sends pieces to SkyWalking's collector, from one thread and in bounded memory."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import platform
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import urllib3

from . import segment_json
from .segments import Piece

QUEUE: Final = 10_000
"""Segments that wait to be sent; beyond that the oldest are dropped, and counted."""

BATCH: Final = 200
TIMEOUT: Final = 2.0
"""Seconds, to connect and for the answer."""

LONGEST: Final = 1 << 16
"""Bytes of an answer's body, which says nothing that is needed."""

TICK: Final = 0.25
HEARTBEAT: Final = 30.0
BACKOFF: Final = (0.5, 5.0)
"""Seconds before the first try again, and at most; doubled in between, with jitter."""

_TAKEN: Final = range(200, 300)
_DEFINITE: Final = (400, 404, 405, 411, 413, 414, 415, 422)
logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Collector:
    """Where to send, and the name of the sender."""

    url: str
    """Of the collector's HTTP port, without a slash at the end."""
    service: str
    instance: str | None = None
    """Name of this process; by default its number and host."""
    token: str | None = dataclasses.field(default=None, repr=False)
    ca: str | None = None
    """File of certificates to trust instead of the system's, for https."""

    def instance_here(self) -> str:
        """Return the name of this process, whichever side of a fork it is on."""
        return (self.instance or _process(os.getpid()))[:50]


class Sender:
    """Takes pieces, and sends them when it can. Pieces that cannot be sent are counted.

    A batch without an answer is sent again: SkyWalking keeps each segment once. So is
    a batch that is redirected. Nothing is sent elsewhere, or past a certificate that is
    not trusted. A fault is logged once, until something gets through. Only `flush` and
    `shutdown` wait, for a given time.

    `gather` returns the pieces that are due, given seconds that only rise.
    """

    def __init__(
        self, collector: Collector, gather: Callable[[float], Iterable[Piece]]
    ) -> None:
        self._to = collector
        self._gather = gather
        self.dropped = 0
        self.forked()

    def forked(self) -> None:
        """Start empty in a child: queue, thread and connection are the parent's."""
        self._queue: deque[Piece] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pool: urllib3.PoolManager | None = None
        self._sending = self._failures = 0
        self._stopping = self._refused = False
        self._beat = 0.0

    def start(self) -> None:
        """Start the thread of this process, if it has none."""
        if self._thread is None:
            with self._wake:
                if self._thread is None and not self._stopping:
                    self._thread = threading.Thread(
                        target=self._run, name="tpc-skywalking", daemon=True
                    )
                    self._thread.start()

    def put(self, pieces: Iterable[Piece]) -> None:
        """Queue pieces; the oldest go if there is no room."""
        gathered = [*pieces]  # before our lock: they come from under others
        with self._wake:
            self._queue.extend(gathered)
            while len(self._queue) > QUEUE:
                self._queue.popleft()
                self.dropped += 1

    def flush(self, seconds: float) -> bool:
        """Wait until all is sent; False if time runs out, or no collector answers."""
        until = time.monotonic() + seconds
        with self._wake:
            self._wake.notify_all()
            while (self._queue or self._sending) and not self._failures:
                if (left := until - time.monotonic()) <= 0 or self._thread is None:
                    break
                self._wake.wait(min(left, TICK))
            return not (self._queue or self._sending)

    def shutdown(self, seconds: float) -> None:
        """Send what is left, for at most so long, and stop."""
        self.start()
        self.flush(seconds)
        with self._wake:
            self._stopping = True
            self.dropped += len(self._queue)
            self._queue.clear()
            self._wake.notify_all()

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.put(self._gather(time.monotonic()))
                self._send_all()
                self._greet()
            except Exception:  # one fault must not end it
                logger.warning(
                    "the SkyWalking sender failed; it goes on", exc_info=True
                )
            with self._wake:
                self._wake.wait(self._pause())

    def _pause(self) -> float:
        first, most = BACKOFF
        if not self._failures:
            return 0.0 if len(self._queue) >= BATCH else TICK
        wait = min(most, first * 2.0 ** min(self._failures - 1, 16))
        return wait * random.uniform(0.5, 1)  # noqa: S311 - jitter, no secret

    def _send_all(self) -> None:
        while batch := self._next():
            answer = self._post("/v3/segments", self._converted(batch))
            taken, refused = answer in _TAKEN, answer in _DEFINITE
            with self._wake:
                self._sending = 0
                self._failures = 0 if taken or refused else self._failures + 1
                if refused:
                    self.dropped += len(batch)
                elif not taken:
                    self._queue.extendleft(reversed(batch))
                self._wake.notify_all()
            if self._failures == 1:
                logger.warning("SkyWalking takes nothing (%s); work goes on", answer)
            elif refused and not self._refused:
                logger.warning(
                    "SkyWalking refuses segments (%s); they are dropped, work goes on",
                    answer,
                )
            if self._failures:
                return
            self._refused = refused

    def _next(self) -> list[Piece]:
        with self._wake:
            self._sending = min(BATCH, len(self._queue))
            return [self._queue.popleft() for _ in range(self._sending)]

    def _converted(self, batch: list[Piece]) -> list[dict[str, Any]]:
        instance = self._to.instance_here()
        segments = []
        for piece in batch:
            try:
                segments.append(segment_json.segment(piece, self._to.service, instance))
            except Exception:  # attributes have any values
                self.dropped += 1
                logger.warning("a segment could not be converted", exc_info=True)
        return segments

    def _greet(self) -> None:
        """Report this process's properties once, and then that it is alive."""
        now = time.monotonic()
        if self._failures or (self._beat and now - self._beat < HEARTBEAT):
            return
        instance: dict[str, Any] = {
            "service": self._to.service,
            "serviceInstance": self._to.instance_here(),
        }
        if self._beat:
            self._post("/v3/management/keepAlive", instance)
        else:
            instance["properties"] = _properties()
            self._post("/v3/management/reportProperties", instance)
        self._beat = now

    def _post(self, path: str, body: Any) -> int | str:
        """Return the answer's status, or the name of the error."""
        headers = {"Content-Type": "application/json"}
        if self._to.token:
            headers["Authentication"] = self._to.token
        self._pool = self._pool or urllib3.PoolManager(
            1, ca_certs=self._to.ca, timeout=TIMEOUT, retries=False
        )
        url, content = self._to.url + path, json.dumps(body).encode()
        try:
            answer = self._pool.request(
                "POST", url, body=content, headers=headers, preload_content=False
            )
            _drain(answer)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return type(error).__name__
        return answer.status


def _drain(answer: urllib3.BaseHTTPResponse) -> None:
    """Read a body to its end, so that its connection is used again; or hang up."""
    until, left = time.monotonic() + TIMEOUT, LONGEST
    while part := answer.read1(left):
        left -= len(part)
        if not left or time.monotonic() > until:
            answer.close()
            return
    answer.release_conn()


@functools.cache
def _process(pid: int) -> str:
    # Each header names it: the host is asked for once.
    return f"{pid}@{socket.gethostname()}"


def _properties() -> list[dict[str, str]]:
    properties = {
        "language": "python",
        "OS Name": platform.system(),
        "Process No.": str(os.getpid()),
        "hostname": socket.gethostname(),
        "python_version": platform.python_version(),
    }
    return [{"key": key, "value": value} for key, value in properties.items()]
