"""Instruments by the registry's names, as text and through the SDK's own reader."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from support.metrics import assert_of_the_registry

import tracing_2pc
from tracing_2pc.core import names
from tracing_2pc.participant.metrics import Measured as Gauges
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.gauges import GAUGES
from tracing_2pc.tracing.sdk import flushing

PACKAGE = Path(tracing_2pc.__file__).parent
COMMITS = 'tpc_transactions_total{outcome="commit"}'
COMMIT = {"outcome": "commit"}


@pytest.fixture
def provider(measured, monkeypatch) -> Iterator[InMemoryMetricReader]:
    """A program that has set a meter provider of its own; its reader."""
    reader = InMemoryMetricReader()
    mine = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(api, "get_meter_provider", lambda: mine)
    yield reader
    mine.shutdown()


def read(reader: InMemoryMetricReader) -> dict[str, tuple[str, list[float]]]:
    """Return unit and values by name; of a histogram how many there were."""
    found = reader.get_metrics_data()
    return {
        metric.name: (
            metric.unit,
            [getattr(p, "count", getattr(p, "value", None)) for p in points],
        )
        for of_resource in (found.resource_metrics if found else ())
        for of_scope in of_resource.scope_metrics
        for metric in of_scope.metrics
        for points in [metric.data.data_points]
    }


def test_counters_and_histograms(measured):
    """As Prometheus reads them: each bound counts all that is below it."""
    instruments.add("tpc.transactions", COMMIT)
    instruments.add("tpc.transactions", COMMIT, 2)
    for seconds in (0.002, 0.2, 99):
        instruments.record("tpc.decision_log.write", None, seconds)
    lines = instruments.exposition().splitlines()
    assert f"{COMMITS} 3" in lines
    name = "tpc_decision_log_write_seconds"
    buckets = re.findall(rf'^{name}_bucket{{le="(.*)"}} (\d)$', "\n".join(lines), re.M)
    assert buckets[:2] == [("0.001", "0"), ("0.0025", "1")]
    assert buckets[-2:] == [("10", "2"), ("+Inf", "3")]
    assert measured()[f"{name}_count"] == 3
    assert measured()[f"{name}_sum"] == pytest.approx(99.202)


def test_a_label_is_escaped(measured):
    """Names of participants are checked elsewhere; here nothing breaks a line."""
    labels = {"participant": 'a"b\\c\nd', "result": "ok"}
    instruments.add("tpc.commit.attempts", labels)
    assert r'{participant="a\"b\\c\nd",result="ok"} 1' in instruments.exposition()


def test_what_is_not_in_the_registry_is_refused_at_once():
    """A wrong name, or a name of another kind: also where nothing is measured."""
    for wrong in (
        lambda: instruments.add("tpc.transaction", COMMIT),
        lambda: instruments.add("tpc.decision_log.write"),
        lambda: instruments.record("tpc.seconds", None, 1),
        lambda: instruments.record("tpc.transactions", COMMIT, 1),
        lambda: instruments.observe("tpc.backlog", list),
        lambda: instruments.observe("tpc.decision_log.write", list),
    ):
        with pytest.raises(KeyError):
            wrong()


def test_a_gauge_has_one_callback(measured):
    """The last one; where it raises there is no value, and the others are there."""
    instruments.observe("tpc.in_doubt.branches", lambda: [(1, {})])
    instruments.observe("tpc.in_doubt.branches", lambda: [(2, {})])
    instruments.observe(
        "tpc.unfinished_transactions",
        lambda: [(3, {"state": "active"}), (0, {"state": "committing"})],
    )
    found = measured()
    assert found["tpc_in_doubt_branches"] == 2
    assert found['tpc_unfinished_transactions{state="active"}'] == 3
    assert found['tpc_unfinished_transactions{state="committing"}'] == 0

    def fails() -> list[tuple[float, dict[str, str]]]:
        raise OSError("no database")

    instruments.observe("tpc.unfinished_transactions", fails)
    found = measured()
    assert not [name for name in found if name.startswith("tpc_unfinished")]
    assert found["tpc_in_doubt_branches"] == 2


@pytest.fixture(autouse=True)
def _callbacks(monkeypatch) -> None:
    monkeypatch.setattr(instruments, "_observed", dict(instruments._observed))


def test_a_programs_own_provider_is_told_everything(provider, measured, monkeypatch):
    """Under the registry's names and units; it exports, we only answer a scrape."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    instruments.observe("tpc.in_doubt.branches", lambda: [(2, {})])
    instruments.start("test")
    instruments.add("tpc.transactions", COMMIT)
    instruments.record("tpc.decision_log.write", None, 0.1)
    found = read(provider)
    assert found["tpc.transactions"] == ("{transaction}", [1])
    assert found["tpc.decision_log.write"] == ("s", [1])
    assert found["tpc.in_doubt.branches"] == ("{branch}", [2])
    assert instruments._process.exporting is None
    assert measured()[COMMITS] == 1


