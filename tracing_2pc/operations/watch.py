"""`tracing-2pc watch`: the watcher as a process."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import secrets
import signal
import threading
from collections.abc import Callable, Iterator

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.interfaces import SystemClock
from tracing_2pc.operations.observation import reachable
from tracing_2pc.operations.recover import recovery_of
from tracing_2pc.operations.sweep import Sweep
from tracing_2pc.operations.watch_metrics import WatchMetrics
from tracing_2pc.operations.watcher import Watcher
from tracing_2pc.settings import Settings
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.telemetry import lifecycle, metrics

_SERVICE = "tracing-2pc-watch"
_STALE = 3
"""So many sweeps without the log, and the watcher is not ready."""


@dataclasses.dataclass(frozen=True, slots=True)
class How:
    """What the watcher does beside looking.

    Args:
        recover: finish what is decided, abort what ran out of time.
        once: one sweep, then return.
        listen: `address:port` to serve `/metrics` and health at.
    """

    recover: bool = False
    once: bool = False
    listen: str | None = None


def watch(
    log: SqlDecisionLog,
    settings: Settings,
    how: How,
    tell: Callable[[Sweep], object],
    stop: threading.Event | None = None,
) -> Sweep:
    """Sweep until SIGTERM or SIGINT, or `stop`; return the last sweep.

    Several watchers may run at once: each says what it sees, one recovers.

    Args:
        log: the decision log.
        settings: participants, thresholds, tokens file.
        how: what else to do.
        tell: is given each sweep.
        stop: ends it; by default a signal does.

    Raises:
        ConfigurationError: an address that is not one, or that strangers could ask.
    """
    clock, ending = SystemClock(), stop or threading.Event()
    participants = reachable(settings)
    watcher = Watcher(
        log,
        participants,
        settings,
        clock=clock,
        pause=ending.wait,
        recovery=recovery_of(log, settings) if how.recover else None,
        holder=f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(4)}",
    )
    WatchMetrics(watcher, tuple(participants), clock).observe()
    lifecycle.start(_SERVICE)
    metrics.start(_SERVICE, scraped=how.listen is not None)

    def ready() -> bool:
        return watcher.blind <= _STALE * settings.sweep + settings.pause

    with contextlib.ExitStack() as stack:
        stack.callback(watcher.stop)
        if how.listen is not None:
            stack.enter_context(_served(how.listen, settings, ready))
        if how.once:
            tell(watcher.sweep())
        else:
            if stop is None:
                stack.enter_context(_signals(ending))
            watcher.run(ending, tell)
    return watcher.last


@contextlib.contextmanager
def _served(
    listen: str, settings: Settings, ready: Callable[[], bool]
) -> Iterator[None]:
    try:
        from tracing_2pc.operations.watch_server import address, gate_for, serving
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"--listen needs {error.name}: pip install 'tracing-2pc[participant]'"
        ) from error
    host, port = address(listen)
    with serving(host, port, gate_for(host, settings.tokens_file), ready):
        yield


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT end the watch after the sweep, pauses cut short.

    The event is set by a thread: a handler runs in the middle of whatever the main
    thread does, and an event that it is about to wait for would block it for ever.
    A queue of this kind may be used in a handler.
    """
    told: queue.SimpleQueue[None] = queue.SimpleQueue()

    def obey() -> None:
        told.get()
        stop.set()

    obeying = threading.Thread(target=obey, name="tpc-signals", daemon=True)
    obeying.start()
    wanted = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(one, lambda *_: told.put(None)) for one in wanted]
    try:
        yield
    finally:
        for one, handler in zip(wanted, before, strict=True):
            signal.signal(one, handler)
        told.put(None)
        obeying.join()
