"""Monitors as code: each says what one of the bundled alerts says, by our names.

No vendor and no Terraform is asked: the file is JSON, and queries are read here.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from bundled.files import DASHBOARDS, read
from bundled.test_names import assert_values
from dashboards.write import ALERTS
from tracing_2pc.core.names import METRICS

FILE = DASHBOARDS / "datadog" / "monitors.tf.json"
OF_RESOURCES = {"service"}
"""Tags that a vendor makes of our resource attributes."""

QUERY = re.compile(r"(?:max|min|sum|percentile)\(last_\d+[mh]\):(.+) (>|<=) ([0-9.]+)")
METRIC = re.compile(
    r"(?P<how>max|sum|p99):(?P<name>[a-z_.]+)\{(?P<where>[^}]+)\} by \{(?P<by>[^}]+)\}"
)


def monitors() -> dict[str, dict[str, Any]]:
    """Return them by their names in Terraform."""
    return dict(read(FILE)["resource"]["datadog_monitor"])


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


WRITTEN_BY_HAND = [alert for alert in ALERTS if alert.datadog]


@pytest.mark.parametrize("alert", WRITTEN_BY_HAND, ids=lambda alert: alert.name)
def test_a_query_of_its_own_means_what_its_alert_means(alert):
    """The same metrics, and the same threshold; else the time it cannot ask for."""
    asked = QUERY.fullmatch(alert.datadog)
    assert asked is not None
    for one in METRIC.finditer(asked[1]):
        assert one["name"].replace(".", "_") in alert.promql
    if asked[2] == ">":
        assert asked[3] in re.findall(r"> ([0-9.]+)", alert.promql)
