"""One stuck transaction, flagged by a real Prometheus, SkyWalking and Jaeger."""

from __future__ import annotations

import os
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pytest
from backends.demo_path import DemoPath, demo_path, run
from backends.jaeger import Jaeger, jaeger
from backends.oap import Oap, oap
from support.waiting import AT_LAST, until

from bundled.backends import (
    Prometheus,
    Webhook,
    alarms_to,
    prometheus,
    watcher,
    webhook,
)
from bundled.files import JAEGER_UI, TEMPLATE, panels, program, read, resolved, widgets
from participants.processes import Process, free_ports, stopping
from tracing_2pc.testing import Fault, FaultProxy

JAEGER, OAP = "TPC_JAEGER", "TPC_OAP"
STUCK = "flights.1.1"
STUCK_RULE = "tpc_transaction_stuck_rule"
SERVICES = ("tracing-2pc-watch", "ledger", "notifier", "flights")
pytestmark = [
    pytest.mark.dashboards,
    pytest.mark.skipif(
        not (os.environ.get(JAEGER) and os.environ.get(OAP)),
        reason="real backends are asked by `make test-dashboards`",
    ),
]

EMPTY_METERS = {
    "meter_tpc_prepared_slots_used": "no participant here is on PostgreSQL",
    "meter_tpc_prepared_slots_max": "no participant here is on PostgreSQL",
    "meter_tpc_aborts": "nothing was aborted",
    "meter_tpc_operator_actions": "nobody did anything by hand",
}
"""Metrics that SkyWalking has nothing of after this, and why."""

EMPTY_PANELS = {
    "Alerts that fire": "none does any more",
    "How long it has been wrong": "nothing is wrong any more",
    "Commits not acknowledged": "all are",
    "Prepared slots taken": "no participant here is on PostgreSQL",
    "Aborts, by cause": "nothing was aborted",
    "Decided by hand": "nobody did anything by hand",
}
"""Panels of Grafana that show nothing after this, and why."""


class Site(NamedTuple):
    """Everything that runs."""

    path: DemoPath
    watcher: Process
    prometheus: Prometheus
    jaeger: Jaeger
    oap: Oap
    heard: Webhook


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    """Two participants, their partner, the watcher, and four real backends."""
    folder = tmp_path_factory.mktemp("site")
    program("prometheus")
    (watched,) = free_ports(1)
    jars, binary = Path(os.environ[OAP]), Path(os.environ[JAEGER])
    with (
        pytest.MonkeyPatch.context() as patch,
        webhook() as heard,
        oap(jars, folder / "oap", alarms_to(heard, folder / "alarms")) as skywalking,
        jaeger(binary, folder / "jaeger", skywalking.grpc) as traces,
    ):
        patch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "2000")
        with demo_path(folder / "services", traces.endpoint) as path:
            watching = watcher(path, watched)
            with (
                stopping(watching),
                prometheus(folder, path, watched, traces, heard) as scraping,
            ):
                watching.start()
                yield Site(path, watching, scraping, traces, skywalking, heard)


def saved_search(label: str) -> dict[str, str]:
    """Return what an entry of Jaeger's menu asks for."""
    items = [item for one in read(JAEGER_UI)["menu"] for item in one["items"]]
    (url,) = [item["url"] for item in items if item["label"] == label]
    return dict(parse_qsl(urlsplit(url).query))


