"""Topics and queues without a service: who makes them, who sends, and when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka.admin import AdminClient
from support.brokers import NEEDS_KAFKA
from support.nats import TOKEN
from support.transports import Served
from support.waiting import AT_LAST, PATIENT, until

from bench.kafka_broker import Broker, running
from brokers.publishing import Broker as AnyBroker
from participants.processes import Process, stopping
from tracing_2pc import TableSink, TopicSink, write
from tracing_2pc.cli import main
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.settings import Settings
from tracing_2pc.operations.watch import watch
from tracing_2pc.store import open_log

pytestmark = [pytest.mark.broker, NEEDS_KAFKA]

ROWS = [{"id": 1, "city": "Bern"}, {"id": 2, "city": "Zürich"}]


def database(folder: Path) -> str:
    return f"sqlite:///{folder}/shop.db"


def log(folder: Path) -> str:
    return f"sqlite:///{folder}/log.db"


def kafka_sink(broker: AnyBroker, topic: str, folder: Path) -> TopicSink:
    url = f"kafka://{broker.address}/{topic}"
    return TopicSink(url, outbox=database(folder), key="id")


def write_here(sinks: Sequence[Any], folder: Path, batch: int) -> bool:
    return write(sinks, ROWS, application="orders", batch=batch, log=log(folder))


def settings_file(sink: TopicSink, folder: Path) -> list[str]:
    """Return the options by which a command finds it."""
    ((name, participant),) = sink.participants.items()
    file = folder / "tpc.toml"
    url = participant.inner.url
    file.write_text(f'log = "{log(folder)}"\nparticipants = {{ {name} = "{url}" }}\n')
    return ["--config", str(file)]


def free_the_lease(folder: Path) -> None:
    """As time does, after a kill."""
    engine = sa.create_engine(database(folder))
    tables = [n for n in sa.inspect(engine).get_table_names() if "_tpc_sender" in n]
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {tables[0]} SET until = 0")
    engine.dispose()


def killed_before_it_sends(broker: AnyBroker, topic: str, folder: Path) -> None:
    """Run a script that ends after its commit, and before the broker has anything."""
    script = f"""
        from tracing_2pc import TopicSink, write
        sink = TopicSink("kafka://{broker.address}/{topic}",
                         outbox="{database(folder)}", key="id")
        write(sink, {ROWS!r}, application="orders", batch=0, log="{log(folder)}")
    """
    armed = {
        "TPC_FAILPOINT": "relay.before_publish",
        "TPC_FAILPOINT_FILE": str(folder / "fired"),
    }
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | armed,
        start_new_session=True,
        timeout=AT_LAST,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL


def test_a_service_sends_from_its_start(broker, tmp_path, monkeypatch):
    """`tracing-2pc serve`, which nobody has asked anything: what a job has left."""
    monkeypatch.setenv("TPC_TOKEN", TOKEN)
    killed_before_it_sends(broker, "sent-by-a-service", tmp_path)
    free_the_lease(tmp_path)
    sink = kafka_sink(broker, "sent-by-a-service", tmp_path)
    (participant,) = sink.participants.values()
    service = Served("http", participant.inner.url, tmp_path)
    with stopping(service):
        Process.start(service)
        until(
            lambda: len(broker.read("sent-by-a-service")),
            lambda count: count == len(ROWS),
            tell=lambda _: service.tail(),
        )
        assert service.stop(PATIENT) == 0


def test_a_service_makes_its_topic(broker, tmp_path, monkeypatch):
    """As the start of a job does, before anything was asked."""
    monkeypatch.setenv("TPC_TOKEN", TOKEN)
    sink = kafka_sink(broker, "made-by-a-service", tmp_path)
    (participant,) = sink.participants.values()
    service = Served("http", participant.inner.url, tmp_path)
    with stopping(service):
        service.start()
        admin = AdminClient({"bootstrap.servers": broker.address})
        assert "made-by-a-service" in admin.list_topics(timeout=PATIENT).topics


def test_a_script_writes_a_table_and_a_topic(broker: Broker, tmp_path: Path) -> None:
    """The topic is made; all is sent when it returns; a replay sends nothing."""
    sinks = [
        TableSink(database(tmp_path), "orders", key="id"),
        kafka_sink(broker, "made-by-the-job", tmp_path),
    ]
    for batch in (0, 1):
        assert write_here(sinks, tmp_path, batch)
    assert not write_here(sinks, tmp_path, 1)
    seen = broker.read("made-by-the-job")
    assert sorted(record.key for record in seen) == [b"1", b"1", b"2", b"2"]
    assert {record.headers["tpc-transaction"] for record in seen} == {
        "orders.0.1",
        "orders.1.1",
    }


@pytest.mark.ci
def test_a_deletion_reaches_a_table_and_a_topic(broker: Broker, tmp_path: Path) -> None:
    """Of one column; the topic that the job makes is compacted."""
    topic = "made-for-tombstones"
    url = f"kafka://{broker.address}/{topic}"
    sinks = [
        TableSink(database(tmp_path), "orders", key="id", deleted="gone"),
        TopicSink(url, outbox=database(tmp_path), key="id", tombstone="gone"),
    ]
    for batch, gone in enumerate((False, True)):
        rows = [{"id": 1, "gone": gone}, {"id": 2 + batch, "gone": None}]
        assert write(sinks, rows, application="orders", batch=batch, log=log(tmp_path))
    values = sorted((one.key, one.value) for one in broker.read(topic) if one.value)
    assert values == [(key, b'{"id": %b}' % key) for key in (b"1", b"2", b"3")]
    assert [one.key for one in broker.read(topic) if one.value is None] == [b"1"]
    engine = sa.create_engine(database(tmp_path))
    with engine.connect() as connection:
        shown = connection.exec_driver_sql("SELECT id FROM orders ORDER BY id")
        assert shown.scalars().all() == [2, 3]
    engine.dispose()


@pytest.mark.ci
def test_a_record_that_is_too_large_is_rejected(broker: Broker, tmp_path: Path) -> None:
    """By what its topic takes; the others of the batch are sent, and so is the next."""
    topic = broker.topic(max_message_bytes="10000")
    table = TableSink(database(tmp_path), "rejected")
    sinks = [kafka_sink(broker, topic, tmp_path), table]
    for batch, size in enumerate((20_000, 30)):
        rows = [{"id": 2 * batch + n, "note": "x" * n * size} for n in (0, 1)]
        about = {"application": "orders", "batch": batch, "log": log(tmp_path)}
        assert write(sinks, rows, rejects="rejected", **about)
    sent = sorted(json.loads(record.value)["id"] for record in broker.read(topic))
    assert sent == [0, 2, 3]
    engine = sa.create_engine(database(tmp_path))
    with engine.connect() as connection:
        query = 'SELECT participant, "column", record, reason FROM rejected'
        ((participant, column, record, reason),) = connection.exec_driver_sql(query)
    engine.dispose()
    assert (participant, column, json.loads(record)["id"]) == (topic, "note", 1)
    assert "takes 10000" in reason


@pytest.mark.ci
def test_what_a_killed_job_has_committed_is_sent_by_recover(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is unfinished, and the job never starts again."""
    topic = broker.topic()
    killed_before_it_sends(broker, topic, tmp_path)
    sink = kafka_sink(broker, topic, tmp_path)
    options = settings_file(sink, tmp_path)
    assert main(["ls", *options]) == 0
    assert "0 unfinished" in capsys.readouterr().out
    assert broker.read(topic) == []
    free_the_lease(tmp_path)
    assert main(["recover", *options]) == 0
    assert len(broker.read(topic)) == len(ROWS)


