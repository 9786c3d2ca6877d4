"""The files of `dashboards/`, and the programs that check them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from support.programs import left_out
from support.waiting import AT_LAST

ROOT: Final = Path(__file__).parents[2]
DASHBOARDS: Final = ROOT / "dashboards"
PROMETHEUS: Final = DASHBOARDS / "prometheus" / "prometheus.yml"
RULES: Final = DASHBOARDS / "prometheus" / "rules" / "tracing-2pc.rules.yml"
RULE_TESTS: Final = RULES.with_name("tracing-2pc.test.yml")
ALERTMANAGER: Final = DASHBOARDS / "alertmanager" / "alertmanager.yml"
GRAFANA: Final = DASHBOARDS / "grafana" / "two-phase-commits.json"
JAEGER: Final = DASHBOARDS / "jaeger" / "config.yaml"
JAEGER_UI: Final = DASHBOARDS / "jaeger" / "ui-config.json"
SKYWALKING: Final = DASHBOARDS / "skywalking"
MAL: Final = SKYWALKING / "otel-rules" / "tpc.yaml"
MAL_OF_PARTICIPANTS: Final = SKYWALKING / "otel-rules" / "tpc-participants.yaml"
ALARMS: Final = SKYWALKING / "alarm-settings.yml"
TEMPLATE: Final = (
    SKYWALKING / "ui-initialized-templates" / "custom" / "two-phase-commits.json"
)
RUNBOOK: Final = DASHBOARDS / "README.md"
TOKEN: Final = "viewer.token"
RATE: Final = "$__rate_interval"

_UNPACKED: Final = ROOT / ".cache" / "prometheus" / "usr" / "bin"


def read(path: Path) -> Any:
    """Read YAML or JSON."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)


def alerts() -> list[dict[str, Any]]:
    """Return the alerting rules, in their order."""
    return [rule for rule in _rules() if "alert" in rule]


def recorded() -> dict[str, str]:
    """Return what alerts are made of: expressions by name."""
    return {rule["record"]: rule["expr"] for rule in _rules() if "record" in rule}


def _rules() -> list[dict[str, Any]]:
    (group,) = read(RULES)["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    """Return the panels of the Grafana dashboard that show something."""
    return [p for p in read(GRAFANA)["panels"] if p["type"] != "row"]


def targets() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each panel with each of its queries."""
    yield from ((panel, target) for panel in panels() for target in panel["targets"])


def expressions() -> Iterator[tuple[str, str]]:
    """Yield where a PromQL expression stands, and the expression."""
    yield from ((n, e) for n, e in recorded().items() if n != "tpc:runbook")
    for rule in alerts():
        yield f"{rule['alert']} {rule['labels']['severity']}", rule["expr"]
    yield from ((panel["title"], resolved(t["expr"])) for panel, t in targets())


def resolved(expression: str) -> str:
    """Put values where Grafana would."""
    return re.sub(r"\$(job|participant)", ".*", expression.replace(RATE, "5m"))


def widgets() -> list[dict[str, Any]]:
    """Return what SkyWalking's template shows."""
    (template,) = read(TEMPLATE)
    return list(template["configuration"]["children"])


def meters() -> dict[str, str]:
    """Return SkyWalking's metrics of a service by name, with what each is made from."""
    return _meters(MAL)


def meters_of_participants() -> dict[str, str]:
    """Return those that are of an endpoint, for alarms."""
    return _meters(MAL_OF_PARTICIPANTS)


def _meters(path: Path) -> dict[str, str]:
    rules = read(path)
    return {
        f"{rules['metricPrefix']}_{r['name']}": r["exp"] for r in rules["metricsRules"]
    }


def program(name: str) -> str:
    """Return the path of one of Prometheus's programs, or leave the test out."""
    unpacked = _UNPACKED / name
    found = str(unpacked) if unpacked.exists() else shutil.which(name)
    if found is None:
        left_out(f"there is no {name}: `tools/prometheus` unpacks one")
    return found


def checked(name: str, *arguments: str | Path) -> str:
    """Run a program that must succeed; return what it says."""
    done = subprocess.run(
        [program(name), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=AT_LAST,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copied(folder: Path, *replacements: Mapping[str, str]) -> Path:
    """Copy Prometheus's files, with a token in its place; return the configuration.

    Args:
        folder: where to; made if it is not there.
        replacements: what to write instead, in all of the files: each must be found.
    """
    shutil.copytree(PROMETHEUS.parent, folder, dirs_exist_ok=True)
    (folder / TOKEN).write_text("a-token\n", encoding="utf-8")
    for wanted in replacements:
        replace(folder, wanted)
    return folder / PROMETHEUS.name


def replace(folder: Path, wanted: Mapping[str, str]) -> None:
    """Write something else into the YAML files of a folder; all of it must be there."""
    files = [path for path in folder.rglob("*.yml") if "test" not in path.name]
    for before, after in wanted.items():
        found = [path for path in files if before in path.read_text()]
        assert found, before
        for path in found:
            path.write_text(path.read_text().replace(before, after))


def seconds(duration: str) -> float:
    """Read a Prometheus duration of one unit."""
    found = re.fullmatch(r"(\d+)([smh])", duration)
    assert found is not None, duration
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]