def tell(line: str) -> None:
    """Print it at once: the test takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def seconds_until(
    signs: dict[str, Callable[[], object]], since: float
) -> dict[str, float]:
    """Wait for each of several signs; return how long each took."""
    seen: dict[str, float] = {}

    def all_seen() -> bool:
        for name, sign in signs.items():
            if name not in seen and sign():
                seen[name] = time.monotonic() - since
                tell(f"  {name}: {seen[name]:.1f} s")
        return len(seen) == len(signs)

    until(all_seen)
    return seen


@pytest.fixture(scope="module")
def stuck(site) -> set[str]:
    """One batch lands; of the next, the notifier dies before it hears of the commit.

    Returns the ids of the traces in which Jaeger's saved search sees something stuck.
    """
    path = site.path
    until(site.prometheus.down, lambda down: not down)
    assert run(path.job(path.folder, "flights", 1)) == 0
    with FaultProxy(path.notifier.url) as proxy:
        proxy.plan("commit", Fault.UNAVAILABLE, times=8)
        job = path.job(path.folder, "flights", 2, notifier=proxy.url)
        with stopping(job):
            job.start()
            until(lambda: any(s.verb == "commit" for s in proxy.seen))
            path.notifier.kill()
            since = time.monotonic()
            tell("\nthe notifier is dead; seconds until somebody says so")
            asked = saved_search("Stuck within the last hour")
            seconds_until(
                {
                    "Prometheus, Alertmanager": lambda: site.heard.alerts(
                        "TpcTransactionStuck", "firing"
                    ),
                    "Jaeger, saved search": lambda: site.jaeger.found(**asked),
                    "SkyWalking, alarm": lambda: site.heard.alarms(STUCK_RULE),
                },
                since,
            )
            found = site.jaeger.found(**asked)
            path.notifier.start()
            since = time.monotonic()
            tell("the notifier is back; seconds until it is over")
            assert job.wait(AT_LAST) == 0, job.tail()
            seconds_until(
                {
                    "Prometheus, Alertmanager": lambda: site.heard.alerts(
                        "TpcTransactionStuck", "resolved"
                    )
                },
                since,
            )
    return found


def test_one_stuck_transaction_is_flagged_by_all_three(site, stuck):
    """Where it is, by name; in Jaeger in its own trace; and it is over when it is."""
    warnings = site.heard.alerts("TpcTransactionStuck", "firing")
    assert {alert["labels"]["participant"] for alert in warnings} == {"notifier"}
    assert {alert["labels"]["severity"] for alert in warnings} == {"warning"}
    resolved_ones = site.heard.alerts("TpcTransactionStuck", "resolved")
    assert resolved_ones[0]["labels"] == warnings[0]["labels"]
    alarm = site.heard.alarms(STUCK_RULE)[0]
    assert alarm["scope"] == "ENDPOINT"
    assert alarm["name"] == "notifier in tracing-2pc-watch"
    assert alarm["alarmMessage"].endswith(" at notifier in tracing-2pc-watch")
    (trace,) = (site.jaeger.trace(one) for one in stuck)
    said = [s["attributes"] for s in trace if s["name"] == "tpc.in_doubt.snapshot"]
    assert {one["tpc.diagnosis"] for one in said} == {"stuck"}
    assert {one["tpc.transaction.id"] for one in said} == {STUCK}


def test_failed_commits_are_found(site, stuck):
    """By the other saved search: the tries that found nobody. Its page has both."""
    with urllib.request.urlopen(site.jaeger.page, timeout=AT_LAST) as page:
        shown = page.read().decode()
    assert all(
        label in shown
        for label in ("Stuck within the last hour", "Failed commits of flights")
    )
    assert site.jaeger.found(**saved_search("Failed commits of flights")) == stuck


def test_nothing_else_was_called_for(site, stuck):
    """One transaction is stuck: no alert of another kind fires about transactions."""
    told = {
        (alert["labels"]["alertname"], alert["labels"].get("participant"))
        for call in site.heard.calls
        if call.path.startswith("/alerts")
        for alert in call.body["alerts"]
    }
    assert told == {("TpcTransactionStuck", "notifier")}


def test_skywalking_has_the_template_and_all_that_it_shows(site, stuck):
    """Every expression is answered: with data, but where nothing happened."""
    (template,) = read(TEMPLATE)
    assert site.oap.templates()[template["id"]] == template["configuration"]
    expressions = [e for one in widgets() for e in one["expressions"]]

    def empty() -> set[str]:
        return {
            e for e in expressions if not any(filled(site.oap, e, s) for s in SERVICES)
        }

    expected = {e for e in expressions if any(m in e for m in EMPTY_METERS)}
    assert settled(empty, expected) == expected
    for one in sorted(expected):
        tell(f"  empty in SkyWalking: {one}")


def settled(empty: Callable[[], set[str]], expected: set[str]) -> set[str]:
    """Return what is empty, once that is nothing but what must be."""
    until(empty, lambda found: found <= expected)
    return empty()


def test_paths_with_ids_are_one_endpoint(site):
    """Of a participant under SkyWalking's own agent, which names spans by paths."""
    for number in (1, 2):
        site.oap.post([segment("ledger", f"/transactions/orders.{number}.1")])
    known = until(lambda: site.oap.endpoints("ledger", "/transactions"))
    assert known == {"/transactions/{var}"}


def segment(service: str, path: str) -> dict[str, Any]:
    """Return a segment of one request, as SkyWalking's own agent sends it."""
    now, made = int(time.time() * 1000), uuid.uuid4().hex
    span = {
        "spanId": 0,
        "parentSpanId": -1,
        "startTime": now - 5,
        "endTime": now,
        "operationName": path,
        "spanType": "Entry",
        "spanLayer": "Http",
        "componentId": 7001,
    }
    return {
        "traceId": made,
        "traceSegmentId": f"{made}.1",
        "service": service,
        "serviceInstance": "one",
        "spans": [span],
    }


def filled(collector: Oap, expression: str, service: str) -> bool:
    """Say whether an expression has a value; it must be understood."""
    answer = collector.expression(expression, service)
    assert answer["type"] != "UNKNOWN", answer
    return any(
        value["value"] is not None
        for result in answer["results"]
        for value in result["values"]
    )


def test_every_panel_of_grafana_shows_something(site, stuck):
    """By its own queries, at a real Prometheus; but where nothing happened."""

    def empty() -> set[str]:
        return {
            panel["title"]
            for panel in panels()
            for target in panel["targets"]
            if not site.prometheus.query(resolved(target["expr"]))
        }

    assert settled(empty, set(EMPTY_PANELS)) == set(EMPTY_PANELS)


def test_a_dot_in_a_graph_is_a_trace(site, stuck):
    """An exemplar of the collector's histogram names a trace that Jaeger has."""
    metric = 'traces_span_metrics_duration_milliseconds_bucket{tpc_phase="commit"}'
    found = until(lambda: site.prometheus.exemplars(metric))
    assert site.jaeger.trace(found[0]["trace_id"])


def test_nothing_is_there_twice(site, stuck):
    """A gauge has one series for each participant; counters come by OTLP only."""
    backlog = site.prometheus.query("tpc_outbox_backlog")
    assert [one["metric"]["participant"] for one in backlog] == ["notifier"]
    prepared = site.prometheus.query(
        'sum by (participant) (tpc_phase_duration_seconds_count{phase="prepare"})'
    )
    counts = {one["metric"]["participant"]: float(one["value"][1]) for one in prepared}
    assert counts["ledger"] == 4  # two batches of two partitions