@pytest.mark.ci
def test_a_watcher_that_recovers_sends_too(broker: Broker, tmp_path: Path) -> None:
    """One that only watches does not."""
    topic = broker.topic()
    killed_before_it_sends(broker, topic, tmp_path)
    sink = kafka_sink(broker, topic, tmp_path)
    settings_file(sink, tmp_path)
    settings = Settings.load(tmp_path / "tpc.toml")
    free_the_lease(tmp_path)
    opened = open_log(log(tmp_path))
    for recovers in (False, True):
        watch(opened, settings, bool, recover=recovers, once=True)
        assert len(broker.read(topic)) == recovers * len(ROWS)
    opened.close()


@pytest.mark.ci
def test_an_outbox_belongs_to_one_cluster(broker: Broker, tmp_path: Path) -> None:
    """Another job by the same address of an outbox is refused before it writes."""
    topic = broker.topic()
    assert write_here([kafka_sink(broker, topic, tmp_path)], tmp_path, 0)
    folder = tmp_path / "kafka"
    folder.mkdir()
    with running(folder) as other:
        other.topic(name=topic)
        with pytest.raises(ConfigurationError, match="belongs to kafka:"):
            write_here([kafka_sink(other, topic, tmp_path)], tmp_path, 1)
        assert other.read(topic) == []


@pytest.mark.ci
def test_a_queue_of_activemq_is_written_too(activemq: Any, tmp_path: Path) -> None:
    queue = activemq.topic()
    address = activemq.address.removeprefix("activemq:")
    sink = TopicSink(
        f"activemq://{address}/{queue}", outbox=database(tmp_path), key="id"
    )
    assert write_here([sink], tmp_path, 0)
    assert len(activemq.read(queue)) == len(ROWS)
