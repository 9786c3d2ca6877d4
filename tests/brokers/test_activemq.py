"""A relay and an intake at a real ActiveMQ."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.activemq import Broker
from support.branches import ONE, TRACE, Branch, orders, records
from support.brokers import NEEDS_ACTIVEMQ
from support.cable import Cable, Link
from support.kinds import sqlite_url
from support.participant import World, end, keep, outgoing_of
from support.relay import listed, order, publisher
from support.texts import texts
from support.waiting import AT_LAST, PATIENT, SOON, until

from brokers.publish import relay_of
from brokers.publishing import assert_once, drain, outbox, publish, publishing
from participants.processes import free_ports
from tracing_2pc.activemq import ActiveMQIntake, ActiveMQRelay
from tracing_2pc.activemq.connection import BrokerError, Brokers
from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.model import Carrier
from tracing_2pc.inbox import Inbox
from tracing_2pc.outbox.records import Record
from tracing_2pc.outbox.relay import Message, Position, Publication

pytestmark = [
    pytest.mark.broker,
    NEEDS_ACTIVEMQ,
]
TEXTS = texts("activemq")
SECRET = "secret1"
MANY = 50_000


@pytest.fixture
def queue(activemq: Broker) -> str:
    return activemq.topic()


@pytest.fixture
def relay(activemq: Broker, queue: str) -> Iterator[ActiveMQRelay]:
    dead = f"127.0.0.1:{free_ports(1)[0]}"
    addresses = f"{dead},{activemq.place}"
    made = ActiveMQRelay(addresses, queue=queue, key="id", timeout=SOON)
    yield made
    made.close()


@pytest.fixture
def world(relay: ActiveMQRelay, tmp_path: Path) -> Iterator[World]:
    made = outbox(sqlite_url(tmp_path), relay)
    yield made
    end(made.resource)


@pytest.mark.ci
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


@pytest.mark.ci
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


@pytest.mark.ci
def test_the_token_survives_a_hundred_takeovers(relay: ActiveMQRelay) -> None:
    """However often the broker gives it out again: it is no dead letter."""
    position = Position(7, "orders.7.1", "digest")
    assert relay.take_over("a") is None
    relay.publish(Publication(position, None, Carrier()))
    for _ in range(100):
        assert relay.take_over("a") == position
    relay.publish(Publication(position._replace(number=8), None, Carrier()))


@pytest.mark.ci
def test_a_token_that_a_transaction_takes_out_is_not_missing(
    activemq: Broker, relay: ActiveMQRelay
) -> None:
    """Nobody sees it until the broker has ended that, which may be after the lock."""
    position = Position(7, "orders.7.1", "digest")
    assert relay.take_over("b") is None
    relay.publish(Publication(position, None, Carrier()))
    relay.let_go()
    killed = Brokers(activemq.place).connect()
    killed.subscribe("tpc.b", "tokens", 1)
    killed.wait(lambda: killed._delivered.get("tokens"), "it does not come")
    killed.acknowledge(killed.delivered("tokens")[0], killed.begin())
    for _ in range(2):
        with pytest.raises(BrokerError, match=TEXTS["taken out"]):
            relay.take_over("b", must_exist=True)
    killed.close()
    assert until(lambda: taken_over(relay)) == position


def taken_over(relay: ActiveMQRelay, journal: str = "b") -> Position | None:
    with contextlib.suppress(BrokerError):
        return relay.take_over(journal, must_exist=True)
    return None


@pytest.mark.ci
def test_an_error_in_the_middle_is_not_taken_for_a_lost_token(
    relay: ActiveMQRelay,
) -> None:
    """Although the broker has much to read before it learns that all is over."""
    position = Position(1, "orders.1.1", "digest")
    assert relay.take_over("c") is None
    relay.publish(Publication(position, None, Carrier()))

    def failing() -> Iterator[Message]:
        yield from [Message("large", None, "x" * 1_000)] * 3_000
        raise LookupError

    for _ in range(3):
        again = Publication(position._replace(number=2), None, Carrier(), failing())
        with pytest.raises(LookupError):
            relay.publish(again)
        assert until(lambda: taken_over(relay, "c")) == position


@pytest.mark.ci
def test_what_is_refused_in_a_transaction_ends_it(
    activemq: Broker, queue: str, relay: ActiveMQRelay
) -> None:
    """Also where the broker itself would commit the rest."""
    position = Position(1, "orders.1.1", "digest")
    assert relay.take_over("d") is None
    odd = Message(queue, None, "1", (("amq-msg-type", "zzz"),))
    messages = [odd, Message(queue, None, "2")]
    with pytest.raises(BrokerError):
        relay.publish(Publication(position, None, Carrier(), messages))
    assert relay.take_over("d") is None
    assert activemq.read(queue) == []


@pytest.mark.parametrize(
    "headers",
    [["expires"], ["amq-msg-type"], ["JMSXGroupSeq"], ["tpc-key"], ["a:b"], ["a\n"]],
)
def test_a_header_that_could_lose_a_message(headers: list[str]) -> None:
    with pytest.raises(ConfigurationError):
        ActiveMQRelay("127.0.0.1:1", queue="q", headers=headers)


@pytest.mark.parametrize(
    ("queue", "text"),
    [
        ("a,b", ""),
        ("a.>", ""),
        ("tpc.x", ""),
        ("", ""),
        ("q", ":" * 6_000),
        ("q", "\0"),
    ],
)
def test_what_cannot_be_sent_is_a_vote_to_abort(queue: str, text: str) -> None:
    relay = ActiveMQRelay("127.0.0.1:1", queue=lambda _: queue, headers=["note"])
    with pytest.raises(RefusalError):
        list(relay.check([Record({"note": text}, json.dumps({"note": text}))]))


@pytest.mark.ci
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
    journal = outgoing_of(world).journal()
    tokens = f"tpc.{journal}"
    if found == "two tokens":
        (token,) = activemq.read(tokens)
        activemq.send(tokens, token.value.decode())
    else:
        list(activemq.each(tokens, 1))
    process = publisher(world, relay, PATIENT)
    until(lambda: process.turn() and world.resource.gauges()["tpc.outbox.stopped"])
    ((waiting, why),) = listed(world)
    assert waiting == "orders.2.1"
    assert TEXTS[found] in why
    world.resource.send_again(order("orders.2.1"))
    while process.turn() == 0.0:
        pass
    process.stop()
    assert_once(activemq.read(queue), 1, 2)
    assert len(activemq.read(tokens)) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key store, and its certificate: one of all tests, as Java reads it once."""
    folder = tmp_path_factory.mktemp("certificate")
    store, ca = folder / "store", folder / "ca.pem"
    kept = ["-keystore", store, "-storepass", SECRET, "-alias", "broker"]
    made = ["-genkeypair", "-keyalg", "RSA", "-dname", "CN=broker"]
    keytool = Path(os.environ["JAVA_HOME"]) / "bin" / "keytool"
    subprocess.run([keytool, *made, "-ext", "san=ip:127.0.0.1", *kept], check=True)
    subprocess.run([keytool, "-exportcert", "-rfc", "-file", ca, *kept], check=True)
    return store, ca


