"""Instruments by the registry's names, as text and through the SDK's own reader."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from metrics_support import Measured, assert_of_the_registry, measured  # noqa: F401
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import tracing_2pc
from tracing_2pc import names
from tracing_2pc.participant.measured import GAUGES
from tracing_2pc.participant.measured import Measured as Gauges
from tracing_2pc.telemetry import lifecycle, metrics

PACKAGE = Path(tracing_2pc.__file__).parent
COMMITS = 'tpc_transactions_total{outcome="commit"}'
COMMIT = {"outcome": "commit"}
OF_THE_WATCHER = {
    "tpc_unfinished_transactions",
    "tpc_oldest_unfinished_age_seconds",
    "tpc_diagnoses",
    "tpc_quarantined_transactions",
    "tpc_watcher_last_success_timestamp_seconds",
    "tpc_operator_actions_total",
}
"""In the registry before there is a watcher, which feeds them."""


@pytest.fixture
def provider(
    measured: Measured,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[InMemoryMetricReader]:
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


def test_counters_and_histograms(measured: Measured) -> None:  # noqa: F811
    """As Prometheus reads them: each bound counts all that is below it."""
    metrics.add("tpc_transactions_total", COMMIT)
    metrics.add("tpc_transactions_total", COMMIT, 2)
    for seconds in (0.002, 0.2, 99):
        metrics.record("tpc_decision_log_write_seconds", None, seconds)
    lines = metrics.exposition().splitlines()
    assert f"{COMMITS} 3" in lines
    name = "tpc_decision_log_write_seconds"
    buckets = [line for line in lines if line.startswith(f"{name}_bucket")]
    assert buckets[0] == f'{name}_bucket{{le="0.001"}} 0'
    assert buckets[1] == f'{name}_bucket{{le="0.0025"}} 1'
    assert buckets[-2:] == [
        f'{name}_bucket{{le="10"}} 2',
        f'{name}_bucket{{le="+Inf"}} 3',
    ]
    assert measured()[f"{name}_count"] == 3
    assert measured()[f"{name}_sum"] == pytest.approx(99.202)


def test_a_label_is_escaped(measured: Measured) -> None:  # noqa: F811
    """Names of participants are checked elsewhere; here nothing breaks a line."""
    labels = {"participant": 'a"b\\c\nd', "result": "ok"}
    metrics.add("tpc_commit_attempts_total", labels)
    assert r'{participant="a\"b\\c\nd",result="ok"} 1' in metrics.exposition()


def test_what_is_not_in_the_registry_is_refused_at_once() -> None:
    """A wrong name, or a name of another kind: also where nothing is measured."""
    for wrong in (
        lambda: metrics.add("tpc_transaction_total", COMMIT),
        lambda: metrics.add("tpc_decision_log_write_seconds"),
        lambda: metrics.record("tpc_seconds", None, 1),
        lambda: metrics.record("tpc_transactions_total", COMMIT, 1),
        lambda: metrics.observe("tpc_backlog", list),
        lambda: metrics.observe("tpc_decision_log_write_seconds", list),
    ):
        with pytest.raises(KeyError):
            wrong()


def test_a_gauge_has_one_callback(measured: Measured) -> None:  # noqa: F811
    """The last one; where it raises there is no value, and the others are there."""
    metrics.observe("tpc_quarantined_transactions", lambda: [(1, {})])
    metrics.observe("tpc_quarantined_transactions", lambda: [(2, {})])
    metrics.observe(
        "tpc_unfinished_transactions",
        lambda: [(3, {"state": "active"}), (0, {"state": "committing"})],
    )
    found = measured()
    assert found["tpc_quarantined_transactions"] == 2
    assert found['tpc_unfinished_transactions{state="active"}'] == 3
    assert found['tpc_unfinished_transactions{state="committing"}'] == 0

    def fails() -> list[tuple[float, dict[str, str]]]:
        raise OSError("no database")

    metrics.observe("tpc_unfinished_transactions", fails)
    found = measured()
    assert not [name for name in found if name.startswith("tpc_unfinished")]
    assert found["tpc_quarantined_transactions"] == 2


@pytest.fixture(autouse=True)
def _callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_observed", dict(metrics._observed))


def test_a_programs_own_provider_is_told_everything(
    provider: InMemoryMetricReader,
    measured: Measured,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under the registry's names and units; it exports, we only answer a scrape."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    metrics.observe("tpc_quarantined_transactions", lambda: [(2, {})])
    metrics.start("test")
    metrics.add("tpc_transactions_total", COMMIT)
    metrics.record("tpc_decision_log_write_seconds", None, 0.1)
    found = read(provider)
    assert found["tpc_transactions_total"] == ("{transaction}", [1])
    assert found["tpc_decision_log_write_seconds"] == ("s", [1])
    assert found["tpc_quarantined_transactions"] == ("{transaction}", [2])
    assert metrics._process.exporting is None
    assert measured()[COMMITS] == 1


def test_a_provider_that_raises_is_not_noticed(
    measured: Measured,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> api.MeterProvider:
        raise RuntimeError("does not load")

    monkeypatch.setattr(api, "get_meter_provider", fails)
    metrics.start("test")
    metrics.add("tpc_transactions_total", COMMIT)
    metrics.observe("tpc_quarantined_transactions", lambda: [(2, {})])
    assert measured()[COMMITS] == 1


def test_scrapes_at_the_same_time_are_whole(measured: Measured) -> None:  # noqa: F811
    """Each has every metric once."""
    texts: list[str] = []

    def scrape() -> None:
        for _ in range(50):
            metrics.add("tpc_transactions_total", COMMIT)
            texts.append(metrics.exposition())

    threads = [threading.Thread(target=scrape) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text in texts:
        assert_of_the_registry(text)
        assert COMMITS in text
    assert measured()[COMMITS] == 200


def test_ends_are_begun_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that never ends takes no time from another; one may have nothing to do."""
    begun: list[str] = []
    ended = threading.Event()

    def never() -> threading.Event:
        begun.append("never")
        return threading.Event()

    def soon() -> threading.Event:
        begun.append("soon")
        ended.set()
        return ended

    monkeypatch.setattr(lifecycle, "EXIT_SECONDS", 0.01)
    monkeypatch.setattr(lifecycle, "_endings", [never, lambda: None, soon])
    lifecycle._end()
    assert (begun, ended.is_set()) == (["never", "soon"], True)


