"""`tracing-2pc watch`: the watcher as a process, and its metrics."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, TypeAlias

from tracing_2pc.core.access import LoopbackGate
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.core.names import LABELS, METRICS
from tracing_2pc.core.ports import Clock, SystemClock
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import TransactionState
from tracing_2pc.inspection.diagnosis import Finding
from tracing_2pc.inspection.participants import LOG
from tracing_2pc.operations.watcher import Sweep, Watcher
from tracing_2pc.operations.wiring import open_participants, open_recovery
from tracing_2pc.sinks.sending import send_waiting, start_sending
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.gauges import observe_gauges
from tracing_2pc.tracing.sdk import lifecycle

_SERVICE: Final = "tracing-2pc-watch"
_STALE: Final = 3
"""So many sweeps without the log, and the watcher is not ready."""

OTHER: Final = "other"
"""Stands for participants on record that the settings have no address of, and for
applications beyond the first `APPLICATIONS`."""

APPLICATIONS: Final = 20
"""Applications that a metric names at once: series of findings are bounded."""

Sample: TypeAlias = tuple[float, dict[str, str]]
Values: TypeAlias = tuple[str, ...]
"""Of a metric's labels, in the order of the registry."""


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

    def tell(sweep: Sweep) -> None:
        if recover:  # an outbox that could not be reached before may be there now
            start_sending(participants)
        report(sweep)

    def ready() -> bool:
        return watcher.blind <= _STALE * settings.sweep + settings.pause

    with contextlib.ExitStack() as stack:
        stack.callback(watcher.stop)
        if listen is not None:
            stack.enter_context(_served(listen, settings, ready))
        if once:
            report(watcher.sweep())
            if recover:
                send_waiting(participants)
        else:
            if stop is None:
                stack.enter_context(_signals(ending))
            watcher.run(ending, tell)
    return watcher.last


@contextlib.contextmanager
def _served(
    listen: str, settings: Settings, ready: Callable[[], bool]
) -> Iterator[None]:
    from tracing_2pc.http.metrics_server import serve_metrics
    from tracing_2pc.wire.serving import open_gate, parse_address

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

    A kind without a finding is 0 from the start, without an application; `participants`
    are the names that labels may have. Ages grow between two sweeps, but for those of
    commits that are not acknowledged: a healthy one may be by now.
    """

    def label(name: str) -> str:
        return name if name in participants else OTHER

    def found() -> Iterator[tuple[Values, Finding]]:
        last = watcher.last.diagnoses
        labels = _label_applications(d.transaction.application for d in last)
        for finding in last:
            application = labels[finding.transaction.application]
            for name in finding.participants:
                yield (application, str(finding.kind), label(name)), finding

    def unfinished() -> Iterator[Sample]:
        for state in LABELS["state"]:
            yield len(list(started(state))), {"state": state}

    def oldest() -> Iterator[Sample]:
        now = clock.now()
        for state in LABELS["state"]:
            since = min(started(state), default=now)
            yield max(0.0, now - since), {"state": state}

    def started(state: str) -> Iterator[float]:
        for (_, in_state), times in watcher.last.started.items():
            yield from times if in_state == state else ()

    def diagnoses() -> Iterator[Sample]:
        counts = Counter(key for key, _ in found())
        wrong = {key[1:] for key in counts}
        well = set(product(LABELS["diagnosis"], (*participants, OTHER))) - wrong
        counts.update({("", *key): 0 for key in well})
        return _samples("tpc.diagnoses", counts)

    def diagnosed() -> Iterator[Sample]:
        now = clock.now()
        ages = ((key, max(d.age, now - d.since)) for key, d in found())
        return _samples("tpc.oldest_diagnosed_age", _greatest(ages))

    def pending() -> Iterator[Sample]:
        last = watcher.last.pending
        labels = _label_applications(application for application, _ in last)
        ages = (((labels[a], label(name)), age) for (a, name), age in last.items())
        return _samples("tpc.oldest_pending_age", _greatest(ages))

    def quarantined() -> Iterator[Sample]:
        last = {
            application: len(times)
            for (application, state), times in watcher.last.started.items()
            if state == TransactionState.QUARANTINED
        }
        counts = Counter[Values]()
        for application, label in _label_applications(last).items():
            counts[label,] += last[application]
        return _samples("tpc.quarantined_transactions", counts or {("",): 0})

    def down() -> Iterator[Sample]:
        last, now = watcher.last.down, clock.now()
        labels = _label_applications(sorted(last, key=lambda name: not last[name]))
        ages = (
            ((labels[name],), 0.0 if since is None else max(0.0, now - since))
            for name, since in last.items()
        )
        return _samples("tpc.job.down_age", _greatest(ages))

    def last_success() -> Iterator[Sample]:
        for name in (LOG, *participants):
            yield watcher.succeeded.get(name, 0.0), {"participant": name}

    instruments.observe("tpc.unfinished_transactions", unfinished)
    instruments.observe("tpc.oldest_unfinished_age", oldest)
    instruments.observe("tpc.diagnoses", diagnoses)
    instruments.observe("tpc.oldest_diagnosed_age", diagnosed)
    instruments.observe("tpc.oldest_pending_age", pending)
    instruments.observe("tpc.quarantined_transactions", quarantined)
    instruments.observe("tpc.job.down_age", down)
    instruments.observe("tpc.watcher.last_success_timestamp", last_success)
    observe_gauges(
        lambda: [
            (gauges, {"participant": name})
            for name, gauges in watcher.last.gauges.items()
        ]
    )


def _label_applications(names: Iterable[str]) -> dict[str, str]:
    """Return the label of each: its name, or `OTHER` after the first `APPLICATIONS`."""
    distinct = dict.fromkeys(names)
    return {n: n if i < APPLICATIONS else OTHER for i, n in enumerate(distinct)}


def _greatest(pairs: Iterable[tuple[Values, float]]) -> dict[Values, float]:
    greatest: dict[Values, float] = {}
    for key, value in pairs:
        greatest[key] = max(value, greatest.get(key, 0.0))
    return greatest


def _samples(name: str, values: Mapping[Values, float]) -> Iterator[Sample]:
    for key, value in values.items():
        yield value, dict(zip(METRICS[name].labels, key, strict=True))