@pytest.fixture
def guarded(
    activemq: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    certificate: tuple[Path, Path],
) -> Iterator[tuple[str, dict[str, str]]]:
    """A broker that asks for TLS and a login; `relay` may do what the page says.

    And what a relay is told of it.
    """
    monkeypatch.setenv("BROKER_PASSWORD", SECRET)
    jvm = activemq.gateway().jvm
    store, ca = certificate
    for name, value in (("keyStore", store), ("keyStorePassword", SECRET)):
        jvm.java.lang.System.setProperty(f"javax.net.ssl.{name}", str(value))
    security = jvm.org.apache.activemq.security
    user = security.AuthenticationUser("relay", SECRET, "relays")
    entries = []
    for name, rights in (("tpc.>", "read write admin"), ("guarded.>", "write admin")):
        entry = security.AuthorizationEntry()
        entry.setQueue(name)
        for right in rights.split():
            getattr(entry, f"set{right.title()}")("relays")
        entries.append(entry)
    broker = jvm.org.apache.activemq.broker.BrokerService()
    broker.setBrokerName("guarded")
    broker.setUseJmx(False)
    broker.setDataDirectory(str(tmp_path / "data"))
    rights = security.DefaultAuthorizationMap(entries)
    plugins = activemq.gateway().new_array(
        jvm.org.apache.activemq.broker.BrokerPlugin, 2
    )
    plugins[0] = security.SimpleAuthenticationPlugin([user])
    plugins[1] = security.AuthorizationPlugin(rights)
    broker.setPlugins(plugins)
    (port,) = free_ports(1)
    broker.addConnector(f"stomp+ssl://127.0.0.1:{port}")
    broker.start()
    about = {"user": "relay", "password": "env:BROKER_PASSWORD", "ca": str(ca)}
    yield f"127.0.0.1:{port}", about
    broker.stop()


