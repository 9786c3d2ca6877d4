"""Alerts fire, stay quiet and end as promised, say Prometheus's own programs."""

import re
import subprocess
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
from tracing_2pc.core import names
from tracing_2pc.core.names import LABELS
from tracing_2pc.core.settings import Settings
from tracing_2pc.participant.metrics import GAUGES

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


@pytest.mark.ci
@pytest.mark.parametrize("index", range(len(RULE_OF)), ids=RULE_OF)
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


def test_alerts_follow_the_defaults_of_the_library():
    """A changed default of the settings is changed here, too."""
    defaults, rules = Settings(), alerts()
    for rule in rules:
        if "diagnosis=~" in rule["expr"]:
            assert "for" not in rule  # lost or diverged: at once
        elif rule["labels"]["severity"] == "critical" and "tpc:diag" in rule["expr"]:
            assert "for" not in rule
            assert rule["expr"].endswith(f" > {defaults.stuck_critical:g}\n")
        elif "tpc:diagnoses" in rule["expr"]:
            assert seconds(rule["for"]) == defaults.sweep
        if "pending_age" in rule["expr"]:
            assert "for" not in rule
            assert rule["expr"].endswith(f" > {defaults.safety_interval:g}")
        if "tpc:quarantined" in rule["expr"]:
            assert seconds(rule["for"]) > defaults.sweep
        if "time() -" in rule["expr"]:
            assert f"> {3 * defaults.sweep:g}" in rule["expr"]
        if rule["alert"] == "TpcNothingCommits":
            (window,) = set(re.findall(r"\[(\w+)\]", rule["expr"]))
            assert seconds(window) > defaults.transaction_timeout


def test_every_diagnosis_has_an_alert():
    """A new one cannot go unheard."""
    said = re.findall(r'diagnosis=~?"([^"]+)"', " ".join(r["expr"] for r in alerts()))
    assert {name for one in said for name in one.split("|")} == set(LABELS["diagnosis"])


def test_each_alert_says_what_it_means_and_where_to_read_on():
    """Summary, description, a runbook; severity is one of two words."""
    for rule in alerts():
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in ("warning", "critical")


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
