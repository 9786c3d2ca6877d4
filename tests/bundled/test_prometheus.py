"""Alerts fire, stay quiet and end as promised, say Prometheus's own programs."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.metrics import EXPOSED
from support.texts import texts
from support.waiting import AT_LAST

from bundled.files import (
    ALERTMANAGER,
    PROMETHEUS,
    RULE_TESTS,
    RULES,
    alerts,
    checked,
    copied,
    program,
    read,
    recorded,
    seconds,
)
from dashboards.write import ALERTS
from tracing_2pc.core import names
from tracing_2pc.core.names import LABELS, prometheus_name
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.kind import Subject
from tracing_2pc.inspection.kinds import KINDS
from tracing_2pc.tracing.gauges import GAUGES

TEXTS = texts("bundled")
RULE_OF = [f"{rule['alert']}-{rule['labels']['severity']}" for rule in alerts()]


def test_prometheus_takes_the_configuration(tmp_path):
    """With a token in its place, and the rules beside it."""
    said = checked("promtool", "check", "config", copied(tmp_path / "prometheus"))
    count = len(alerts()) + len(recorded())
    assert TEXTS["promtool found rules"].format(count=count) in said


def test_each_alert_fires_stays_quiet_and_ends():
    """Prometheus's own test of rules, which anybody can run without us."""
    assert "SUCCESS" in checked("promtool", "test", "rules", RULE_TESTS)


BOUNDED = [a for a in ALERTS if a.metric and a.by == ("participant",) and not a.of]


@pytest.mark.parametrize("alert", BOUNDED, ids=lambda a: f"{a.name}-{a.severity}")
def test_a_gauge_above_its_bound_is_alerted_on(alert, tmp_path):
    """At the bound nothing fires; above it, after its time; and it ends."""
    metric, bound = prometheus_name(alert.metric), alert.above
    values = f"{bound}x4 {bound + 1}x14 {bound}x10"
    series = {"series": f'{metric}{{participant="one"}}', "values": values}
    which = f'alertname="{alert.name}", severity="{alert.severity}"'
    fires = f'count by (participant) (ALERTS{{{which}, alertstate="firing"}})'
    one = [{"labels": '{participant="one"}', "value": 1}]
    begins = 300 + alert.lasts
    times = {240: [], begins - 15: [], begins + 15: one, 1140: one, 1300: []}
    expected = [
        {"expr": fires, "eval_time": f"{at:g}s", "exp_samples": samples}
        for at, samples in times.items()
    ]
    assert_rules([series], expected, tmp_path / "test.yml")


def assert_rules(
    series: list[dict[str, str]], expected: list[dict[str, Any]], file: Path
) -> None:
    """Have Prometheus say what fires, of series with a sample a minute."""
    test = {"interval": "1m", "input_series": series, "promql_expr_test": expected}
    document = {"rule_files": [str(RULES)], "evaluation_interval": "15s"}
    file.write_text(yaml.safe_dump({**document, "tests": [test]}))
    assert "SUCCESS" in checked("promtool", "test", "rules", file)


def test_what_a_watcher_explains_is_not_told_again(tmp_path):
    """In doubt for long is an alert where no diagnosis names that participant."""
    series = [
        {"series": f'{name}{{job="w", participant="{participant}"{more}}}', "values": v}
        for name, participant, more, v in (
            ("tpc_oldest_in_doubt_age_seconds", "ledger", "", "7200x20"),
            ("tpc_oldest_in_doubt_age_seconds", "notifier", "", "7200x20"),
            ("tpc_diagnoses", "ledger", ', diagnosis="orphaned"', "1x20"),
            ("tpc_diagnoses", "notifier", ', diagnosis="orphaned"', "0x20"),
        )
    ]
    fires = 'count by (participant) (ALERTS{alertname="TpcInDoubtLong"})'
    one = [{"labels": '{participant="notifier"}', "value": 1}]
    expected = [{"expr": fires, "eval_time": "10m", "exp_samples": one}]
    assert_rules(series, expected, tmp_path / "test.yml")


TESTED = [
    index
    for index, rule in enumerate(alerts())
    if rule["alert"] in RULE_TESTS.read_text()
]


@pytest.mark.ci
@pytest.mark.parametrize("index", TESTED, ids=[RULE_OF[index] for index in TESTED])
def test_a_rule_that_is_taken_out_is_missed(index, tmp_path):
    """No rule is there, of neither severity, that the tests of its alert do not see."""
    rules, tests = read(RULES), read(RULE_TESTS)
    tests["tests"] = [t for t in tests["tests"] if alerts()[index]["alert"] in str(t)]
    del rules["groups"][0]["rules"][len(recorded()) + index]
    (tmp_path / RULES.name).write_text(yaml.safe_dump(rules))
    (tmp_path / RULE_TESTS.name).write_text(yaml.safe_dump(tests))
    command = [program("promtool"), "test", "rules", str(tmp_path / RULE_TESTS.name)]
    done = subprocess.run(command, capture_output=True, timeout=AT_LAST, check=False)
    assert done.returncode == 1
    assert b"FAILED" in done.stdout + done.stderr


