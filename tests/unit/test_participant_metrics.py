"""What a participant has counted, as Prometheus reads it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from participant_support import World, sqlite_url, tagged_rows

from tracing_2pc import names

SAMPLE = re.compile(r'([a-z_]+)(?:\{([a-z]+)="([a-z0-9-]+)"\})? ([0-9.e+-]+)')
PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return tagged_rows(sqlite_url(tmp_path))


def counted(text: str) -> dict[tuple[str, str], float]:
    """Read counters, by name and label."""
    found = (SAMPLE.fullmatch(line) for line in text.splitlines())
    return {(m[1], m[3]): float(m[4]) for m in found if m and m[3]}


def test_every_line_is_of_the_registry(world: World) -> None:
    """Each metric says what it is before it says a number; labels are closed sets."""
    text = world.client.get("/metrics").text
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    for line in samples:
        found = SAMPLE.fullmatch(line)
        assert found is not None, line
        metric = names.METRICS[found[1]]
        assert f"# HELP {found[1]} {metric.meaning}\n# TYPE {found[1]} " in text
        assert f"# TYPE {found[1]} {metric.kind}\n{found[1]}" in text
        assert (found[2],) == (metric.labels or (None,))
        assert found[3] is None or found[3] in names.LABELS[found[2]]
    assert len(set(samples)) == len(samples)
    for label in {label for m in names.METRICS.values() for label in m.labels}:
        assert {v for (_, v) in counted(text)} >= set(names.LABELS[label])


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
    name = "tpc_propagation_rejected_total"
    before = counted(world.client.get("/metrics").text)
    assert world.prepare("orders.1.1", headers=headers).status_code == 200
    after = counted(world.client.get("/metrics").text)
    grown = {key: after[key] - before[key] for key in after if after[key] > before[key]}
    assert grown == ({} if wrong is None else {(name, wrong): 1})


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
    assert counted(done.stdout)["tpc_telemetry_dropped_total", "traces"] == 3
