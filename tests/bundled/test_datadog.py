"""Monitors as code: each says what one of the bundled alerts says, by our names.

No vendor and no Terraform is asked: the file is JSON, and queries are read here.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from bundled.files import DASHBOARDS, alerts, read
from bundled.test_names import anchors, assert_values
from tracing_2pc.core.names import METRICS

FILE = DASHBOARDS / "datadog" / "monitors.tf.json"
OF_RESOURCES = {"service"}
"""Tags that a vendor makes of our resource attributes."""

WITHOUT_MONITOR: dict[tuple[str, str], str] = {
    ("TpcCollectorDown", "warning"): "the vendor's own collector has its own monitor",
    ("TpcCommitsFailing", "critical"): "the other one comes first, and says as much",
    ("TpcNothingCommits", "critical"): "a query has no `unless`",
}
"""Alerts that no monitor stands for, and why."""

QUERY = re.compile(r"(?:max|min|sum|percentile)\(last_\d+m\):(.+) (>|<=) ([0-9.]+)")
METRIC = re.compile(
    r"(?P<how>max|sum|p99):(?P<name>[a-z_.]+)\{(?P<where>[^}]+)\} by \{(?P<by>[^}]+)\}"
)


def monitors() -> dict[str, dict[str, Any]]:
    """Return them by their names in Terraform."""
    return dict(read(FILE)["resource"]["datadog_monitor"])


def test_each_alert_has_its_monitor():
    """One for each severity, and none for an alert that is gone."""
    wanted = {(rule["alert"], rule["labels"]["severity"]) for rule in alerts()}
    there = {tuple(name.rsplit("_", 1)) for name in monitors()}
    assert there == wanted - WITHOUT_MONITOR.keys()
    assert WITHOUT_MONITOR.keys() <= wanted


@pytest.mark.parametrize("name", monitors())
def test_a_monitor_asks_for_metrics_of_the_registry(name):
    """With tags and values that they have, and by what its message says."""
    monitor = monitors()[name]
    alert, severity = name.rsplit("_", 1)
    assert monitor["name"] == f"{alert} ({severity})"
    assert f"severity:{severity}" in monitor["tags"]
    asked = QUERY.fullmatch(monitor["query"])
    assert asked is not None
    found = list(METRIC.finditer(asked[1]))
    assert found
    rest = METRIC.sub("", asked[1])
    assert re.fullmatch(r"(diff\(\)|(\.as_count\(\))?( / (\.as_count\(\))?)?)", rest)
    for one in found:
        metric = METRICS[one["name"]]
        tags = {*metric.labels, *OF_RESOURCES}
        assert set(one["by"].split(",")) <= tags
        assert (one["how"] == "p99") is (metric.kind == "histogram")
        assert (".as_count()" in rest) is (metric.kind == "counter")
        for label, value in conditions(one["where"]):
            assert label in tags
            assert_values(label, value)
        shown = set(re.findall(r"\{\{(\w+)\.name\}\}", monitor["message"]))
        assert shown <= set(one["by"].split(","))


def conditions(where: str) -> list[tuple[str, str]]:
    """Return the labels of a filter, each with the values that it names."""
    if where == "*":
        return []
    if listed := re.fullmatch(r"(\w+) IN \(([\w,]+)\)", where):
        return [(listed[1], listed[2].replace(",", "|"))]
    label, _, value = where.removeprefix("!").partition(":")
    return [(label, value)]


@pytest.mark.parametrize("name", monitors())
def test_a_monitor_means_what_its_alert_means(name):
    """The same metrics, the same threshold, and a link to the same section."""
    monitor = monitors()[name]
    alert, severity = name.rsplit("_", 1)
    rules = [
        rule["expr"]
        for rule in alerts()
        if (rule["alert"], rule["labels"]["severity"]) == (alert, severity)
    ]
    asked = QUERY.fullmatch(monitor["query"])
    assert asked is not None
    for one in METRIC.finditer(asked[1]):
        spelt = one["name"].replace(".", "_")
        assert any(spelt in rule.replace("tpc:", "tpc_") for rule in rules)
    _, comparison, threshold = asked.groups()
    if comparison == ">":  # else the time that a query cannot ask for
        numbers = {n for rule in rules for n in re.findall(r"> ([0-9.]+)", rule)}
        assert threshold in numbers
    assert monitor["monitor_thresholds"] == {"critical": float(threshold)}
    assert alert.lower() in anchors()
    assert f"${{var.runbook}}#{alert.lower()} ${{var.notify}}" in monitor["message"]
