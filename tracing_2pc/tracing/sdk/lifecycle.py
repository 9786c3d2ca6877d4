"""Tracing of a process: started when first used, flushed and stopped in bounded time.

If the program has set a tracer provider, that one is used as it is. Nothing here
raises, and nothing waits longer than its limit, whatever the collector does.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from opentelemetry import trace

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.forks import after_fork
from tracing_2pc.skywalking import in_use
from tracing_2pc.tracing import spans
from tracing_2pc.tracing.sdk import environment
from tracing_2pc.tracing.sdk.flushing import Flushing, at_exit
from tracing_2pc.tracing.sdk.log_records import mark_log_records

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    from tracing_2pc.tracing.sdk.exporting import CountedBatches, TraceFile

Made = TypeVar("Made")
logger = logging.getLogger(__name__)


class _Process:
    """The tracing that this process has started, or could not start."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.batches: list[CountedBatches] = []
        self.file: TraceFile | None = None
        self.failed: environment.Asked | None = None
        self.has_looked = False
        self.cannot_keep = False
        self.endings: list[Callable[[], object]] = []
        self._flushing: Flushing | None = None

    def reset(self) -> None:
        """Forget the threads: they stayed in the parent. The SDK restarts its own."""
        self.lock = threading.Lock()
        self.failed = None
        self._flushing = None

    def start(self, service: str) -> None:
        """Make everything, then use it: of a start that fails, nothing is left.

        An exporter that cannot be made is one line in the log; the others start.
        """
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor

        from tracing_2pc.tracing.sdk import exporting
        from tracing_2pc.tracing.sdk.parents_first import ParentsFirst

        failed: dict[str, Exception] = {}
        file = skywalking_processor = None
        batches: list[CountedBatches] = []
        if path := os.environ.get(environment.TRACE_FILE):
            file = exporting.TraceFile(path)
        wanted = environment.exporters("TRACES")
        for name in wanted:
            if name != "skywalking":
                make = functools.partial(exporting.in_batches, name)
                shown = "OTLP" if name == "otlp" else name
                batches += filter(None, [_tried(shown, make, failed)])
        wants_skywalking = "skywalking" in wanted
        if failed and not (file or batches or wants_skywalking):
            raise failed.popitem()[1]
        provider = exporting.provider(service)
        self._flushing = Flushing([batch.counted for batch in batches])
        if file:  # without a batch that a kill could lose
            provider.add_span_processor(ParentsFirst(SimpleSpanProcessor(file)))
        for batch in batches:
            provider.add_span_processor(ParentsFirst(batch))
        if wants_skywalking:
            skywalking_processor = _tried(
                "SkyWalking", lambda: _to_skywalking(provider), failed
            )
        has_way = file or batches or skywalking_processor
        last = None if has_way else failed.popitem()[1]
        for name, error in failed.items():
            _warn(f"traces are not sent by {name}", error)
        if last is not None:
            raise last
        self.keep_spans_of(provider)
        self.batches, self.file = batches, file
        self.end_with(provider.shutdown)
        trace.set_tracer_provider(provider)

    def keep(self, service: str) -> bool:
        """Keep our spans on this machine, where they are not exported.

        The program's own set-up is left alone: it may come later.
        """
        from tracing_2pc.tracing.sdk import exporting
        from tracing_2pc.tracing.sdk.kept import KeptProvider

        provider = exporting.provider(service, KeptProvider)
        if is_kept := self.keep_spans_of(provider):
            self._flushing = Flushing([])
            self.end_with(provider.shutdown)
            spans.use_until_one_is_set(provider)
        return is_kept

    def keep_spans_of(self, provider: TracerProvider) -> bool:
        """Keep them where that is not turned off; one line where it cannot be."""
        from tracing_2pc.tracing.sdk import exporting

        if (folder := environment.kept_in()) is None:
            return False
        try:
            provider.add_span_processor(exporting.to_ring(folder))
        except OSError as error:
            logger.warning("%s: %s", exporting.NOT_KEPT, error)
            return False
        return True

    def look(self, service: str) -> None:
        """Warn of variables without effect, and send log records if asked for."""
        with self.lock:
            if self.has_looked:
                return
            self.has_looked = True
        for name in environment.refused():
            logger.warning("%s has no effect: see the table in docs/settings.md", name)
        for reason in environment.defaulted():
            logger.warning("%s", reason)
        if not environment.wants("LOGS"):
            return
        try:
            from tracing_2pc.tracing.sdk import logs

            self.end_with(logs.start(service))
            self.flushing()  # its thread: at exit Python no longer starts one
            mark_log_records()
        except Exception as error:  # noqa: BLE001 - no logs are no reason not to work
            _warn("log records are not sent", error)

    def end_with(self, ending: Callable[[], object]) -> None:
        """Send at exit what is left."""
        if not self.endings:
            at_exit(self.stop)
        self.endings.append(ending)

    def stop(self) -> threading.Event | None:
        """Begin to send what is left."""
        if (flushing := self.flushing()) is None:
            return None
        over = [flushing.call(ending, 0) for ending in self.endings]
        return over[-1]

    def flushing(self) -> Flushing | None:
        """Return what flushes in this process; None if it can have no thread."""
        with self.lock:
            if self._flushing is None:
                try:
                    self._flushing = Flushing([b.counted for b in self.batches])
                except RuntimeError:
                    logger.debug("telemetry could not be flushed", exc_info=True)
            return self._flushing


