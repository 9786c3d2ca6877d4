"""Telemetry of a process: started when first used, flushed and stopped in bounded time.

If the program has set a tracer provider, that one is used as it is. Nothing here
raises, and nothing waits longer than it says, whatever the collector does.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from opentelemetry import trace

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.skywalking import active
from tracing_2pc.telemetry import providers
from tracing_2pc.telemetry.log_records import mark_log_records

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    from tracing_2pc.telemetry.exporting import CountedBatches, Otlp, TraceFile

EXIT_SECONDS: Final = 1.5
TRACE_FILE: Final = "TPC_TRACE_FILE"
SKYWALKING: Final = "skywalking"
_ENDPOINTS: Final = (
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
)
_ASKING: Final = (TRACE_FILE, *_ENDPOINTS, "OTEL_TRACES_EXPORTER")
_Asked: TypeAlias = tuple[str | None, ...]
Made = TypeVar("Made")
_INSTALL: Final = "; install tracing-2pc[otlp], or [skywalking]"
_SECRETS: Final = ("HEADERS", "TOKEN", "SECRET", "PASSWORD", "API_KEY")
_log: Final = logging.getLogger(__name__)
_endings: Final[list[Callable[[], threading.Event | None]]] = []


def at_exit(begin: Callable[[], threading.Event | None]) -> None:
    """Have a last call begun at exit, and waited for: `EXIT_SECONDS` for all of them.

    Args:
        begin: begins it, and returns what says that it is over; None for nothing to do.
    """
    if not _endings:
        atexit.register(_end)
    _endings.append(begin)


def _end() -> None:
    until = time.monotonic() + EXIT_SECONDS
    for over in [begin() for begin in _endings]:
        if over is not None:
            over.wait(max(0.0, until - time.monotonic()))


class Bounded:
    """Runs calls that may block on a daemon thread, so that a wait for them ends.

    The thread is there from the start: at exit Python no longer starts one.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], object], threading.Event]]
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._run, name="tpc-flush", daemon=True).start()

    def call(self, function: Callable[[], object], seconds: float) -> threading.Event:
        """Run it, wait at most so long, and return what says that it is over."""
        over = threading.Event()
        self._calls.put((function, over))
        over.wait(seconds)
        return over

    def _run(self) -> None:
        while True:
            function, over = self._calls.get()
            try:
                function()
            except Exception:  # noqa: BLE001 - tracing may lose spans, not a thread
                _log.debug("telemetry could not be flushed", exc_info=True)
            over.set()


class Flushing:
    """Exports in bounded time; where one ran out of it, only if another one pays.

    Args:
        otlp: counts what was sent; None where nothing goes over a network.

    Raises:
        RuntimeError: no thread can be started, for a limit or because this is the exit.
    """

    def __init__(self, otlp: Otlp | None) -> None:
        self._bounded = Bounded()
        self._otlp = otlp
        self._late: tuple[threading.Event, int] | None = None

    def last(self, function: Callable[[], object]) -> threading.Event:
        """Begin a last call, and return what says that it is over."""
        return self._bounded.call(function, 0)

    def flush(self, export: Callable[[], object], seconds: float) -> bool:
        """Export; True if that worked within the time given."""
        if self._is_late():
            return False
        failed, successes = self._counts()
        said: list[object] = []
        over = self._bounded.call(lambda: said.append(export()), seconds)
        in_time = over.is_set()
        self._late = None if in_time else (over, successes)
        return in_time and said != [False] and self._counts()[0] == failed

    def _is_late(self) -> bool:
        """Whether a flush ran out of time and nothing has shown since that it pays."""
        if self._late is None:
            return False
        over, successes = self._late
        if self._otlp is None:
            return not over.is_set()
        return self._counts()[1] == successes

    def _counts(self) -> tuple[int, int]:
        return (self._otlp.failed, self._otlp.successes) if self._otlp else (0, 0)


