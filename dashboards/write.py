"""Writes what `tracing_2pc/inspection/kinds.py` says of alerts, in place.

    python -m dashboards.write

The rules of Prometheus, the alarms of SkyWalking with their metrics, the monitors of
Datadog, the headings of the runbook and the manual's table of findings. What stands
below a heading of the runbook is written by a person and kept. A test holds the files
against this program.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tracing_2pc.core.names import METRICS, prometheus_name
from tracing_2pc.core.states import Severity
from tracing_2pc.inspection.kind import Alert, Subject
from tracing_2pc.inspection.kinds import KINDS
from tracing_2pc.inspection.wording import format_duration

ROOT: Final = Path(__file__).parents[1]
RUNBOOK: Final = "http://127.0.0.1:8000/runbook.html"
ALERTS: Final = tuple(dict.fromkeys(alert for kind in KINDS for alert in kind.alerts))
MINUTE: Final = 60.0


def sentence(text: str, alert: Alert, labels: Mapping[str, str]) -> str:
    """Return a text for a system that shows no value: the bound stands for it."""
    values = {
        "n": "",
        "s": "s",
        "are": "are",
        "have": "have",
        "age": f"more than {format_duration(alert.above)}",
        "share": f"more than {alert.above:.0%}",
    }
    said = " ".join(text.format_map({**labels, **values}).split())
    older = f" for more than {format_duration(alert.older)}" if alert.older else ""
    return said + older


# --- Prometheus ----------------------------------------------------------------------

NUMBERS: Final = {
    "n": "{{ $value }}",
    "s": "{{ if ne $value 1.0 }}s{{ end }}",
    "are": "{{ if eq $value 1.0 }}is{{ else }}are{{ end }}",
    "have": "{{ if eq $value 1.0 }}has{{ else }}have{{ end }}",
    "age": "{{ $value | humanizeDuration }}",
    "share": "{{ $value | humanizePercentage }}",
}
LABELS: Final = ("participant", "application", "diagnosis", "job", "instance")
PLAIN: Final = {name: f"the {name}" for name in LABELS}

HEAD: Final = """\
# Alerts for two-phase commits, written by `python -m dashboards.write`. Times follow
# the library's defaults: `stuck_after` 5 min, `stuck_critical` 15 min, `orphan_after`
# 5 min, `safety_interval` 20 s, `sweep` 30 s; change both together. What the watcher
# says has lasted for the threshold already, so that `for` is one more sweep; an age is
# the transaction's own, and needs no `for`.
groups:
  - name: tracing-2pc
    rules:
      # Where your people read the runbook. The one place: every alert's link begins so.
      - record: tpc:runbook
        expr: vector(1)
        labels: {url: "%s"}

      # What the watcher says; while no watcher of that log is there, for a day, its
      # last word. Otherwise what is wrong would be told as resolved when it dies.
      - record: tpc:watcher_gone
        expr: |
          max by (job) (max_over_time(tpc_watcher_last_success_timestamp_seconds[1d]))
            unless max by (job) (tpc_watcher_last_success_timestamp_seconds)
"""


def rules() -> str:
    """Return the rules of Prometheus."""
    return (
        HEAD % RUNBOOK
        + "".join(_recorded())
        + "".join(f"\n{rule(one)}" for one in ALERTS)
    )


def _recorded() -> Iterator[str]:
    for name, metric in METRICS.items():
        if "application" in metric.labels:
            by, spelt = ", ".join(("job", *metric.labels)), prometheus_name(name)
            yield f"""\
      - record: {recorded(name)}
        expr: |
          max by ({by}) ({spelt})
          or {recorded(name)} and on (job) tpc:watcher_gone
"""


def recorded(name: str) -> str:
    """Return what a rule calls a metric: of the watcher's it has the last word."""
    spelt = prometheus_name(name)
    is_watchers = "application" in METRICS[name].labels
    return spelt.replace("tpc_", "tpc:", 1) if is_watchers else spelt


def promql(alert: Alert) -> str:
    """Return the condition of an alert."""
    if alert.promql:
        return alert.promql
    which = ""
    if alert.where:
        which = f'{{diagnosis{"=~" if "|" in alert.where else "="}"{alert.where}"}}'
    of = f" / {prometheus_name(alert.of)}" if alert.of else ""
    inside, by = f"{recorded(alert.metric)}{which}{of}", ", ".join(alert.by)
    found = f"max by ({by}) ({inside}) > {alert.above:g}"
    if not alert.older:
        return found
    age = recorded("tpc.oldest_diagnosed_age")
    return f"{found}\nand on ({by}) {age}{which} > {alert.older:g}\n"


