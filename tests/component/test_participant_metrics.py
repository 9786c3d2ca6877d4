"""What a participant has counted, as Prometheus reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.branches import ONE, TWIN
from support.kinds import KINDS, sqlite_url, tagged_rows
from support.metrics import assert_of_the_registry, samples
from support.participant import World
from support.served import unserved

from tracing_2pc.core import names
from tracing_2pc.participant import TaggedRows
from tracing_2pc.tracing.gauges import GAUGES

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    made = tagged_rows(sqlite_url(tmp_path))
    yield made
    made.resource.close()


def test_every_line_is_of_the_registry(world):
    """Each metric says what it is before it says a number; labels are closed sets."""
    assert world.prepare("orders.1.1").status_code == 200
    text = world.client.get("/metrics").text
    assert_of_the_registry(text)
    found = samples(text)
    for header in names.LABELS["header"]:
        assert f'tpc_propagation_rejected_total{{header="{header}"}}' in found
    assert found['tpc_telemetry_dropped_total{signal="traces"}'] == 0
    assert found["tpc_in_doubt_branches"] == 1


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        ({"traceparent": PARENT, "tracestate": "a=1"}, None),
        ({"traceparent": f"{PARENT},{PARENT}", "tracestate": "a=1"}, "traceparent"),
        ({"traceparent": PARENT, "tracestate": "A=1"}, "tracestate"),
    ],
)
def test_a_malformed_header_is_counted_once(world, headers, wrong):
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


def phases(found: dict[str, float]) -> dict[str, float]:
    """Return how many requests there were, by phase and result."""
    name = "tpc_phase_duration_seconds_count"
    words = {k: k.split('"') for k in found if k.startswith(name)}
    assert {part[3] for part in words.values()} <= {"participant"}
    return {f"{part[1]} {part[5]}": found[k] for k, part in words.items()}


def test_each_request_of_the_protocol_is_measured(world, measured, monkeypatch):
    """By what was answered; what else a participant is asked is not."""
    world.prepare("orders.1.1")
    world.commit("orders.1.1", ONE)
    world.commit("orders.1.1", ONE, TWIN)
    world.abort("orders.1.1")
    world.prepare("orders.2.1")
    world.resolve("orders.2.1", "abort")
    world.show("orders.2.1")

    def away(*_: object) -> None:
        raise OSError("no disk")

    with monkeypatch.context() as patch:
        patch.setattr(world.resource, "commit", away)
        assert world.commit("orders.3.1", once=True).status_code == 503
    assert phases(measured()) == {
        "prepare ok": 2,
        "commit ok": 1,
        "commit refused": 1,
        "abort refused": 1,
        "commit unavailable": 1,
    }


def test_who_is_not_admitted_moves_no_number(tmp_path, measured):
    """A stranger's requests are refused, and are nothing about the protocol."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"job {'j' * 40} orders\n")
    resource = TaggedRows(sqlite_url(tmp_path), "orders")
    world = World(resource, lambda: 0, tokens=tokens)
    assert world.abort("orders.1.1").status_code == 401
    assert phases(measured()) == {}
    resource.close()


def test_a_wait_is_measured_once_when_it_is_over(tmp_path, measured):
    """From the first branch to the decision, by the participant's own clock."""
    now = [1000.0]
    resource = TaggedRows(sqlite_url(tmp_path), "orders", clock=lambda: now[0])
    world = World(resource, lambda: 0)
    world.prepare("orders.1.1", ONE)
    now[0] += 1.0
    world.prepare("orders.1.1", TWIN)
    now[0] += 2.0
    for _ in range(2):
        world.commit("orders.1.1", ONE, TWIN)
    world.abort("orders.2.1")
    found = measured()
    assert found["tpc_in_doubt_duration_seconds_count"] == 1
    assert found["tpc_in_doubt_duration_seconds_sum"] == pytest.approx(3.0)
    resource.close()


SHOWN = [names.prometheus_name(name) for name in GAUGES]


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_participant_is_measured_no_more(kind, postgres_database, measured):
    """Nothing opens its database again only to look at it; a use of it does."""
    world = KINDS[kind](postgres_database)
    resource = world.resource
    assert world.prepare("orders.1.1", ONE).status_code == 200
    gauges = [name for name in SHOWN if name in measured()]
    assert "tpc_in_doubt_branches" in gauges
    resource.close()
    assert not set(SHOWN) & measured().keys()
    assert resource._database.engine.pool.checkedin() == 0
    assert world.listed() == [("orders.1.1", "0.1", "prepared")]
    assert [name for name in SHOWN if name in measured()] == gauges
    resource.close()


PROGRAM = """
from flask import Flask
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant import TaggedRows
from tracing_2pc.tracing.sdk import lifecycle
app = Flask(__name__)
rows = TaggedRows("sqlite:///rows.db", "orders")
app.register_blueprint(participant_blueprint(rows, insecure=True))
client = app.test_client()
for _ in range(3):
    assert client.get("/transactions").status_code == 200
lifecycle.flush(30)
print(client.get("/metrics").text)
"""


def test_a_lost_span_is_counted(tmp_path):
    """An operator sees at the participant that its collector is not there."""
    with unserved() as url:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=tmp_path,
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": url},
            check=True,
            capture_output=True,
            text=True,
        )
    (lost,) = (line for line in done.stdout.splitlines() if "dropped_total{" in line)
    assert lost == 'tpc_telemetry_dropped_total{signal="traces"} 3'
