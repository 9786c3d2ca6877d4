"""Dashboards, alerts and runbooks name what the registry names, and all of it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import promql_parser
import pytest
from support.metrics import EXPOSED, PARTS, metric_of

from bundled.files import (
    ALARMS,
    DASHBOARDS,
    GRAFANA,
    JAEGER,
    JAEGER_UI,
    RULES,
    RUNBOOK,
    alerts,
    expressions,
    meters,
    meters_of_participants,
    read,
    recorded,
    resolved,
    targets,
    widgets,
)
from tracing_2pc.cli.arguments import parser
from tracing_2pc.core import errors
from tracing_2pc.core.names import ATTRIBUTES, LABELS, METRICS, PHASES, SPANS

OF_PROMETHEUS = {"job", "instance"}
NAMED = {"application", "participant"}
OF_ALERTS = "ALERTS"
UP = "up"
OF_THE_COLLECTOR = "traces_span_metrics_duration_milliseconds_bucket"

WITHOUT_PANEL: dict[str, str] = {}
"""Metrics that no panel of Grafana shows, and why."""

WITHOUT_METER: dict[str, str] = {
    "tpc_oldest_diagnosed_age": "its alarms count minutes by themselves",
    "tpc_oldest_pending_age": "evaluated once a minute: no sooner than the diagnosis",
}
"""Metrics that SkyWalking is not told, and why."""


def selectors(node: Any) -> Iterator[Any]:
    """Yield every selector of an expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "vs", "param"):
        if (inner := getattr(node, name, None)) is not None:
            yield from selectors(inner)
    for argument in getattr(node, "args", None) or ():
        yield from selectors(argument)


def labels_of(metric: str) -> set[str]:
    """Return the labels that samples of a metric have at Prometheus."""
    if metric == OF_ALERTS:
        return {"alertname", "alertstate", "severity", *OF_PROMETHEUS, *NAMED}
    if metric == UP:
        return OF_PROMETHEUS
    if metric in recorded():
        return grouped_by(recorded()[metric])
    if metric == OF_THE_COLLECTOR:
        read_there = read(JAEGER)["connectors"]["spanmetrics"]["dimensions"]
        return {"le", *(one["name"].replace(".", "_") for one in read_there)}
    known = EXPOSED[metric_of(metric)]
    # A participant's gauges get its name where they are scraped.
    scraped = {"participant"} if known.kind == "gauge" else set()
    buckets = {"le"} if metric.endswith("_bucket") else set()
    return {*known.labels, *OF_PROMETHEUS, *scraped, *buckets}


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_an_expression_knows_its_metrics_and_labels(where, expression):
    """Metrics of the registry, labels that they have, values that those can say."""
    parsed = promql_parser.parse(expression)
    found = list(selectors(parsed))
    assert found, where
    every: set[str] = set()
    for selector in found:
        labels = labels_of(selector.name)
        every |= labels
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels, (where, matcher.name)
            assert_values(matcher.name, matcher.value)
    assert grouped_by(expression) <= every, where


def assert_values(label: str, value: str) -> None:
    """Assert that a label can have these values, as far as they are a closed set."""
    if label in LABELS and value not in (".*", ".+"):
        assert set(value.split("|")) <= set(LABELS[label]), (label, value)


def test_labels_that_are_shown_are_there():
    """What a legend or an annotation says is a label that is left after grouping."""
    for panel, target in targets():
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert shown <= grouped_by(target["expr"]), panel["title"]
    for rule in alerts():
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert shown <= grouped_by(rule["expr"]), rule["alert"]


def grouped_by(expression: str) -> set[str]:
    """Return the labels that an expression groups by."""
    lists = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
    return {name.strip() for one in lists for name in one.split(",")}


def test_every_metric_has_a_panel():
    """In Grafana: an instrument that nobody looks at is not worth its series."""
    shown = {
        metric_of(selector.name)
        for _, target in targets()
        for selector in selectors(promql_parser.parse(resolved(target["expr"])))
        if selector.name not in (OF_ALERTS, OF_THE_COLLECTOR)
    }
    assert shown == set(EXPOSED) - set(WITHOUT_PANEL)


def test_every_metric_is_told_to_skywalking():
    """From the registry's names and labels, and with a widget."""
    told = set()
    # SkyWalking's own receiver of OTLP leaves the unit to us, and takes no dots.
    received = {name.replace(".", "_"): metric for name, metric in METRICS.items()}
    for name, made_from in meters().items():
        metric = made_from.partition(".")[0]
        told.add(metric)
        for listed in re.findall(r"\[((?:'\w+'(?:, )?)+)\]", made_from):
            labels = set(re.findall(r"'(\w+)'", listed)) - {"job_name"}
            known = {*received[metric].labels, "le"}
            assert labels <= known, name
        for label, value in re.findall(
            r"tag(?:Equal|Match)\('(\w+)', '([^']+)'\)", made_from
        ):
            assert_values(label, value)
            assert label in received[metric].labels
    assert told == set(received) - set(WITHOUT_METER)
    shown = {
        name for one in widgets() for e in one["expressions"] for name in meters_in(e)
    }
    assert shown == set(meters())


def test_an_alarm_of_a_participant_counts_as_the_widget_of_the_service():
    """The same expression: only what it is a metric of differs."""
    for name, made_from in meters_of_participants().items():
        assert made_from == meters()[name.replace("_participant_", "_")]


def meters_in(expression: str) -> list[str]:
    """Return SkyWalking's metrics in an MQE expression."""
    return re.findall(r"\bmeter_\w+", expression)


