"""Resources without a request for a while have no connection."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from tracing_2pc.core.forks import after_fork
from tracing_2pc.participant.engine import ParticipantEngine

IDLE = 60.0
"""Seconds after the last request until the connections are closed; up to twice that."""


class _Used:
    """This process's requests: how many run now, and when the last one ended."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asking: dict[ParticipantEngine, int] = {}
        self.left: dict[ParticipantEngine, float] = {}
        self.is_watched = False


_used = _Used()
after_fork(lambda: _used.__init__())  # type: ignore[misc]


@contextlib.contextmanager
def in_use(engine: ParticipantEngine) -> Iterator[None]:
    """Keep its connections open; without a request for `IDLE` they are closed."""
    with _used.lock:
        _used.asking[engine] = _used.asking.get(engine, 0) + 1
        if not _used.is_watched:
            _used.is_watched = True
            threading.Thread(target=_watch, name="tpc-idle", daemon=True).start()
    try:
        yield
    finally:
        with _used.lock:
            _used.asking[engine] -= 1
            _used.left[engine] = time.monotonic()


def _watch() -> None:
    while True:
        time.sleep(IDLE)
        with _used.lock:
            for engine, left in list(_used.left.items()):
                if not _used.asking[engine] and time.monotonic() - left >= IDLE:
                    engine.release()
                    del _used.left[engine], _used.asking[engine]
            if not _used.asking:
                _used.is_watched = False
                return
