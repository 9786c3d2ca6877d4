"""Relays at real brokers: whoever is killed or asleep, each record is there once."""

from __future__ import annotations

import collections
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.branches import ONE, OTHER
from support.kinds import sqlite_url
from support.participant import World, database_of, end, keep
from support.waiting import AT_LAST, until

from brokers.publish import relay_of
from brokers.publishing import Broker, asleep, assert_once, outbox, publish, publishing
from tracing_2pc.core.names import FAILPOINTS

pytestmark = pytest.mark.broker
POINTS = [point for point in FAILPOINTS if point.startswith("relay.")]
KINDS = {"kafka": "TPC_KAFKA", "activemq": "TPC_ACTIVEMQ", "redis_example": ""}


@pytest.fixture(scope="module", params=KINDS)
def broker(request: pytest.FixtureRequest) -> Broker:
    if (needs := KINDS[request.param]) and not os.environ.get(needs):
        pytest.skip("asked by `make test-brokers`")
    found: Broker = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.topic()


@pytest.fixture
def world(broker: Broker, topic: str, tmp_path: Path) -> Iterator[World]:
    world = outbox(sqlite_url(tmp_path), relay_of(broker.address, topic))
    yield world
    end(world.resource)


@pytest.mark.parametrize(
    "point",
    [pytest.param(p, marks=pytest.mark.ci) for p in POINTS],
)
def test_a_relay_is_killed(
    broker: Broker, topic: str, world: World, tmp_path: Path, point: str
) -> None:
    """At the second publication, and again at the one after: each is there once."""
    for number in (1, 2, 3, 4):
        keep(world, f"orders.{number}.1", ONE)
    for times in (1, 2):
        armed = point if point == "relay.after_fence" else f"{point}:{times}"
        killed = publishing(broker, topic, tmp_path, armed)
        assert killed.wait(AT_LAST) == -signal.SIGKILL
    publish(broker, topic, tmp_path)
    assert_once(broker.read(topic), 1, 2, 3, 4)


@pytest.mark.nightly
@pytest.mark.parametrize("point", POINTS)
def test_a_relay_sleeps_beside_its_successor(
    broker: Broker, topic: str, world: World, tmp_path: Path, point: str
) -> None:
    """It wakes up fenced: nothing of it is seen, and nothing on record changes."""
    for number in (1, 2):
        keep(world, f"orders.{number}.1", ONE)
    # At the second publication: the first has no position to take out.
    armed = point if point == "relay.after_fence" else f"{point}:2"
    slept = asleep(broker, topic, tmp_path, armed)
    publish(broker, topic, tmp_path)
    keep(world, "orders.3.1", ONE)
    os.killpg(slept.pid, signal.SIGCONT)
    assert slept.wait(AT_LAST) == 0
    assert_once(broker.read(topic), 1, 2, 3)


@pytest.mark.nightly
@pytest.mark.parametrize("point", ["relay.before_position", "relay.before_commit"])
def test_the_broker_is_killed(
    broker: Broker, topic: str, world: World, tmp_path: Path, point: str
) -> None:
    """While a transaction is open there: a relay waits for it, and goes on."""
    for number in (1, 2, 3):
        keep(world, f"orders.{number}.1", ONE)
    slept = asleep(broker, topic, tmp_path, f"{point}:2")
    broker.kill()
    os.killpg(slept.pid, signal.SIGCONT)
    broker.start()
    assert slept.wait(AT_LAST) == 0
    assert_once(broker.read(topic), 1, 2, 3)


@pytest.mark.ci
def test_a_store_that_was_put_back_is_seen(
    broker: Broker, topic: str, world: World, tmp_path: Path
) -> None:
    """By the position at the broker; nothing is published a second time."""
    keep(world, "orders.1.1", ONE)
    file = Path(str(database_of(world.resource).engine.url.database))
    database_of(world.resource).engine.dispose()
    shutil.copy(file, tmp_path / "copy")
    publish(broker, topic, tmp_path)
    for path in tmp_path.glob(f"{file.name}*"):
        path.unlink()
    shutil.copy(tmp_path / "copy", file)
    again = publishing(broker, topic, tmp_path)
    try:
        until(lambda: world.resource.gauges()["tpc.outbox.stopped"])
    finally:
        again.kill()
        again.wait(AT_LAST)
    assert_once(broker.read(topic), 1)


@pytest.mark.nightly
def test_of_two_clones_one_stops(
    broker: Broker, topic: str, world: World, tmp_path: Path
) -> None:
    """While both publish at once: nothing is there twice, nothing of both."""
    keep(world, "orders.1.1", ONE)
    publish(broker, topic, tmp_path)
    database_of(world.resource).engine.dispose()
    folder = tmp_path / "clone"
    folder.mkdir()
    for path in tmp_path.glob("*.db"):
        shutil.copy(path, folder)
    clone = outbox(sqlite_url(folder), relay_of(broker.address, topic))
    keep(world, "orders.2.1", ONE)
    keep(clone, "orders.2.1", OTHER)
    both = [publishing(broker, topic, where) for where in (tmp_path, folder)]
    try:
        stopped = until(
            lambda: [
                int(one.resource.gauges()["tpc.outbox.stopped"])
                for one in (world, clone)
            ],
            sum,
        )
        assert both[stopped.index(0)].wait(AT_LAST) == 0
        assert sorted(stopped) == [0, 1]
    finally:
        for process in both:
            process.kill()
            process.wait(AT_LAST)
        end(clone.resource)
    keys = collections.Counter(one.headers["tpc-key"] for one in broker.read(topic))
    rows = 3 if stopped == [0, 1] else 1
    assert (set(keys.values()), len(keys)) == ({1}, 3 + rows)