_process: Final = _Process()
after_fork(_process.reset)


def start(service: str) -> None:
    """Start tracing in this process, if it is asked for and does not run.

    It is asked for by `OTEL_EXPORTER_OTLP_ENDPOINT` (or `..._TRACES_ENDPOINT`), by
    `OTEL_TRACES_EXPORTER`, or by `TPC_TRACE_FILE`, a file to append spans to. A request
    that cannot be met is one line in the log that names the variable. Call it where
    work begins, never before a fork: it is cheap when there is nothing to do. Log
    records then carry ids: see `log_records`. A start that fails is tried again after a
    fork, or when something else is asked for.

    Args:
        service: name of the service, unless `OTEL_SERVICE_NAME` is set.
    """
    if not _process.has_looked:
        _process.look(service)
    if not spans.is_set():
        if environment.wants_traces():
            _start(service)
        if not spans.is_recording() and environment.kept_in():
            _keep(service)
    if spans.is_set():
        mark_log_records()


def _start(service: str) -> None:
    asked = environment.asked()
    if _process.failed == asked:
        return
    with _process.lock:
        if spans.is_set() or _process.failed == asked:
            return
        try:
            _process.start(service)
        except Exception as error:  # noqa: BLE001 - no tracing is no reason not to work
            _process.failed = asked
            _warn("tracing did not start", error)


def _keep(service: str) -> None:
    with _process.lock:
        if spans.is_recording() or _process.cannot_keep:
            return
        try:
            _process.cannot_keep = not _process.keep(service)
        except Exception as error:  # without the SDK nothing is kept
            _process.cannot_keep = True
            if environment.wrong_limits():
                _warn("spans are not kept for `tracing-2pc trace`", error)
            logger.debug("spans are not kept", exc_info=True)


def _tried(
    name: str, make: Callable[[], Made], failed: dict[str, Exception]
) -> Made | None:
    """Make one of several ways out; note why where that fails."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - the others are good without it
        failed[name] = error
        return None


def _to_skywalking(provider: TracerProvider) -> SpanProcessor:
    from tracing_2pc.skywalking.start import start

    try:
        return start(provider=provider)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _warn(message: str, error: Exception) -> None:
    cure = ""
    if isinstance(error, ImportError):
        cure = f"; install tracing-2pc[{environment.extra_of('TRACES')}]"
    elif isinstance(error, ConfigurationError):
        cure = f": {error}"
    elif limits := environment.wrong_limits():
        cure = f": {limits[0]}"
    logger.warning("%s: %s%s", message, type(error).__name__, cure)
    logger.debug("%s", message, exc_info=error)


def problems() -> list[str]:
    """Return the variables of the environment without effect; start nothing."""
    lines = [f"{name} has no effect" for name in environment.refused()]
    lines += environment.defaulted() + environment.wrong_limits()
    for signal in ("TRACES", "METRICS", "LOGS"):
        for name in environment.exporters(signal):
            try:
                from tracing_2pc.tracing.sdk import exporting

                _ = name == "skywalking" or exporting.exporter(signal, name)
            except (ConfigurationError, ImportError) as error:
                lines.append(str(error))
            except ValueError:  # the SDK's, at its import
                if not environment.wrong_limits():
                    raise
    return list(dict.fromkeys(lines))


def flush(seconds: float = 0.5) -> bool:
    """Export what has ended; True if that worked within the time given.

    After a flush that ran out of time it returns False at once, until an export has
    succeeded: a dead collector costs a process one wait, not one per task.
    """
    export = getattr(spans.provider(), "force_flush", None)
    if export is None:
        return True
    flushing = _process.flushing()
    return flushing is not None and flushing.flush(export, seconds)


def dropped() -> int:
    """Return how many spans this process has lost, by each way out."""
    lost = sum(batch.dropped for batch in _process.batches)
    lost += _process.file.failed if _process.file else 0
    return lost + in_use.dropped()
