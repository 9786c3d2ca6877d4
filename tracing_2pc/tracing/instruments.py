"""A process's metrics, by the names of `core/names.py`: `add`, `record`, `observe`.

They raise `KeyError` for a name that the registry does not hold, and nothing else.

Two ways lead out: OTLP, and `exposition` for Prometheus. Each has a meter provider of
its own. Neither is the global one: there instrumented libraries would add labels whose
values clients choose. A provider that the program has set gets everything too; then the
program exports, and we send nothing by OTLP.

Executors' Python workers never start this: a series for each would be noise, and the
participants and the driver measure their work.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from opentelemetry import metrics as api
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.forks import after_fork
from tracing_2pc.core.names import METRICS
from tracing_2pc.tracing import propagation
from tracing_2pc.tracing.sdk import environment, lifecycle
from tracing_2pc.tracing.sdk.flushing import Bounded, at_exit

Labels: TypeAlias = Mapping[str, str]
Observed: TypeAlias = Callable[[], Iterable[tuple[float, Labels]]]

_SCOPE: Final = "tracing_2pc"
_NO_METERS: Final = api.NoOpMeterProvider()
logger = logging.getLogger(__name__)
_observed: Final[dict[str, Observed]] = {
    "tpc.propagation.rejected": lambda: [
        (n, {"header": name}) for name, n in propagation.rejected().items()
    ],
    "tpc.telemetry.dropped": lambda: [(lifecycle.dropped(), {"signal": "traces"})],
}


class _Instruments:
    """The registry's instruments on one meter, each made when it is first used."""

    def __init__(self, meter: Callable[[], Meter], process: int | None = None) -> None:
        self._meter = meter
        self._process = process
        self._made: dict[str, Any] = {}
        self.lock = threading.Lock()

    def of(self, name: str) -> Any:
        """Return an instrument."""
        if name not in self._made:
            with self.lock:  # the SDK warns of a second one of the same name
                if name not in self._made:
                    self._made[name] = self._make(name)
        return self._made[name]

    def observe(self) -> None:
        """Make those that are read by callbacks, as far as they are not there."""
        for name in tuple(_observed):
            self.of(name)

    def _make(self, name: str) -> Any:
        metric, meter = METRICS[name], self._meter()
        about = {"unit": metric.unit, "description": metric.meaning}
        if metric.kind == "histogram":
            buckets = {"explicit_bucket_boundaries_advisory": metric.buckets}
            return meter.create_histogram(name, **about, **buckets)  # type: ignore[arg-type]
        if metric.kind == "gauge":
            return meter.create_observable_gauge(name, [self._read(name)], **about)
        if name in _observed:
            return meter.create_observable_counter(name, [self._read(name)], **about)
        return meter.create_counter(name, **about)

    def _read(self, name: str) -> Callable[[CallbackOptions], list[Observation]]:
        def read(_: CallbackOptions) -> list[Observation]:
            if self._process not in (None, os.getpid()):
                return []  # a reader that came along in a fork
            try:
                return [Observation(*pair) for pair in _observed[name]()]
            except Exception:  # what cannot be read is not there
                logger.debug("not measured: %s", name, exc_info=True)
                return []

        return read


class _Measuring:
    """The metrics that this process has started, or could not start."""

    def __init__(self) -> None:
        self.program = _Instruments(lambda: program().get_meter(_SCOPE))
        self.reset()

    def reset(self) -> None:
        """Begin at zero: the parent process reports earlier counts."""
        self.lock = threading.Lock()
        self.program.lock = threading.Lock()
        self.ways: dict[str, _Instruments] = {}
        self.failed: dict[str, environment.Asked] = {}
        self.text: Callable[[], str] = str
        self.exporting: tuple[Any, Bounded] | None = None

    def start(self, way: str, make: Callable[[], MeterProvider]) -> None:
        """Open a way out, once; one that cannot be opened is not tried again."""
        asked = environment.asked()
        with self.lock:
            if way in self.ways or self.failed.get(way) == asked:
                return
            try:
                provider = make()
                opened = _Instruments(lambda: provider.get_meter(_SCOPE), os.getpid())
                opened.observe()
                self.ways = {**self.ways, way: opened}
            except Exception as error:  # no reason not to work
                self.failed[way] = asked
                logger.warning("no metrics for %s: %s", way, _cure(way, error))
                logger.debug("no metrics for %s", way, exc_info=True)

    def to_prometheus(self, service: str) -> MeterProvider:
        from tracing_2pc.tracing.sdk.meters import to_prometheus

        provider, self.text = to_prometheus(service)
        return provider

    def to_otlp(self, service: str) -> MeterProvider:
        from tracing_2pc.tracing.sdk.meters import to_exporters

        bounded = Bounded()
        provider = to_exporters(service)
        self.exporting = provider, bounded
        return provider

    def stop(self) -> threading.Event | None:
        """Begin to send what is left."""
        if self.exporting is None:
            return None
        provider, bounded = self.exporting
        return bounded.call(provider.shutdown, 0)


