"""What a process has measured, in tests: from nothing, and held against the registry.

def test_it(measured):
    ...
    assert measured()['tpc_transactions_total{outcome="commit"}'] == 1
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tracing_2pc.core import names
from tracing_2pc.http import events
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.counted import Counted
from tracing_2pc.tracing.gauges import GAUGES as OF_RESOURCES

SAMPLE = re.compile(r"([a-z_]+)(?:\{(.*)\})? ([0-9.e+-]+)")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
PARTS = ("_bucket", "_sum", "_count")
"""What a histogram's samples are called, after its name."""

EXPOSED = {names.prometheus_name(name): m for name, m in names.METRICS.items()}
"""The registry, by the names that Prometheus gets."""

GAUGES = [names.METRICS[name] for name in OF_RESOURCES]
"""What a participant without a service measures has its name."""

Measured = Callable[[], dict[str, float]]


def samples(text: str) -> dict[str, float]:
    """Read samples: name and labels as they are written, without buckets."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    pairs = (line.rpartition(" ") for line in lines)
    return {what: float(value) for what, _, value in pairs if "_bucket{" not in what}


def assert_of_the_registry(text: str) -> None:
    """Assert that each metric says what it is before it says a number, once.

    Its labels are the registry's, and say what they can say there.
    """
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines)
    for line in lines:
        found = SAMPLE.fullmatch(line)
        assert found is not None, line
        name = metric_of(found[1])
        metric, labels = EXPOSED[name], dict(LABEL.findall(found[2] or ""))
        about = f"# HELP {name} {metric.meaning}\n# TYPE {name} {metric.kind}\n{name}"
        assert text.count(about) == 1, name
        if metric.kind == "histogram" and found[1].endswith("_bucket"):
            float(labels.pop("le"))
        without_service = metric in GAUGES and tuple(labels) == ("participant",)
        assert tuple(labels) == metric.labels or without_service, line
        for label, value in labels.items():
            named = label in ("participant", "application")
            assert named or value in names.LABELS[label], line


def metric_of(sample: str) -> str:
    """Return the metric that a sample belongs to."""
    stems = [sample.removesuffix(part) for part in PARTS if sample.endswith(part)]
    histograms = [s for s in stems if s in EXPOSED]
    return histograms[0] if histograms else sample


_AT_FIRST = dict(instruments._observed)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    """Measure from nothing; call it for the samples of now.

    At the end each of them must be as the registry has it.
    """
    monkeypatch.setattr(instruments, "_process", instruments._Measuring())
    # Without the gauges of a watcher that another test has made in this process.
    monkeypatch.setattr(instruments, "_observed", dict(_AT_FIRST))
    monkeypatch.setattr(events, "_counted", Counted())
    instruments.start("test", scraped=True)
    yield lambda: samples(instruments.exposition())
    assert_of_the_registry(instruments.exposition())
