"""What a participant has counted, as Prometheus reads it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from metrics_support import assert_of_the_registry, samples
from participant_support import World, sqlite_url, tagged_rows

from tracing_2pc import names

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return tagged_rows(sqlite_url(tmp_path))


def test_every_line_is_of_the_registry(world: World) -> None:
    """Each metric says what it is before it says a number; labels are closed sets."""
    assert world.prepare("orders.1.1").status_code == 200
    text = world.client.get("/metrics").text
    assert_of_the_registry(text)
    found = samples(text)
    for header in names.LABELS["header"]:
        assert f'tpc_propagation_rejected_total{{header="{header}"}}' in found
    assert found['tpc_telemetry_dropped_total{signal="traces"}'] == 0
    assert found["tpc_in_doubt_branches"] == 1


def test_counters_are_named_as_counters() -> None:
    """Prometheus takes no name ending in `_total` for anything else."""
    for name, metric in names.METRICS.items():
        assert (metric.kind == "counter") == name.endswith("_total")


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        ({"traceparent": PARENT, "tracestate": "a=1"}, None),
        ({"traceparent": f"{PARENT},{PARENT}", "tracestate": "a=1"}, "traceparent"),
        ({"traceparent": PARENT, "tracestate": "A=1"}, "tracestate"),
    ],
)
def test_a_malformed_header_is_counted_once(
    world: World, headers: dict[str, str], wrong: str | None
) -> None:
    """A prepare reads its headers twice: for its span, and for what it keeps."""
    before = rejected(world)
    assert world.prepare("orders.1.1", headers=headers).status_code == 200
    after = rejected(world)
    grown = {key: after[key] - before[key] for key in after if after[key] > before[key]}
    about = f'tpc_propagation_rejected_total{{header="{wrong}"}}'
    assert grown == ({} if wrong is None else {about: 1})


def rejected(world: World) -> dict[str, float]:
    found = samples(world.client.get("/metrics").text)
    return {k: v for k, v in found.items() if k.startswith("tpc_propagation")}


PROGRAM = """
from flask import Flask
from tracing_2pc.participant import TaggedRows, participant_blueprint
from tracing_2pc.telemetry import lifecycle
app = Flask(__name__)
rows = TaggedRows("sqlite:///rows.db", "orders")
app.register_blueprint(participant_blueprint(rows, insecure=True))
client = app.test_client()
for _ in range(3):
    assert client.get("/transactions").status_code == 200
lifecycle.flush(30)
print(client.get("/metrics").text)
"""


def test_a_lost_span_is_counted(tmp_path: Path) -> None:
    """An operator sees at the participant that its collector is not there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    (lost,) = (line for line in done.stdout.splitlines() if "dropped_total{" in line)
    assert lost == 'tpc_telemetry_dropped_total{signal="traces"} 3'