_process: Final = _Measuring()
after_fork(_process.reset)
at_exit(lambda: _process.stop())


def start(service: str, *, scraped: bool = False) -> None:
    """Start measuring in this process, as far as it is asked for.

    OTLP is asked for by `OTEL_METRICS_EXPORTER`, which may name others too, or, where
    that is not set, by `OTEL_EXPORTER_OTLP_ENDPOINT` (or `..._METRICS_ENDPOINT`). Call
    it where tracing starts, and again after a fork. Never raises; a start that fails is
    one line in the log. `OTEL_SDK_DISABLED=true` turns off both ways.

    Args:
        service: name of the service, unless `OTEL_SERVICE_NAME` is set.
        scraped: this process serves `exposition`.
    """
    ways = _process.ways
    if scraped and "Prometheus" not in ways:
        _process.start("Prometheus", lambda: _process.to_prometheus(service))
    if "OTLP" not in ways and environment.wants("METRICS") and not _is_set():
        _process.start("OTLP", lambda: _process.to_otlp(service))
    if _is_set():
        with _quiet():
            _process.program.observe()


def add(name: str, labels: Labels | None = None, amount: int = 1) -> None:
    """Count."""
    _update(name, "counter", lambda counter: counter.add(amount, dict(labels or {})))


def record(
    name: str, labels: Labels | None, seconds: float, context: Context | None = None
) -> None:
    """Record how long something took; its exemplar is of the context's span."""
    measured = max(0.0, seconds), dict(labels or {}), context
    _update(name, "histogram", lambda times: times.record(*measured))


@contextlib.contextmanager
def timed(name: str) -> Iterator[None]:
    """Record how long the block took, unless it raises."""
    since = time.monotonic()
    yield
    record(name, None, time.monotonic() - since)


def observe(name: str, callback: Observed) -> None:
    """Have a gauge, or a count that is kept elsewhere, read when it is exported.

    A name has one callback in a process: this one, from now on. It is called from
    several threads; where it raises there is no value.
    """
    if METRICS[name].kind == "histogram":
        raise KeyError(f"{name} is a histogram")
    _observed[name] = callback
    with _quiet():
        for instruments in _process.ways.values():
            instruments.of(name)


def exposition() -> str:
    """Return what is measured as Prometheus reads it; empty unless started."""
    try:
        return _process.text()
    except Exception:  # the SDK raised
        logger.debug("not measured", exc_info=True)
        return ""


def _update(name: str, kind: str, update: Callable[[Any], None]) -> None:
    if METRICS[name].kind != kind:
        raise KeyError(f"{name} is a {METRICS[name].kind}, not a {kind}")
    with _quiet():
        for instruments in (_process.program, *_process.ways.values()):
            update(instruments.of(name))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    try:
        yield
    except Exception:  # a foreign provider raised, or the SDK
        logger.debug("not measured", exc_info=True)


def program() -> MeterProvider:
    """Return the meter provider that the program has set, if any. Never raises."""
    try:
        return api.get_meter_provider()
    except Exception:  # it was named, and does not load
        logger.debug("the program's meter provider does not load", exc_info=True)
        return _NO_METERS


def _is_set() -> bool:
    """Whether the program has set a meter provider, or named one."""
    # The stand-in of the API, which passes on to one that is set later, is private.
    return type(program()).__name__ != "_ProxyMeterProvider"


def _cure(way: str, error: Exception) -> str:
    if not isinstance(error, ImportError):
        is_ours = isinstance(error, ConfigurationError)
        reasons = [str(error)] if is_ours else environment.wrong_limits()
        return reasons[0] if reasons else type(error).__name__
    extra = "participant" if way == "Prometheus" else environment.extra_of("METRICS")
    return f"install tracing-2pc[{extra}]"
