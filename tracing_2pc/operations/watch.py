"""`tracing-2pc watch`: the watcher as a process, and what it measures."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from tracing_2pc.core.access import LoopbackGate
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.core.names import LABELS
from tracing_2pc.core.ports import Clock, SystemClock
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import TransactionState
from tracing_2pc.inspection.participants import LOG
from tracing_2pc.operations.watcher import Sweep, Watcher
from tracing_2pc.operations.wiring import open_participants, open_recovery
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.sdk import lifecycle

_SERVICE: Final = "tracing-2pc-watch"
_STALE: Final = 3
"""So many sweeps without the log, and the watcher is not ready."""

OTHER: Final = "other"
"""Stands for participants on record that the settings have no address of."""

Sample: TypeAlias = tuple[float, dict[str, str]]


def watch(
    log: OperatorLog,
    settings: Settings,
    report: Callable[[Sweep], object],
    *,
    recover: bool = False,
    once: bool = False,
    listen: str | None = None,
    stop: threading.Event | None = None,
) -> Sweep:
    """Sweep until SIGTERM or SIGINT, or `stop`; return the last sweep.

    Several watchers may run at once: each reports, one recovers. `recover` finishes
    what is decided and aborts what ran out of time; `once` ends it after one sweep;
    `listen` is `address:port` to serve `/metrics` and health at.

    Raises:
        ConfigurationError: an address that is not one, or that strangers could ask.
    """
    clock, ending = SystemClock(), stop or threading.Event()
    participants = open_participants(settings)
    watcher = Watcher(
        log,
        participants,
        settings,
        clock=clock,
        pause=ending.wait,
        recover=open_recovery(log, settings).sweep if recover else None,
        holder=f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(4)}",
    )
    observe_sweeps(watcher, tuple(participants), clock)
    lifecycle.start(_SERVICE)
    instruments.start(_SERVICE, scraped=listen is not None)

    def ready() -> bool:
        return watcher.blind <= _STALE * settings.sweep + settings.pause

    with contextlib.ExitStack() as stack:
        stack.callback(watcher.stop)
        if listen is not None:
            stack.enter_context(_served(listen, settings, ready))
        if once:
            report(watcher.sweep())
        else:
            if stop is None:
                stack.enter_context(_signals(ending))
            watcher.run(ending, report)
    return watcher.last


@contextlib.contextmanager
def _served(
    listen: str, settings: Settings, ready: Callable[[], bool]
) -> Iterator[None]:
    try:
        from tracing_2pc.http.metrics_server import serve_metrics
        from tracing_2pc.http.serving import open_gate, parse_address
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"--listen needs {error.name}: pip install 'tracing-2pc[participant]'"
        ) from error
    host, port = parse_address(listen)
    gate = open_gate(host, settings.tokens_file, without=LoopbackGate())
    with serve_metrics(host, port, gate, ready):
        yield


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT end the watch after the sweep, pauses cut short.

    The event is set by a thread: a handler runs in the middle of whatever the main
    thread does, and an event that it is about to wait for would block it for ever.
    A queue of this kind may be used in a handler.
    """
    signals: queue.SimpleQueue[None] = queue.SimpleQueue()

    def obey() -> None:
        signals.get()
        stop.set()

    obeying = threading.Thread(target=obey, name="tpc-signals", daemon=True)
    obeying.start()
    before = {
        number: signal.signal(number, lambda *_: signals.put(None))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signals.put(None)
        obeying.join()


def observe_sweeps(watcher: Watcher, participants: Sequence[str], clock: Clock) -> None:
    """Have the gauges read from the watcher's last sweep; a scrape asks no participant.

    Every combination of labels is there from the start; `participants` are the names
    that labels may have. Ages grow between two sweeps.
    """

    def unfinished() -> Iterator[Sample]:
        for state in LABELS["state"]:
            yield len(watcher.last.started.get(state, ())), {"state": state}

    def oldest() -> Iterator[Sample]:
        now = clock.now()
        for state in LABELS["state"]:
            since = min(watcher.last.started.get(state, ()), default=now)
            yield max(0.0, now - since), {"state": state}

    def diagnoses() -> Iterator[Sample]:
        counts = Counter(
            (str(diagnosis.diagnosis), name if name in participants else OTHER)
            for diagnosis in watcher.last.diagnoses
            for name in diagnosis.participants
        )
        for kind in LABELS["diagnosis"]:
            for name in (*participants, OTHER):
                yield counts[kind, name], {"diagnosis": kind, "participant": name}

    def quarantined() -> Iterator[Sample]:
        yield len(watcher.last.started.get(TransactionState.QUARANTINED, ())), {}

    def last_success() -> Iterator[Sample]:
        for name in (LOG, *participants):
            yield watcher.succeeded.get(name, 0.0), {"participant": name}

    instruments.observe("tpc.unfinished_transactions", unfinished)
    instruments.observe("tpc.oldest_unfinished_age", oldest)
    instruments.observe("tpc.diagnoses", diagnoses)
    instruments.observe("tpc.quarantined_transactions", quarantined)
    instruments.observe("tpc.watcher.last_success_timestamp", last_success)