def test_each_rule_is_tested():
    """By Prometheus's own test of rules, or by the one of bounds."""
    others = {alert.name for alert in BOUNDED}
    assert {rule["alert"] for rule in alerts()} == others | {
        alerts()[index]["alert"] for index in TESTED
    }


def test_gauges_are_scraped_and_the_rest_comes_by_otlp():
    """Nothing is there twice, and nothing is left out: split by the registry.

    Only a job exports the gauges of its participants without a service.
    """
    gauges = {name for name, metric in EXPOSED.items() if metric.kind == "gauge"}
    of_participants = {names.prometheus_name(name) for name in GAUGES}
    jobs = {job["job_name"]: job for job in read(PROMETHEUS)["scrape_configs"]}
    kept = {
        (name, participant): {
            metric
            for metric in EXPOSED
            if all(keeps(r, metric, participant) for r in job["metric_relabel_configs"])
        }
        for name, job in jobs.items()
        for participant in ("", "orders")
    }
    rest = set(EXPOSED) - gauges
    scraped = {
        (f"tracing-2pc-{name}", participant): gauges
        for name in ("watch", "participants")
        for participant in ("", "orders")
    }
    assert kept == {
        **scraped,
        ("tracing-2pc-otlp", ""): rest,
        ("tracing-2pc-otlp", "orders"): rest | of_participants,
    }


def keeps(relabel: dict[str, Any], metric: str, participant: str) -> bool:
    """Whether Prometheus keeps a sample by a rule."""
    labels = {"__name__": metric, "participant": participant}
    value = ";".join(labels[name] for name in relabel["source_labels"])
    matches = re.fullmatch(relabel["regex"], value) is not None
    return matches is (relabel["action"] == "keep")


def test_whoever_has_a_token_is_asked_with_one():
    """A viewer's, from a file: never in the configuration, never in a URL."""
    for job in read(PROMETHEUS)["scrape_configs"]:
        if job["job_name"] != "tracing-2pc-otlp":
            assert job["authorization"].keys() == {"credentials_file"}


def test_nothing_commits_for_longer_than_a_batch_may_take():
    """Its window is longer than the default of `transaction_timeout`."""
    (rule,) = [rule for rule in alerts() if rule["alert"] == "TpcNothingCommits"]
    (window,) = set(re.findall(r"\[(\w+)\]", rule["expr"]))
    assert seconds(window) > Settings().transaction_timeout


def test_every_diagnosis_has_an_alert():
    """A new one cannot go unheard."""
    said = re.findall(r'diagnosis=~?"([^"]+)"', " ".join(r["expr"] for r in alerts()))
    found = {name for one in said for name in one.split("|")}
    diagnoses = {str(k) for k in KINDS if k.subject is Subject.DIAGNOSIS}
    assert found == diagnoses == set(LABELS["diagnosis"])


def test_alertmanager_takes_the_configuration():
    """Both receivers, and what silences what."""
    said = checked("amtool", "check-config", ALERTMANAGER)
    for name, count in ("receivers", 2), ("inhibit rules", 5):
        assert TEXTS["amtool found"].format(count=count, name=name) in said


@pytest.mark.parametrize("index", range(len(RULE_OF)), ids=RULE_OF)
def test_an_alert_goes_to_the_receiver_of_its_severity(index):
    """As Alertmanager itself routes it."""
    rule = alerts()[index]
    severity = rule["labels"]["severity"]
    receiver = {"warning": "warnings", "critical": "critical"}[severity]
    labels = [f"alertname={rule['alert']}", f"severity={severity}", "job=w"]
    where = ["config", "routes", "test", f"--config.file={ALERTMANAGER}"]
    checked("amtool", *where, f"--verify.receivers={receiver}", *labels)


def test_critical_silences_the_warning_of_the_same():
    """The same alert, about the same of the same log; and nothing more."""
    first = read(ALERTMANAGER)["inhibit_rules"][0]
    assert first == {
        "source_matchers": ['severity="critical"'],
        "target_matchers": ['severity="warning"'],
        "equal": ["alertname", "job", "application", "participant"],
    }


def test_one_trouble_is_one_message():
    """A loss is quarantined, what is stuck was pending: of that application alone."""
    silenced = {
        rule["target_matchers"][0]: rule["equal"]
        for rule in read(ALERTMANAGER)["inhibit_rules"][1:3]
    }
    assert silenced == {
        'alertname="TpcQuarantined"': ["job", "application"],
        'alertname="TpcDecisionPending"': ["job", "application", "participant"],
    }


def test_what_is_silenced_exists():
    """A misspelt name would silence nothing, and nobody would know."""
    named = re.findall(r"Tpc[A-Za-z]+", str(read(ALERTMANAGER)["inhibit_rules"]))
    assert named
    assert set(named) <= {rule["alert"] for rule in alerts()}
