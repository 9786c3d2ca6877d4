"""What a real SkyWalking has of a participant's metrics, by OTLP over gRPC."""

from __future__ import annotations

import pytest
from support.waiting import until

from backends.conftest import ASKS_OAP
from backends.demo_path import DemoPath, run
from backends.oap import Oap
from participants.processes import start_together, stopping

pytestmark = ASKS_OAP


@pytest.fixture
def told(collector) -> dict[str, str]:
    """What sends metrics there, often."""
    return {
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://{collector.grpc}",
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_TRACES_EXPORTER": "none",
    }


def latest(oap: Oap, service: str, metric: str) -> dict[str, float]:
    """Return a metric's newest value by its label; nothing if it has none."""
    found = oap.expression(metric, service)
    return {
        ",".join(label["value"] for label in one["metric"]["labels"]): values[-1]
        for one in found["results"]
        if (values := [float(v["value"]) for v in one["values"] if v["value"]])
    }


def test_a_participant_and_a_job_report(collector, told, tmp_path):
    """What waits in an outbox or for a decision, and what was decided.

    Each under the name of its service. The partner is not there: all that was
    committed is still to be sent. What the job counted is sent when it ends.
    """
    path = DemoPath(tmp_path, "")
    services = path.ledger, path.notifier
    with pytest.MonkeyPatch.context() as patch, stopping(*services):
        for name, value in told.items():
            patch.setenv(name, value)
        start_together(*services)
        assert run(path.job(tmp_path, "measured", 2)) == 0

        def there() -> list[object]:
            # The highest of a minute: some may have been in doubt in the middle.
            doubt = latest(collector, "ledger", "meter_tpc_in_doubt_branches")
            return [
                latest(collector, "notifier", "meter_tpc_outbox_backlog"),
                latest(collector, "measured", "meter_tpc_decisions"),
                list(doubt),
            ]

        wanted = [{"": 12}, {"commit": 2}, [""]]
        until(there, lambda found: found == wanted)
    assert latest(collector, "ledger", "meter_tpc_outbox_backlog") == {}
    assert latest(collector, "notifier", "meter_tpc_no_such_metric") == {}
