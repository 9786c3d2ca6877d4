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

from tracing_2pc.skywalking import conversion
from tracing_2pc.skywalking.segments import Piece

QUEUE: Final = 10_000
"""Segments that wait to be sent; beyond that the oldest are dropped, and counted."""

BATCH: Final = 200
TICK: Final = 0.25
HEARTBEAT: Final = 30.0
BACKOFF: Final = (0.5, 5.0)
"""Seconds before the first try again, and at most; doubled in between, with jitter."""

_TAKEN: Final = range(200, 300)
_DEFINITE: Final = (400, 404, 405, 411, 413, 414, 415, 422)
_log: Final = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Collector:
    """Where to send, as whom.

    Args:
        url: of the collector's HTTP port: `http://127.0.0.1:12800`, or `https://…`.
        service: name of this service in SkyWalking.
        instance: name of this process; by default its number and host.
        token: sent as `Authentication`, if the collector wants one.
        ca: file of certificates to trust instead of the system's, for https.
        timeout: seconds, to connect and for the answer.
    """

    url: str
    service: str
    instance: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    ca: str | None = None
    timeout: float = 2.0

    def instance_here(self) -> str:
        """Return the name of this process, whichever side of a fork it is on."""
        return (self.instance or _process(os.getpid()))[:50]


class Sender:
    """Takes pieces, and sends them when it can. What cannot be sent is counted.

    A try without an answer is tried again: SkyWalking keeps each segment once. So is
    one that is redirected; nothing is sent elsewhere, and nothing past a certificate
    that is not trusted. What stands in the way is logged once, until something gets
    through. Nothing that calls it waits, but `flush` and `shutdown`, which say for how
    long.

    Args:
        collector: where to.
        gather: returns what has become due, given seconds that only rise.
    """

    def __init__(
        self, collector: Collector, gather: Callable[[float], Iterable[Piece]]
    ) -> None:
        self._to = collector
        self._gather = gather
        self.sent = self.dropped = 0
        self.forked()

    def forked(self) -> None:
        """Begin anew in a child: queue, thread and connection are the parent's."""
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
        found = [*pieces]  # before our lock: they come from under others
        with self._wake:
            self._queue.extend(found)
            while len(self._queue) > QUEUE:
                self._queue.popleft()
                self.dropped += 1

    def flush(self, seconds: float) -> bool:
        """Wait until all is sent; False if time runs out, or nobody answers there."""
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
            except Exception:  # noqa: BLE001 - one fault must not end it
                _log.warning("the SkyWalking sender failed; it goes on", exc_info=True)
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
            if answer in _TAKEN or answer in _DEFINITE:
                self._done(batch, accepted=answer in _TAKEN)
                self._say_if_refused(answer)
                continue
            with self._wake:
                self._queue.extendleft(reversed(batch))
                self._sending = 0
                self._failures += 1
                self._wake.notify_all()
            if self._failures == 1:
                _log.warning("SkyWalking takes nothing (%s); work goes on", answer)
            return

    def _say_if_refused(self, answer: int | str) -> None:
        refused = answer in _DEFINITE
        if refused and not self._refused:
            _log.warning(
                "SkyWalking refuses segments (%s); they are dropped, work goes on",
                answer,
            )
        self._refused = refused

    def _next(self) -> list[Piece]:
        with self._wake:
            self._sending = min(BATCH, len(self._queue))
            return [self._queue.popleft() for _ in range(self._sending)]

    def _done(self, batch: list[Piece], *, accepted: bool) -> None:
        with self._wake:
            self._sending = self._failures = 0
            if accepted:
                self.sent += len(batch)
            else:
                self.dropped += len(batch)
            self._wake.notify_all()

    def _converted(self, batch: list[Piece]) -> list[dict[str, Any]]:
        instance = self._to.instance_here()
        found = []
        for piece in batch:
            try:
                found.append(conversion.segment(piece, self._to.service, instance))
            except Exception:  # noqa: BLE001 - attributes are anybody's
                self.dropped += 1
                _log.warning("a segment could not be converted", exc_info=True)
        return found

    def _greet(self) -> None:
        """Say who we are, once, and then that we are there."""
        now = time.monotonic()
        if self._failures or (self._beat and now - self._beat < HEARTBEAT):
            return
        instance = {
            "service": self._to.service,
            "serviceInstance": self._to.instance_here(),
        }
        if self._beat:
            self._post("/v3/management/keepAlive", instance)
        else:
            properties = [{"key": k, "value": v} for k, v in _properties().items()]
            about = {**instance, "properties": properties}
            self._post("/v3/management/reportProperties", about)
        self._beat = now

    def _post(self, path: str, body: Any) -> int | str:
        """Return the answer's status, or the name of what went wrong."""
        headers = {"Content-Type": "application/json"}
        if self._to.token:
            headers["Authentication"] = self._to.token
        self._pool = self._pool or urllib3.PoolManager(
            1, ca_certs=self._to.ca, timeout=self._to.timeout, retries=False
        )
        url = self._to.url.rstrip("/") + path
        try:
            answer = self._pool.request(
                "POST", url, body=json.dumps(body).encode(), headers=headers
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return type(error).__name__
        return answer.status


@functools.cache
def _process(pid: int) -> str:
    # Each header names it: the host is asked for once.
    return f"{pid}@{socket.gethostname()}"


def _properties() -> dict[str, str]:
    return {
        "language": "python",
        "OS Name": platform.system(),
        "Process No.": str(os.getpid()),
        "hostname": socket.gethostname(),
        "python_version": platform.python_version(),
    }