def test_every_alarm_knows_its_metric():
    """SkyWalking's server does not start otherwise; ids that it ignores, it would."""
    of_participants = meters_of_participants()
    for rule in read(ALARMS)["rules"].values():
        assert meters_in(rule["expression"])
        assert set(meters_in(rule["expression"])) <= {*meters(), *of_participants}


def test_jaeger_searches_for_spans_and_attributes():
    """In the menu and in links; and what is counted of spans are closed sets."""
    menu = [item["url"] for one in read(JAEGER_UI)["menu"] for item in one["items"]]
    patterns = read(JAEGER_UI)["linkPatterns"]
    for url in (*menu, *(pattern["url"] for pattern in patterns)):
        asked = parse_qs(urlsplit(url.replace("#{", "{")).query)
        assert set(asked.get("operation", [])) <= set(SPANS)
        tags = json.loads(asked.get("tags", ["{}"])[0])
        assert set(tags) <= set(ATTRIBUTES)
        assert tags.get("tpc.phase", "commit") in PHASES
        assert hasattr(errors, tags.get("error.type", "TwoPhaseError"))
    for pattern in patterns:
        assert pattern["key"] in ATTRIBUTES
        for key in re.findall(r"#\{([^}]+)\}", pattern["url"] + pattern["text"]):
            assert key in ATTRIBUTES
    dimensions = read(JAEGER)["connectors"]["spanmetrics"]["dimensions"]
    assert {one["name"] for one in dimensions} <= set(ATTRIBUTES)


def traceql() -> list[str]:
    """Return the manual's queries for Tempo."""
    text = (DASHBOARDS.parent / "docs" / "tracing.md").read_text(encoding="utf-8")
    return re.findall(r"^- .+: `(\{.+)`$", text, re.M)


def test_tempo_is_asked_for_spans_and_attributes():
    """Names of spans, attributes, and values that those can have."""
    assert len(traceql()) >= 8
    used: set[str] = set()
    for query in traceql():
        words = re.sub(r'"[^"]*"', '""', query)
        assert words.count("{") == words.count("}") == 1, query
        assert words.count("(") == words.count(")"), query
        attributes = set(re.findall(r"\bspan\.([a-z_.]+)", words))
        assert attributes <= set(ATTRIBUTES), query
        names = set(re.findall(r'(?<!\.)\bname = "([^"]+)"', query))
        assert names <= set(SPANS), query
        values = re.findall(r'span\.tpc\.(\w+) = "([^"]+)"', query)
        for name, value in values:
            closed = {**LABELS, "decision": LABELS["outcome"]}
            closed["request"] = LABELS["phase"]
            assert value in closed.get(name, (value,)), query
        bare = re.sub(r"span\.[a-z_.]+", "", words)
        known = {"name", "kind", "duration", "status", "server", "error", "by", "true"}
        known |= {"select", "quantile_over_time", "s"}
        assert set(re.findall(r"[a-z_]+", bare)) <= known, query
        used |= attributes | names
    assert {"tpc.in_doubt.snapshot", "tpc.transaction.id", "tpc.cause"} <= used


KNOWN = {
    *METRICS,
    *EXPOSED,
    *ATTRIBUTES,
    *SPANS,
    *(name + part for name in EXPOSED for part in PARTS),
    *(name.replace(".", "_") for name in METRICS),
    *(name.replace(".", "_") for name in ATTRIBUTES),
}


@pytest.mark.parametrize(
    "path",
    [
        p
        for p in sorted(DASHBOARDS.rglob("*"))
        if p.suffix in {".yml", ".yaml", ".json", ".md"}
    ],
    ids=lambda path: path.name,
)
def test_no_other_name_is_spelt(path):
    """Comments and texts included; a name's end may be a group in a pattern."""
    words = set(
        re.findall(r"(?<![\w/#])(?:tpc_[a-z_]*|tpc\.[a-z_.]*)[a-z]", path.read_text())
    )
    ours = {
        *(f"tpc_{r.removeprefix('tpc_')}" for r in read(ALARMS)["rules"]),
        "tpc.yaml",
    }
    assert words - KNOWN - ours - {"tpc.toml"} == set()


def test_where_the_runbook_is_stands_in_one_place():
    """A whole address, which each alert's link begins with: change it there."""
    rules = read(RULES)["groups"][0]["rules"]
    (place,) = [rule for rule in rules if rule.get("record") == "tpc:runbook"]
    assert urlsplit(place["labels"]["url"]).scheme == "http"
    assert place["labels"]["url"] in RUNBOOK.read_text()
    assert RULES.read_text().count(place["labels"]["url"]) == 1


def test_every_command_of_the_runbook_can_be_called():
    """As it stands there, options included: nobody is sent astray at night."""
    text = RUNBOOK.read_text(encoding="utf-8")
    called = re.findall(r"^tracing-2pc (.+)$", text, re.M)
    for line in called:
        parser().parse_args(shlex.split(line, comments=True))
    named = {line.split()[0] for line in called}
    assert named == {
        "check",
        "retire",
        "ls",
        "explain",
        "show",
        "recover",
        "resolve",
        "watch",
        "outbox",
        "inbox",
    }
    assert set(re.findall(r"`tracing-2pc ([a-z]+)", text)) <= named | {
        "check",
        "console",
    }


def test_the_dashboard_is_where_grafana_looks():
    """Its file is the one that the runbook's table names."""
    assert GRAFANA.name in RUNBOOK.read_text()
