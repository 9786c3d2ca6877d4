"""The demo's webhook prints a line for each alert, and refuses what is none."""

from __future__ import annotations

import pytest

from participants.webhook import create_app


def test_each_alert_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Who is called, about what and whom, and whether it is over."""
    alert = {
        "status": "resolved",
        "labels": {"alertname": "TpcTransactionStuck", "participant": "ledger"},
        "annotations": {"summary": "stuck\nfor long"},
    }
    posted = {"alerts": [alert, {**alert, "labels": {"alertname": "TpcOrphaned"}}]}
    answer = create_app().test_client().post("/alerts/critical", json=posted)
    assert answer.get_json() == {"printed": 2}
    assert capsys.readouterr().out.splitlines() == [
        "critical resolved TpcTransactionStuck ledger: stuck for long",
        "critical resolved TpcOrphaned: stuck for long",
    ]


def test_each_alarm_of_skywalking_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With the text that its rule has."""
    alarm = {"ruleName": "tpc_stuck_rule", "alarmMessage": "watch: stuck"}
    assert (
        create_app().test_client().post("/skywalking", json=[alarm]).status_code == 200
    )
    assert capsys.readouterr().out == "skywalking firing tpc_stuck_rule: watch: stuck\n"


@pytest.mark.parametrize("path", ["/alerts/warning", "/skywalking"])
def test_what_is_no_alert_is_refused(path: str) -> None:
    """A test of the route with anything else is not printed."""
    assert create_app().test_client().post(path, json="hello").status_code == 400