def test_a_scrape_reads_once_and_so_does_an_export(
    measured: Measured,  # noqa: F811
) -> None:
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
        assert {found[name] for name in GAUGES} == {round_}
    assert len(reads) == 3


def test_a_database_that_is_away_is_asked_once_in_a_round(
    measured: Measured,  # noqa: F811
) -> None:
    """An export goes without the gauges; a scrape is told why."""
    asked: list[int] = []

    def gauges() -> dict[str, float]:
        asked.append(1)
        raise OSError("no database")

    mine = Gauges(gauges)
    assert not set(measured()) & set(GAUGES)
    assert len(asked) == 1
    with pytest.raises(OSError, match="no database"):
        mine.exposition()


def test_a_scrape_is_answered_by_its_own_participant(
    measured: Measured,  # noqa: F811
) -> None:
    """Two in one process: each shows what it holds."""
    first = Gauges(lambda: {"tpc_in_doubt_branches": 1})
    second = Gauges(lambda: {"tpc_in_doubt_branches": 2})
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
                if isinstance(of, ast.Name) and of.id == "metrics":
                    yield node  # type: ignore[misc]


def test_every_name_that_is_told_is_in_the_registry() -> None:
    """Where a name is a constant; of another one `KeyError` says so when it is used."""
    named = [c.args[0].value for c in told() if isinstance(c.args[0], ast.Constant)]
    assert len(named) >= 6
    assert set(named) <= names.METRICS.keys()


def test_every_name_of_the_registry_is_told_somewhere() -> None:
    """Nobody is promised a metric that is never there."""
    constants = {
        node.value
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "names.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert names.METRICS.keys() - constants <= OF_THE_WATCHER
    assert set(GAUGES) <= names.METRICS.keys()


def test_the_registry_is_as_prometheus_wants_it() -> None:
    """Seconds are called so; labels are closed sets, or names of participants."""
    for name, metric in names.METRICS.items():
        assert (metric.unit == "s") == name.endswith("_seconds"), name
        assert bool(metric.buckets) == (metric.kind == "histogram"), name
        assert list(metric.buckets) == sorted(set(metric.buckets)), name
        assert set(metric.labels) <= {*names.LABELS, "participant"}, name
    used = {label for metric in names.METRICS.values() for label in metric.labels}
    assert used == {*names.LABELS, "participant"}