def rule(alert: Alert) -> str:
    """Return one rule."""
    labels = {name: f"{{{{ $labels.{name} }}}}" for name in LABELS}
    expression = promql(alert)
    if "\n" in expression:
        expression = "|\n" + textwrap.indent(expression.rstrip(), " " * 10)
    fields = {**labels, **NUMBERS}
    wrapped = textwrap.wrap(alert.description.format_map(fields), 80)
    summary = json.dumps(alert.summary.format_map(fields))
    lines = [
        *(f"# {line}" for line in textwrap.wrap(alert.note, 80)),
        f"- alert: {alert.name}",
        f"  expr: {expression}",
        *([f"  for: {duration(alert.lasts)}"] if alert.lasts else []),
        f"  labels: {{severity: {alert.severity}}}",
        "  annotations:",
        f"    summary: {summary}",
        "    description: >-",
        *(f"      {line}" for line in wrapped),
        '    runbook_url: \'{{ range query "tpc:runbook" }}{{ .Labels.url }}{{ end }}'
        f"#{alert.name.lower()}'",
    ]
    return "".join(f"      {line}\n" for line in lines)


def duration(seconds: float) -> str:
    """Return a duration as Prometheus reads it."""
    minutes, rest = divmod(seconds, MINUTE)
    return f"{seconds:g}s" if rest else f"{minutes:g}m"


# --- Datadog -------------------------------------------------------------------------


def monitors() -> str:
    """Return the monitors of Datadog, as Terraform reads them."""
    made = [alert for alert in ALERTS if alert.datadog is not None]
    notify = "whom a message goes to, as @pagerduty-orders"
    where = "where people read the runbook"
    document = {
        "//": "Monitors for Datadog, of what is sent by OTLP: the alerts of "
        "prometheus/rules by the same names, thresholds and meaning. Written by "
        "`python -m dashboards.write`.",
        "terraform": {"required_providers": {"datadog": {"source": "DataDog/datadog"}}},
        "variable": {
            "notify": {"type": "string", "description": notify},
            "runbook": {"type": "string", "default": RUNBOOK, "description": where},
        },
        "resource": {
            "datadog_monitor": {f"{a.name}_{a.severity}": monitor(a) for a in made}
        },
    }
    return json.dumps(document, indent=2) + "\n"


def monitor(alert: Alert) -> dict[str, Any]:
    """Return one monitor. That nothing is sent counts of a watcher alone."""
    query = alert.datadog or datadog(alert)
    tags = {name: f"{{{{{name}.name}}}}" for name in LABELS}
    if "participant" not in query.partition(" by {")[2]:
        tags["participant"] = tags["service"] = "{{service.name}}"
    tags["job"] = "{{service.name}}"
    said = sentence(alert.summary, alert, tags)
    is_missed = "absent" in alert.promql
    return {
        "name": f"{alert.name} ({alert.severity})",
        "type": "query alert",
        "query": query,
        "message": f"{said[0].upper()}{said[1:]}. "
        f"${{var.runbook}}#{alert.name.lower()} ${{var.notify}}",
        "monitor_thresholds": {"critical": json.loads(query.rpartition(" ")[2])},
        "on_missing_data": "show_and_notify_no_data" if is_missed else "resolve",
        "require_full_window": False,
        "include_tags": True,
        "tags": ["tracing-2pc", f"severity:{alert.severity}"],
    }


def datadog(alert: Alert) -> str:
    """Return the query of an alert on a gauge."""
    metric, above = alert.metric, alert.above
    if alert.older:
        metric, above = "tpc.oldest_diagnosed_age", alert.older
    where = f"diagnosis:{alert.where}" if alert.where else "*"
    if "|" in alert.where:
        where = f"diagnosis IN ({alert.where.replace('|', ',')})"
    # A participant's own gauges have its service's name, the watcher's its label.
    known = METRICS[metric].labels
    by = dict.fromkeys(name if name in known else "service" for name in alert.by)
    inside = f"{{{where}}} by {{{','.join(by)}}}"
    of = f" / max:{alert.of}{inside}" if alert.of else ""
    window = "5m" if alert.lasts >= 5 * MINUTE else "1m"
    return f"max(last_{window}):max:{metric}{inside}{of} > {above:g}"


# --- SkyWalking ----------------------------------------------------------------------


