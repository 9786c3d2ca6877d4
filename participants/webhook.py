"""Whoever is called by alerts, for a demo: prints a line for each.

It takes what Alertmanager posts to `/alerts/<receiver>`, and SkyWalking to
`/skywalking`. Nothing is kept: the output is all there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flask import Flask, abort, request


def create_app() -> Flask:
    """Make the application."""
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = 1024 * 1024
    app.add_url_rule("/alerts/<receiver>", view_func=alerts, methods=["POST"])
    app.add_url_rule("/skywalking", view_func=alarms, methods=["POST"])
    app.add_url_rule("/health/live", "live", lambda: {"status": "live"})
    return app


def alerts(receiver: str) -> dict[str, int]:
    """Print what Alertmanager says: a line per alert."""
    body = request.get_json()
    if not isinstance(body, dict):
        abort(400, "expected what Alertmanager posts")
    return _print_lines(alert_line(receiver, alert) for alert in body.get("alerts", []))


def alarms() -> dict[str, int]:
    """Print what SkyWalking says: a line per alarm."""
    body = request.get_json()
    if not isinstance(body, list):
        abort(400, "expected what SkyWalking posts")
    return _print_lines(alarm_line(alarm) for alarm in body)


def alert_line(receiver: str, alert: Mapping[str, Any]) -> str:
    """Say who is called about what, and whether it is over."""
    labels = alert["labels"]
    about = [labels["alertname"], labels.get("participant", "")]
    summary = alert.get("annotations", {}).get("summary", "")
    return f"{receiver} {alert['status']} {' '.join(filter(None, about))}: {summary}"


def alarm_line(alarm: Mapping[str, Any]) -> str:
    """Say what SkyWalking has seen, and when that was over, if it says so."""
    status = "resolved" if alarm.get("recoveryTime") else "firing"
    return f"skywalking {status} {alarm['ruleName']}: {alarm['alarmMessage']}"


def _print_lines(lines: Iterator[str]) -> dict[str, int]:
    texts = [" ".join(line.split()) for line in lines]
    print(*texts, sep="\n", flush=True)
    return {"printed": len(texts)}


if __name__ == "__main__":
    from .serve import serve

    serve("webhook", 8099, needs=(), config="gunicorn_partner")