class _Process:
    """What this process has started, or could not start."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.otlp: tuple[CountedBatches, Otlp] | None = None
        self.file: TraceFile | None = None
        self.provider: TracerProvider | None = None
        self.failed: _Asked | None = None
        self._flushing: Flushing | None = None

    def forked(self) -> None:
        """Forget the threads: they stayed in the parent. The SDK restarts its own."""
        self.lock = threading.Lock()
        self.failed = None
        self._flushing = None

    def start(self, service: str) -> None:
        """Make everything, then use it: of a start that fails, nothing is left.

        A way out that cannot be made is said, and keeps no other one closed.
        """
        from tracing_2pc.telemetry import exporting
        from tracing_2pc.telemetry.parents_first import ParentsFirst

        exporters: list[SpanProcessor] = []
        file = None
        if path := os.environ.get(TRACE_FILE):
            written, file = exporting.to_file(path)
            exporters.append(written)
        failed: dict[str, Exception] = {}
        otlp = None
        if _wants_otlp() and (otlp := _tried("OTLP", exporting.to_otlp, failed)):
            exporters.append(otlp[0])
        if failed and not exporters and not _wants(SKYWALKING):
            raise failed["OTLP"]
        provider = exporting.provider(service)
        self._flushing = Flushing(otlp[1] if otlp else None)
        for exporter in exporters:
            provider.add_span_processor(ParentsFirst(exporter))
        if _wants(SKYWALKING):
            _tried("SkyWalking", lambda: _to_skywalking(provider), failed)
        last = None if exporters else failed.pop("SkyWalking", None)
        for name, error in failed.items():
            _warn(f"traces are not sent by {name}", error)
        if last is not None:
            raise last
        self.otlp, self.file, self.provider = otlp, file, provider
        at_exit(self.stop)
        trace.set_tracer_provider(provider)

    def stop(self) -> threading.Event | None:
        """Begin to send what is left."""
        if self.provider is None or (flushing := self.flushing()) is None:
            return None
        return flushing.last(self.provider.shutdown)

    def flushing(self) -> Flushing | None:
        """Return what flushes in this process; None if it can have no thread."""
        with self.lock:
            if self._flushing is None:
                try:
                    self._flushing = Flushing(self.otlp[1] if self.otlp else None)
                except RuntimeError:
                    _log.debug("telemetry could not be flushed", exc_info=True)
            return self._flushing


_process: Final = _Process()
os.register_at_fork(after_in_child=_process.forked)


def start(service: str) -> None:
    """Start tracing in this process, unless it runs or nobody asked for it.

    It is asked for by `OTEL_EXPORTER_OTLP_ENDPOINT` (or `..._TRACES_ENDPOINT`), by
    `OTEL_TRACES_EXPORTER` if it names `skywalking`, or by `TPC_TRACE_FILE`, a file to
    append spans to. Cheap when there is nothing to do, so call it where work begins, in
    the process that does it: never before a fork. While tracing is on, log records
    carry its ids: see `log_records`. A start that fails is not tried again, unless the
    process forks or is asked for something else.

    Args:
        service: name of the service, unless `OTEL_SERVICE_NAME` says another.
    """
    if not is_set() and _wanted():
        _start(service)
    if is_set():
        mark_log_records()


def _start(service: str) -> None:
    asked = _asked()
    if _process.failed == asked:
        return
    with _process.lock:
        if is_set() or _process.failed == asked:
            return
        try:
            _process.start(service)
        except Exception as error:  # noqa: BLE001 - no tracing is no reason not to work
            _process.failed = asked
            _warn("tracing did not start", error)


def _tried(
    name: str, make: Callable[[], Made], failed: dict[str, Exception]
) -> Made | None:
    """Make one of several ways out; note why where that fails."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - the others are good without it
        failed[name] = error
        return None


def _to_skywalking(provider: TracerProvider) -> object:
    from tracing_2pc.skywalking.start import start

    try:
        return start(provider=provider)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _warn(what: str, error: Exception) -> None:
    _log.warning("%s: %s%s", what, type(error).__name__, _cure(error))
    _log.debug("%s", what, exc_info=error)


def _cure(error: Exception) -> str:
    if isinstance(error, ImportError):
        return _INSTALL
    return f": {error}" if isinstance(error, ConfigurationError) else ""


def is_set() -> bool:
    """Whether this process has a tracer provider: ours, or what the program chose."""
    return not isinstance(providers.current(), trace.ProxyTracerProvider)


def flush(seconds: float = 0.5) -> bool:
    """Export what has ended; True if that worked within the time given.

    After a flush that ran out of time it returns False at once, until an export has
    succeeded: a dead collector costs a process one wait, not one per task.
    """
    export = getattr(providers.current(), "force_flush", None)
    if export is None:
        return True
    flushing = _process.flushing()
    return flushing is not None and flushing.flush(export, seconds)


def dropped() -> int:
    """Return how many spans this process has lost, by each way out.

    A queue was full, nobody answered, or the trace file could not be written.
    """
    skywalking = active.processor()
    lost = _process.otlp[0].dropped if _process.otlp else 0
    lost += _process.file.failed if _process.file else 0
    return lost + (skywalking.dropped if skywalking else 0)


def telemetry_settings() -> dict[str, str]:
    """Return this process's telemetry environment, without secrets.

    For the closure of a task, so that an executor on another host can `apply` it.
    """
    return {k: v for k, v in os.environ.items() if _travels(k, v)}


def apply(settings: Mapping[str, str]) -> None:
    """Take over another process's telemetry environment where this one has none.

    `OTEL_PROPAGATORS` is read when OpenTelemetry is imported: it must be in the
    executor's own environment to have an effect.
    """
    for name, value in settings.items():
        if _travels(name, value):
            os.environ.setdefault(name, value)


def _travels(name: str, value: str) -> bool:
    if name != TRACE_FILE and not name.startswith(("OTEL_", "TPC_SKYWALKING_")):
        return False
    return not any(word in name for word in _SECRETS) and "@" not in value


def _asked() -> _Asked:
    return tuple(os.environ.get(name) for name in _ASKING)


def disabled() -> bool:
    """Whether the environment turns OpenTelemetry off, traces and metrics."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _wanted() -> bool:
    if disabled():
        return False
    return bool(os.environ.get(TRACE_FILE)) or _wants_otlp() or _wants(SKYWALKING)


def _wants_otlp() -> bool:
    return _wants("otlp") and any(os.environ.get(name) for name in _ENDPOINTS)


def _wants(exporter: str) -> bool:
    exporters = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    return exporter in (name.strip() for name in exporters.split(","))