def alarms() -> str:
    """Return the alarms of SkyWalking."""
    head = """\
# Alarms of SkyWalking, for what the watcher, the participants and the job send by OTLP,
# written by `python -m dashboards.write`. A window is a number of minutes; it is looked
# at once a minute, so that a webhook comes one to two minutes late. Silence is not seen
# here: that the watcher died, Prometheus says. Where the watcher says it of a
# participant, {name} is "notifier in tracing-2pc-watch".
#
# Every metric must be defined by a file in otel-rules/, or the server does not start.
rules:
"""
    hooks = """\
hooks:
  webhook:
    default:
      is-default: true
      urls: ["http://127.0.0.1:8099/skywalking"]
"""
    return head + "".join(alarm(one) for one in ALERTS if one.meter) + hooks


def alarm(alert: Alert) -> str:
    """Return one alarm. A critical one is repeated sooner."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", alert.name).lower()
    is_critical = alert.severity is Severity.CRITICAL
    entity = {
        "participant": "{name}",
        "job": "{name}",
        "application": "an application",
        "diagnosis": "lost or diverged",
    }
    said = sentence(alert.summary, alert, entity)
    meter = f"meter_tpc_{alert.meter}"
    minutes = alert.minutes or 1
    expression = f"sum({meter} > 0) >= {minutes}"
    if alert.above:
        expression = f"max({meter}) > {alert.above:g}"
    period = alert.minutes + 1 if alert.minutes else 2 if alert.lasts else 1
    return f"""\
  {name}{"_for_long" if alert.minutes else ""}_rule:
    expression: {expression}
    period: {5 if alert.lasts >= 5 * MINUTE else period}
    silence-period: {10 if is_critical else 30}
    message: {json.dumps(said if "{name}" in said else f"{{name}}: {said}")}
    tags: {{level: {alert.severity.upper()}, runbook: {alert.name.lower()}}}
"""


def meters() -> str:
    """Return the metrics of participants for SkyWalking's alarms."""
    head = """\
# What the watcher says of each participant, as metrics of an endpoint of its name: an
# alarm's text has only its entity, "notifier in tracing-2pc-watch". Written by
# `python -m dashboards.write`.
metricPrefix: meter_tpc_participant
expSuffix: endpoint(['job_name'], ['participant'], Layer.GENERAL)
metricsRules:
"""
    made = {alert.meter: alert.where for alert in ALERTS if alert.meter and alert.where}
    lines = (
        f"  - {{name: {meter.removeprefix('participant_')}, "
        f'exp: "tpc_diagnoses.tag{"Match" if "|" in where else "Equal"}'
        f"('diagnosis', '{where}')"
        ".max(['job_name', 'participant']).downsampling(MAX)\"}\n"
        for meter, where in made.items()
    )
    return head + "".join(lines)


# --- what persons read ---------------------------------------------------------------


def runbook(text: str) -> str:
    """Return the runbook with a section for each alert, and none for another one.

    A new section comes last, with what the alert means; a person adds what to look at
    and what is safe.
    """
    start, *sections = re.split(r"(?m)^(?=### Tpc)", text)
    kept = {section.split()[1]: section.rstrip() for section in sections}
    wanted = {alert.name: alert for alert in ALERTS}
    for name, alert in wanted.items():
        said = sentence(alert.description, alert, PLAIN)
        kept.setdefault(name, f"### {name}\n\n*Means:* {said}")
    there = [section for name, section in kept.items() if name in wanted]
    return start + "\n\n".join(there) + "\n"


def manual(text: str) -> str:
    """Return the manual's page with the table of all that can be wrong."""
    head = "| finding | what was seen | alert |\n|---|---|---|\n"
    before, _, after = text.partition(head)
    _, _, after = after.partition("\n\n")
    return f"{before}{head}{''.join(_rows())}\n{after}"


def _rows() -> Iterator[str]:
    for kind in KINDS:
        names = dict.fromkeys(alert.name for alert in kind.alerts)
        links = ", ".join(
            f"[{name}](../dashboards/README.md#{name.lower()})" for name in names
        )
        name = "only an alert" if kind.subject is Subject.METRICS else f"`{kind.name}`"
        yield f"| {name} | {kind.seen} | {links or 'none'} |\n"


def _whole(make: Callable[[], str]) -> Callable[[str], str]:
    return lambda _: make()


FILES: Final[Mapping[str, Callable[[str], str]]] = {
    "dashboards/prometheus/rules/tracing-2pc.rules.yml": _whole(rules),
    "dashboards/datadog/monitors.tf.json": _whole(monitors),
    "dashboards/skywalking/alarm-settings.yml": _whole(alarms),
    "dashboards/skywalking/otel-rules/tpc-participants.yaml": _whole(meters),
    "dashboards/README.md": runbook,
    "docs/operating.md": manual,
}
"""What makes each file from what is there."""


if __name__ == "__main__":
    for file, render in FILES.items():
        path = ROOT / file
        path.write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")
