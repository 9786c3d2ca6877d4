"""Writes two-phase-commits.json, the Grafana dashboard, beside itself.

    python -m dashboards.grafana.two_phase_commits

Change panels in `rows.py` and run it: a test holds the file against this program.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from dashboards.grafana.rows import ROWS, Panel, Query

FILE: Final = Path(__file__).with_name("two-phase-commits.json")
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, LINE = 8, 8, 24
ONE_A_MINUTE: Final = "2m"
"""Rates are over two of the slowest batches that are expected, at least."""

STUCK: Final = (
    "${jaeger}/search?service=tracing-2pc-watch"
    "&operation=tpc.in_doubt.snapshot&lookback=1h&limit=100"
)


def dashboard() -> dict[str, Any]:
    """Return all of it, in Grafana's classic schema."""
    return {
        "uid": "tracing-2pc",
        "title": "Two-phase commits",
        "description": "What is in doubt, who holds it up, and whether it gets on.",
        "tags": ["tracing-2pc"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": links(),
        "annotations": {"list": [decided_by_hand()]},
        "templating": {"list": list(variables())},
        "panels": list(panels(ROWS)),
    }


def decided_by_hand() -> dict[str, Any]:
    """Mark when a person decided; a command's counter begins with its first count."""
    counter = 'tpc_operator_actions_total{job=~"$job"}'
    return {
        "name": "Decided by hand",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "purple",
        "expr": f"sum by (action) (({counter} unless {counter} offset 1m) "
        f"or ({counter} - {counter} offset 1m > 0))",
        "step": "1m",
        "titleFormat": "Decided by hand",
        "textFormat": "{{action}}",
    }


def links() -> list[dict[str, Any]]:
    """Return where the dashboard leads, and each of its panels."""
    return [
        link("Stuck within the last hour, in Jaeger", STUCK),
        link("Console", "${console}"),
    ]


def link(title: str, url: str) -> dict[str, Any]:
    """Return a link at the top of the dashboard."""
    return {"type": "link", "title": title, "url": url, "targetBlank": True}


def variables() -> Iterator[dict[str, Any]]:
    """Yield where to read from, what to show, and where links lead."""
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }
    for name, label in (("job", "Job"), ("participant", "Participant")):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": DATASOURCE,
            "query": f'label_values({{__name__=~"tpc_.+"}}, {name})',
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }
    yield address("jaeger", "Jaeger", "http://127.0.0.1:16686")
    yield address("console", "Console", "http://127.0.0.1:8090")


def address(name: str, label: str, url: str) -> dict[str, Any]:
    """Return a variable for a base URL, which the reader may change."""
    return {
        "name": name,
        "label": label,
        "type": "textbox",
        "query": url,
        "current": {"text": url, "value": url},
    }


def panels(rows: dict[str, tuple[Panel, ...]]) -> Iterator[dict[str, Any]]:
    """Lay them out, row by row."""
    number, y = 0, 0
    for title, held in rows.items():
        number += 1
        at = {"x": 0, "y": y, "w": LINE, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": at, "panels": []}
        y += 1
        x = 0
        for panel in held:
            number += 1
            width = 2 * WIDTH if panel.kind == "table" else WIDTH
            if x + width > LINE:
                x, y = 0, y + HEIGHT
            at = {"x": x, "y": y, "w": width, "h": HEIGHT}
            yield {"id": number, "gridPos": at, **shown(panel)}
            x += width
        y += HEIGHT


def shown(panel: Panel) -> dict[str, Any]:
    """Return one panel, without its place."""
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "interval": ONE_A_MINUTE,
        "links": links(),
        "targets": list(targets(panel.queries, now=panel.kind != "timeseries")),
        "fieldConfig": {"defaults": field(panel), "overrides": []},
        "options": options(panel),
    }


def targets(queries: Sequence[Query], *, now: bool) -> Iterator[dict[str, Any]]:
    """Yield the queries, each by a letter: over the time shown, or of now."""
    for letter, query in zip("ABCDEF", queries, strict=False):
        yield {
            "refId": letter,
            "datasource": DATASOURCE,
            "expr": query.expr,
            "legendFormat": query.legend,
            "exemplar": query.exemplar,
            "instant": now,
            "range": not now,
            "format": "time_series" if query.legend else "table",
        }


def field(panel: Panel) -> dict[str, Any]:
    """Return unit and colours."""
    if panel.red is None:
        return {"unit": panel.unit, "min": 0}
    steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.red}]
    thresholds = {"mode": "absolute", "steps": steps}
    return {"unit": panel.unit, "min": 0, "thresholds": thresholds}


def options(panel: Panel) -> dict[str, Any]:
    """Return what a kind of panel asks for."""
    if panel.kind == "stat":
        last = {"calcs": ["last"], "fields": "", "values": False}
        return {"colorMode": "background", "graphMode": "none", "reduceOptions": last}
    if panel.kind == "table":
        return {"showHeader": True}
    return {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def text() -> str:
    """Return the file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