def test_a_provider_that_raises_is_not_noticed(measured, monkeypatch):
    def fails() -> api.MeterProvider:
        raise RuntimeError("does not load")

    monkeypatch.setattr(api, "get_meter_provider", fails)
    instruments.start("test")
    instruments.add("tpc.transactions", COMMIT)
    instruments.observe("tpc.in_doubt.branches", lambda: [(2, {})])
    assert measured()[COMMITS] == 1


def test_scrapes_at_the_same_time_are_whole(measured):
    """Each has every metric once."""
    texts: list[str] = []

    def scrape() -> None:
        for _ in range(50):
            instruments.add("tpc.transactions", COMMIT)
            texts.append(instruments.exposition())

    threads = [threading.Thread(target=scrape) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text in texts:
        assert_of_the_registry(text)
        assert COMMITS in text
    assert measured()[COMMITS] == 200


def test_ends_are_begun_together(monkeypatch):
    """One that never ends takes no time from another; one may have nothing to do."""
    begun: list[str] = []
    never, soon = threading.Event(), threading.Event()
    monkeypatch.setattr(flushing, "EXIT_SECONDS", 0.01)
    endings = [
        lambda: begun.append("never") or never,  # type: ignore[func-returns-value]
        lambda: None,
        lambda: begun.append("soon") or soon.set() or soon,  # type: ignore[func-returns-value]
    ]
    monkeypatch.setattr(flushing, "_endings", endings)
    flushing._end()
    assert (begun, soon.is_set()) == (["never", "soon"], True)


def test_a_scrape_reads_once_and_so_does_an_export(measured):
    """However many gauges there are; each sees what is there at that time."""
    reads: list[int] = []

    def gauges() -> dict[str, float]:
        reads.append(1)
        return dict.fromkeys(GAUGES, len(reads))

    mine = Gauges(gauges)
    assert "\ntpc_in_doubt_branches 1\n" in mine.exposition()
    assert len(reads) == 1
    for round_ in (2, 3):
        found = measured()
        assert {found[names.prometheus_name(name)] for name in GAUGES} == {round_}
    assert len(reads) == 3


def test_a_database_that_is_away_is_asked_once_in_a_round(measured):
    """An export goes without the gauges; a scrape is told why."""
    asked: list[int] = []

    def gauges() -> dict[str, float]:
        asked.append(1)
        raise OSError("no database")

    mine = Gauges(gauges)
    assert not set(measured()) & {names.prometheus_name(name) for name in GAUGES}
    assert len(asked) == 1
    with pytest.raises(OSError, match="no database"):
        mine.exposition()


def test_a_scrape_is_answered_by_its_own_participant(measured):
    """Two in one process: each shows what it holds."""
    first = Gauges(lambda: {"tpc.in_doubt.branches": 1})
    second = Gauges(lambda: {"tpc.in_doubt.branches": 2})
    assert "\ntpc_in_doubt_branches 1\n" in first.exposition()
    assert "\ntpc_in_doubt_branches 2\n" in second.exposition()
    assert measured()["tpc_in_doubt_branches"] == 2


# --- the registry --------------------------------------------------------------------


def told() -> Iterator[ast.Call]:
    """Return each call in the package that tells a metric something."""
    verbs = {"add", "record", "observe", "timed"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            function = node.func if isinstance(node, ast.Call) else None
            if isinstance(function, ast.Attribute) and function.attr in verbs:
                of = function.value
                if isinstance(of, ast.Name) and of.id == "instruments":
                    yield node  # type: ignore[misc]


def test_every_name_that_is_told_is_in_the_registry():
    """Where a name is a constant; of another one `KeyError` says so when it is used."""
    named = [c.args[0].value for c in told() if isinstance(c.args[0], ast.Constant)]
    assert len(named) >= 6
    assert set(named) <= names.METRICS.keys()


def test_every_name_of_the_registry_is_told_somewhere():
    """Nobody is promised a metric that is never there."""
    constants = {
        node.value
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "core" / "names.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert names.METRICS.keys() <= constants
    assert set(GAUGES) <= names.METRICS.keys()


def test_the_registry_is_as_opentelemetry_and_prometheus_want_it():
    """The unit and the kind are in Prometheus's name, and in OpenTelemetry's not.

    Labels are closed sets, or names of participants and applications.
    """
    named = {"participant", "application"}
    for name, metric in names.METRICS.items():
        assert re.fullmatch(r"tpc(\.[a-z]+(_[a-z]+)*)+", name), name
        assert not name.endswith(("total", "seconds")), name
        exposed = names.prometheus_name(name)
        assert (metric.unit == "s") == exposed.endswith("_seconds"), name
        assert (metric.kind == "counter") == exposed.endswith("_total"), name
        assert bool(metric.buckets) == (metric.kind == "histogram"), name
        assert list(metric.buckets) == sorted(set(metric.buckets)), name
        assert set(metric.labels) <= {*names.LABELS, *named}, name
    used = {label for metric in names.METRICS.values() for label in metric.labels}
    assert used == {*names.LABELS, *named}
