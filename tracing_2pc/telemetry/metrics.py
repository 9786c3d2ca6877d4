"""What a process measures, by the names of the registry: `add`, `record`, `observe`.

Two ways lead out: OTLP, and `exposition` for Prometheus. Each has a meter provider of
its own, and neither is the global one: instrumented libraries would add labels there
that strangers choose. A provider that the program has set is told everything as well,
and then the program exports, by OTLP we don't.

Without a start all this costs next to nothing. Executors' Python workers start
tracing and never this: a series for each of them would be noise, and what they do is
measured by the participants and the driver.

`add`, `record` and `observe` raise `KeyError` for what the registry does not hold, and
never anything else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from tracing_2pc.names import METRICS
from tracing_2pc.telemetry import lifecycle, propagation, providers

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider

Labels: TypeAlias = Mapping[str, str]
Observed: TypeAlias = Callable[[], Iterable[tuple[float, Labels]]]

_SCOPE: Final = "tracing_2pc"
_ENDPOINTS: Final = (
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
)
_PROTOCOLS: Final = (
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
)
_EXPORTER: Final = "OTEL_METRICS_EXPORTER"
_ASKING: Final = (_EXPORTER, *_ENDPOINTS, *_PROTOCOLS)
_EXTRAS: Final = {"http/protobuf": "otlp", "grpc": "skywalking"}
_log: Final = logging.getLogger(__name__)
_observed: Final[dict[str, Observed]] = {
    "tpc_propagation_rejected_total": lambda: [
        (n, {"header": name}) for name, n in propagation.rejected().items()
    ],
    "tpc_telemetry_dropped_total": lambda: [
        (lifecycle.dropped(), {"signal": "traces"})
    ],
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
        if (made := self._made.get(name)) is None:
            with self.lock:  # the SDK warns of a second one of the same name
                if (made := self._made.get(name)) is None:
                    made = self._made[name] = self._make(name)
        return made

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
                found = [Observation(*one) for one in _observed[name]()]
            except Exception:  # noqa: BLE001 - what cannot be read is not there
                _log.debug("not measured: %s", name, exc_info=True)
                return []
            return found

        return read


class _Process:
    """What this process has started, or could not start."""

    def __init__(self) -> None:
        self.program = _Instruments(lambda: providers.meters().get_meter(_SCOPE))
        self.forked()

    def forked(self) -> None:
        """Begin at nothing: what was counted before is the parent's to report."""
        self.lock = threading.Lock()
        self.program.lock = threading.Lock()
        self.ways: dict[str, _Instruments] = {}
        self.failed: dict[str, tuple[str | None, ...]] = {}
        self.text: Callable[[], str] = str
        self.exporting: tuple[MeterProvider, lifecycle.Bounded] | None = None

    def every(self, name: str) -> Iterator[Any]:
        """Return the instrument of each way out, and of the program's provider."""
        yield self.program.of(name)
        for instruments in tuple(self.ways.values()):
            yield instruments.of(name)

    def start(self, way: str, make: Callable[[], MeterProvider]) -> None:
        """Open a way out, once; one that cannot be opened is not tried again."""
        asked = tuple(os.environ.get(name) for name in _ASKING)
        with self.lock:
            if way in self.ways or self.failed.get(way) == asked:
                return
            try:
                provider = make()
                opened = _Instruments(lambda: provider.get_meter(_SCOPE), os.getpid())
                opened.observe()
                self.ways = {**self.ways, way: opened}
            except Exception as error:  # noqa: BLE001 - no reason not to work
                self.failed[way] = asked
                _log.warning("no metrics for %s: %s", way, _cure(way, error))
                _log.debug("no metrics for %s", way, exc_info=True)

    def to_prometheus(self, service: str) -> MeterProvider:
        from tracing_2pc.telemetry.metric_ways import to_prometheus

        provider, self.text = to_prometheus(service)
        return provider

    def to_otlp(self, service: str) -> MeterProvider:
        from tracing_2pc.telemetry.metric_ways import to_otlp

        bounded = lifecycle.Bounded()
        provider = to_otlp(service, _protocol())
        self.exporting = provider, bounded
        return provider

    def stop(self) -> threading.Event | None:
        """Begin to send what is left."""
        if self.exporting is None:
            return None
        provider, bounded = self.exporting
        return bounded.call(provider.shutdown, 0)


_process: Final = _Process()
os.register_at_fork(after_in_child=lambda: _process.forked())
lifecycle.at_exit(lambda: _process.stop())


def start(service: str, *, scraped: bool = False) -> None:
    """Start measuring in this process, where somebody will know of it.

    OTLP is asked for by `OTEL_METRICS_EXPORTER=otlp`, or, where that is not set, by
    `OTEL_EXPORTER_OTLP_ENDPOINT` (or `..._METRICS_ENDPOINT`). Cheap when there is
    nothing to do; call it where tracing starts, in the process that does the work, and
    again after a fork. Never raises; a start that fails is one line in the log.
    `OTEL_SDK_DISABLED=true` turns off both ways.

    Args:
        service: name of the service, unless `OTEL_SERVICE_NAME` says another.
        scraped: this process serves `exposition`.
    """
    ways = _process.ways
    if scraped and "Prometheus" not in ways:
        _process.start("Prometheus", lambda: _process.to_prometheus(service))
    if "OTLP" not in ways and _wants_otlp() and not providers.has_meters():
        _process.start("OTLP", lambda: _process.to_otlp(service))
    if providers.has_meters():
        with _quiet():
            _process.program.observe()


def add(name: str, labels: Labels | None = None, amount: int = 1) -> None:
    """Count."""
    _tell(name, "counter", lambda counter: counter.add(amount, dict(labels or {})))


def record(name: str, labels: Labels | None, seconds: float) -> None:
    """Note how long something took."""
    taken = max(0.0, seconds)
    _tell(name, "histogram", lambda times: times.record(taken, dict(labels or {})))


@contextlib.contextmanager
def timed(name: str, labels: Labels | None = None) -> Iterator[None]:
    """Note how long the block took, unless it raises."""
    since = time.monotonic()
    yield
    record(name, labels, time.monotonic() - since)


def observe(name: str, callback: Observed) -> None:
    """Have a gauge, or a count that is kept elsewhere, read when somebody wants it.

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
    """Return what this process measures as Prometheus reads it; empty unless started.

    Its content type is `prometheus.CONTENT_TYPE`.
    """
    try:
        return _process.text()
    except Exception:  # noqa: BLE001 - the SDK raised
        _log.debug("not measured", exc_info=True)
        return ""


def _tell(name: str, kind: str, tell: Callable[[Any], None]) -> None:
    if METRICS[name].kind != kind:
        raise KeyError(f"{name} is a {METRICS[name].kind}, not a {kind}")
    with _quiet():
        for instrument in _process.every(name):
            tell(instrument)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 - a foreign provider raised, or the SDK
        _log.debug("not measured", exc_info=True)


def _wants_otlp() -> bool:
    if lifecycle.disabled():
        return False
    if named := os.environ.get(_EXPORTER):
        return "otlp" in (name.strip() for name in named.split(","))
    return any(os.environ.get(name) for name in _ENDPOINTS)


def _protocol() -> str:
    named = (os.environ.get(name) for name in _PROTOCOLS)
    return next(filter(None, named), "http/protobuf")


def _cure(way: str, error: Exception) -> str:
    if isinstance(error, ImportError):
        extra = "participant" if way == "Prometheus" else _EXTRAS.get(_protocol())
        return f"install tracing-2pc[{extra}]"
    return str(error) if isinstance(error, ValueError) else type(error).__name__
