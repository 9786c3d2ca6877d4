"""A relay and an intake at a real ActiveMQ."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.activemq import Broker
from support.branches import ONE, TRACE, records
from support.kinds import sqlite_url
from support.participant import World, end, keep
from support.relay import listed, order, publisher
from support.texts import texts
from support.waiting import AT_LAST, PATIENT, until

from brokers.publishing import assert_once, outbox, publish, publishing
from participants.processes import free_ports
from tracing_2pc.activemq import ActiveMQIntake, ActiveMQRelay
from tracing_2pc.core.model import Carrier
from tracing_2pc.inbox import Inbox
from tracing_2pc.outbox.relay import Position, Publication

pytestmark = [
    pytest.mark.broker,
    pytest.mark.ci,
    pytest.mark.skipif(
        not os.environ.get("TPC_ACTIVEMQ"), reason="asked by `make test-brokers`"
    ),
]
TEXTS = texts("activemq")


@pytest.fixture
def queue(activemq: Broker) -> str:
    return activemq.topic()


@pytest.fixture
def relay(activemq: Broker, queue: str) -> Iterator[ActiveMQRelay]:
    dead = f"127.0.0.1:{free_ports(1)[0]}"
    made = ActiveMQRelay(f"{dead},{activemq.place}", queue=queue, key="id")
    yield made
    made.close()


@pytest.fixture
def world(relay: ActiveMQRelay, tmp_path: Path) -> Iterator[World]:
    made = outbox(sqlite_url(tmp_path), relay)
    yield made
    end(made.resource)


def test_a_message_is_what_was_prepared(
    activemq: Broker, queue: str, world: World, tmp_path: Path
) -> None:
    """With its headers."""
    keep(
        world, "orders.1.1", records(id=["a:b\nc\\", None], note=["ü\0", "x" * 70_000])
    )
    publish(activemq, queue, tmp_path)
    first, second = activemq.read(queue)
    assert json.loads(first.value) == {"id": "a:b\nc\\", "note": "ü\0"}
    assert json.loads(second.value) == {"id": None, "note": "x" * 70_000}
    assert {*first.headers} == {
        *("tpc-key", "tpc-transaction", "traceparent", "tracestate"),
    }
    assert first.headers["tpc-transaction"] == "orders.1.1"


def test_one_consumer_has_all_that_have_one_key(
    activemq: Broker, queue: str, world: World, tmp_path: Path
) -> None:
    """In order; others have other keys."""
    with activemq.client() as one, activemq.client() as other:
        for client in (one, other):
            client.link.subscribe(f"/queue/{queue}", "all", "auto")
        keep(world, "orders.1.1", records(id=list("abcdefgh") * 5))
        publish(activemq, queue, tmp_path)
        until(lambda: one.frames.qsize() + other.frames.qsize() == 40)
        found = [
            [json.loads(client.frames.get().body)["id"] for _ in range(count)]
            for client in (one, other)
            if (count := client.frames.qsize())
        ]
    assert len(found) == 2
    assert not set(found[0]) & set(found[1])


def test_the_token_survives_a_hundred_takeovers(relay: ActiveMQRelay) -> None:
    """However often the broker gives it out again: it is no dead letter."""
    position = Position(7, "orders.7.1", "digest")
    assert relay.take_over("a") is None
    relay.publish(Publication(position, None, Carrier()))
    for _ in range(100):
        assert relay.take_over("a") == position
    relay.publish(Publication(position._replace(number=8), None, Carrier()))


@pytest.mark.parametrize("found", ["no token", "two tokens"])
def test_no_token_or_two_stop_the_relay(
    activemq: Broker,
    queue: str,
    relay: ActiveMQRelay,
    world: World,
    tmp_path: Path,
    found: str,
) -> None:
    """Until a person says which transactions are in; then there is one."""
    keep(world, "orders.1.1", ONE)
    publish(activemq, queue, tmp_path)
    keep(world, "orders.2.1", ONE)
    publishing(activemq, queue, tmp_path, "relay.before_position").wait(AT_LAST)
    journal = world.resource._queue.positions()[0]
    tokens = f"tpc-{journal}"
    if found == "two tokens":
        (token,) = activemq.read(tokens)
        activemq.send(tokens, token.value.decode())
    else:
        list(activemq.each(tokens, 1))
    process = publisher(world, relay, PATIENT)
    process.turn()
    assert world.resource.gauges()["tpc.outbox.stopped"] == 1
    ((waiting, why),) = listed(world)
    assert waiting == "orders.2.1"
    assert TEXTS[found] in why
    world.resource.send_again(order("orders.2.1"))
    while process.turn() == 0.0:
        pass
    process.stop()
    assert_once(activemq.read(queue), 1, 2)
    assert len(activemq.read(tokens)) == 1


# --- the intake ----------------------------------------------------------------------


class Intake:
    """Processes that take from a queue into an inbox."""

    def __init__(self, activemq: Broker, queue: str, folder: Path) -> None:
        url = sqlite_url(folder, "inbox")
        self.inbox = Inbox(url)
        self.inbox.open()
        self.log = folder / "log"
        self._about = {
            "INBOX_DATABASE": url,
            "ACTIVEMQ": activemq.place,
            "QUEUE": queue,
            "EVENT_ID": "order-id",
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, point: str = "") -> subprocess.Popen[bytes]:
        fired = self.log.parent / f"fired {len(self._processes)}"
        armed = {"TPC_FAILPOINT": point, "TPC_FAILPOINT_FILE": str(fired)}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "participants.intake"],
                env=os.environ | self._about | (armed if point else {}),
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def bodies(self) -> list[str]:
        start, end = self.inbox.start(), self.inbox.end()
        return [event.body for event in self.inbox.read(start, end)]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(AT_LAST)
        self.inbox.close()


@pytest.fixture
def intake(activemq: Broker, queue: str, tmp_path: Path) -> Iterator[Intake]:
    made = Intake(activemq, queue, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("point", ["inbox.before_commit", "inbox.after_commit"])
def test_an_intake_is_killed(
    activemq: Broker, queue: str, intake: Intake, point: str
) -> None:
    """Twice, and the broker too: each event is there once."""
    for number in range(5):
        activemq.send(queue, str(number), order_id=f"order {number}")
    for _ in range(2):
        assert intake.start(point).wait(AT_LAST) == -signal.SIGKILL
    activemq.kill()
    last = intake.start()
    activemq.start()
    until(lambda: not activemq.read(queue))
    activemq.send(queue, "3", "4", order_id="order 4")  # the first is another content
    until(lambda: not activemq.read(queue))
    last.send_signal(signal.SIGTERM)
    assert last.wait(AT_LAST) == 0
    assert sorted(intake.bodies()) == ["0", "1", "2", "3", "4"]
    assert [dead.value for dead in activemq.each("ActiveMQ.DLQ", 1)] == [b"3"]


def test_what_is_no_event_is_in_nobodys_way(
    activemq: Broker, queue: str, intake: Intake
) -> None:
    """It goes to the dead-letter queue, and the log says why; the rest is taken."""
    activemq.send(queue, "1", order_id="one", **TRACE)
    activemq.send(queue, '{"a": 1, "a": 2}', order_id="two")
    activemq.send(queue, "3")
    activemq.send(queue, "4", "\ufffd NaN", order_id="four")
    activemq.send(queue, "5", order_id="five")
    process = intake.start()
    until(lambda: not activemq.read(queue))
    assert intake.bodies() == ["1", "4", "5"]
    (first, *_) = intake.inbox.read(intake.inbox.start(), intake.inbox.end())
    assert first.producer == queue
    assert first.carrier["traceparent"] == TRACE["traceparent"]
    dead = [one.value for one in activemq.each("ActiveMQ.DLQ", 3)]
    assert dead == [b'{"a": 1, "a": 2}', b"3", "\ufffd NaN".encode()]
    process.terminate()
    assert process.wait(AT_LAST) == 0
    said = intake.log.read_text()
    for text in TEXTS["no event"].split("|"):
        assert text in said


def test_a_database_that_is_down_is_waited_for(
    activemq: Broker,
    queue: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Messages stay with the broker, and are acknowledged when they are on disk."""
    inbox = Inbox(f"sqlite:///{tmp_path}/later/inbox.db")
    intake = ActiveMQIntake(inbox, activemq.place, queue)
    thread = threading.Thread(target=intake.run)
    activemq.send(queue, "1")
    thread.start()
    try:
        until(lambda: TEXTS["waits"] in caplog.text)
        assert len(activemq.read(queue)) == 1
        (tmp_path / "later").mkdir()
        until(lambda: not activemq.read(queue))
        assert inbox.end().position == 1
    finally:
        intake.stop()
        thread.join(AT_LAST)
        inbox.close()