@pytest.mark.nightly
def test_what_the_broker_refuses_holds_back_its_application_only(
    guarded: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    """By TLS, with a login, and the rights that the manual names and no others."""
    address, login = guarded
    relay = ActiveMQRelay(address, queue=lambda record: str(record["queue"]), **login)
    world = outbox(sqlite_url(tmp_path), relay)
    keep(world, "returns.1.1", records(queue=["other"]))
    keep(world, "orders.1.1", records(queue=["guarded.a"]))
    process = publisher(world, relay, PATIENT)
    until(lambda: process.turn() and world.resource.gauges()["tpc.relay.refused"])
    until(lambda: process.turn() and world.resource.gauges()["tpc.outbox.backlog"] == 1)
    ((waiting, why),) = listed(world)
    assert waiting == "returns.1.1"
    assert TEXTS["no right"] in why
    process.stop()
    end(world.resource)
    for changed in ({"ca": None}, {"user": "nobody"}):
        with pytest.raises(BrokerError):
            ActiveMQRelay(address, queue="q", **{**login, **changed}).take_over("a")


FAULTS = {
    "cut before the commit": (b"COMMIT\n", Link.cut),
    "the answer is lost": (b"COMMIT\n", Link.lose_answer),
}
ENDLESS = {
    "silent": (b"COMMIT\n", Link.be_silent),
    "reads no further": (b"SEND\n", Link.read_no_further),
}
"""Noticed when heart-beats, or room to send, have not come for 30 s."""


@pytest.fixture
def cable(activemq: Broker) -> Iterator[Cable]:
    with Cable(activemq.place).laid() as laid:
        yield laid


@pytest.mark.parametrize(
    ("sign", "fault"),
    [
        *(
            pytest.param(*f, id=name, marks=pytest.mark.ci)
            for name, f in FAULTS.items()
        ),
        *(
            pytest.param(*f, id=name, marks=pytest.mark.nightly)
            for name, f in ENDLESS.items()
        ),
    ],
)
def test_a_cable_that_fails_costs_nothing(
    activemq: Broker,
    queue: str,
    cable: Cable,
    tmp_path: Path,
    sign: bytes,
    fault: Callable[[Link], None],
) -> None:
    """Each message is there once, more of them than a socket keeps."""
    relay = ActiveMQRelay(cable.place, queue=queue)
    world = outbox(sqlite_url(tmp_path), relay)
    keep(world, "orders.1.1", ONE)
    publish(activemq, queue, tmp_path)
    keep(world, "orders.2.1", records(id=[*range(100)], note=["x" * 100_000] * 100))
    cable.fail(sign, fault)
    process = publisher(world, relay, PATIENT)
    drain(world, process)
    assert cable.failed.is_set()
    process.stop()
    relay.close()
    end(world.resource)
    keys = [one.headers["tpc-key"] for one in activemq.each(queue, 103)]
    assert len({*keys}) == 103
    assert not activemq.read(queue)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", [Link.be_silent, Link.read_no_further])
def test_a_cable_that_fails_behind_tls(
    guarded: tuple[str, dict[str, str]],
    tmp_path: Path,
    fault: Callable[[Link], None],
) -> None:
    """Nobody waits for it without end, and the next connection is a good one."""
    address, login = guarded
    with Cable(address).laid() as cable:
        relay = ActiveMQRelay(cable.place, queue="guarded.a", **login)
        world = outbox(sqlite_url(tmp_path), relay)
        process = publisher(world, relay, PATIENT)
        keep(world, "orders.1.1", ONE)
        drain(world, process)
        keep(world, "orders.2.1", records(id=[*range(100)], note=["x" * 100_000] * 100))
        cable.fail(b"", fault)
        drain(world, process)
        assert cable.failed.is_set()
        process.stop()
        relay.close()
        end(world.resource)


@pytest.mark.nightly
def test_a_slave_takes_over(activemq: Broker, queue: str, tmp_path: Path) -> None:
    """With the store of a master that dies: each record is there once."""
    first, second = (Broker(tmp_path / "shared") for _ in range(2))
    first.start()
    second.start(wait=False)
    both = f"{first.address},{second.place}"
    world = outbox(sqlite_url(tmp_path), relay_of(both, queue))
    try:
        keep(world, "orders.1.1", ONE)
        publish(both, queue, tmp_path)
        keep(world, "orders.2.1", ONE)
        first.kill()
        until(second.answers)
        publish(both, queue, tmp_path)
        assert_once(second.read(queue), 1, 2)
    finally:
        for broker in (first, second):
            broker.kill()
        end(world.resource)


@pytest.mark.nightly
def test_a_large_transaction(activemq: Broker, queue: str, tmp_path: Path) -> None:
    """Is one transaction of the broker, and all of it is there."""
    world = outbox(sqlite_url(tmp_path), relay_of(activemq.address, queue))
    keep(world, "orders.1.1", Branch(orders(*range(MANY)), MANY))
    publish(activemq, queue, tmp_path)
    seen = [json.loads(one.value)["id"] for one in activemq.each(queue, MANY)]
    assert seen == list(range(MANY))
    end(world.resource)


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
@pytest.mark.ci
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


@pytest.mark.ci
def test_what_is_no_event_is_in_nobodys_way(
    activemq: Broker, queue: str, intake: Intake
) -> None:
    """It goes to the dead-letter queue, and the log says why; the rest is taken."""
    activemq.send(queue, "1", order_id="one", **TRACE)
    activemq.send(queue, '{"a": 1, "a": 2}', order_id="two")
    activemq.send(queue, "3")
    activemq.send(queue, "1e-99999999999999999999", order_id="three")
    activemq.send(queue, "4", "\ufffd NaN", order_id="four")
    activemq.send(queue, "5", order_id="five")
    process = intake.start()
    until(lambda: not activemq.read(queue))
    assert intake.bodies() == ["1", "4", "5"]
    (first, *_) = intake.inbox.read(intake.inbox.start(), intake.inbox.end())
    assert first.producer == queue
    assert first.carrier["traceparent"] == TRACE["traceparent"]
    dead = [one.value for one in activemq.each("ActiveMQ.DLQ", 4)]
    large = b"1e-99999999999999999999"
    assert dead == [b'{"a": 1, "a": 2}', b"3", large, "\ufffd NaN".encode()]
    process.terminate()
    assert process.wait(AT_LAST) == 0
    said = intake.log.read_text()
    for text in TEXTS["no event"].split("|"):
        assert text in said


@pytest.mark.ci
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
        assert caplog.text.count(TEXTS["waits"]) == 1  # however often it was asked
    finally:
        intake.stop()
        thread.join(AT_LAST)
        inbox.close()
