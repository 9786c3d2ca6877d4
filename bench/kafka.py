"""What exactly once costs at a Kafka broker: the relay beside a plain producer.

`python -m bench.kafka [ROWS] [ROUNDS]`: `README.md` says with which settings. One time
is from the first request of a batch until a reader of what is committed has its last
record: prepare, commit, publication. The other is from the first record that an
idempotent producer is given, encoded before, until the same reader has the last one.
It prints each pair and the median of their ratios.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from tracing_2pc.kafka import KafkaRelay
from tracing_2pc.outbox import Outbox

if TYPE_CHECKING:
    from bench.kafka_broker import Broker

PARTITIONS = 3


@contextlib.contextmanager
def reading(broker: Broker, topic: str) -> Iterator[Callable[[int], None]]:
    """Give what waits until a reader has so many more records."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    places = [TopicPartition(topic, n, OFFSET_END) for n in range(PARTITIONS)]
    consumer.assign(places)
    consumer.poll(1)
    from support.waiting import PATIENT

    def wait(rows: int) -> None:
        while rows:
            rows -= len(consumer.consume(rows, PATIENT))

    with contextlib.closing(consumer):
        yield wait


def main(rows: int = 10_000, rounds: int = 7) -> None:
    from support.branches import records
    from support.kinds import sqlite_url
    from support.participant import World, keep

    from bench.kafka_broker import running

    branch = records(id=pa.array(range(rows)), text=["x" * 80] * rows)
    bodies = [f'{{"id": {n}, "text": "{"x" * 80}"}}'.encode() for n in range(rows)]
    ratios = []
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as broker:
        topic = broker.topic(PARTITIONS)
        relay = KafkaRelay(broker.address, topic=topic, key="id")
        outbox = Outbox(sqlite_url(Path(folder)), relay)
        world = World(outbox, lambda: 0)
        plain = Producer(
            {
                "bootstrap.servers": broker.address,
                "enable.idempotence": True,
                "linger.ms": 5,
            }
        )
        with reading(broker, topic) as wait:
            for number in range(rounds + 1):
                began = time.perf_counter()
                keep(world, f"bench.{number}.1", branch)
                wait(rows)
                ours = time.perf_counter() - began
                began = time.perf_counter()
                for row, body in enumerate(bodies):
                    plain.produce(topic, body, str(row))
                    if row % 1_000 == 0:
                        plain.poll(0)
                plain.flush()
                wait(rows)
                theirs = time.perf_counter() - began
                if number:  # the first one opens connections
                    ratios.append(ours / theirs)
                    print(f"{ours:.3f} s, {theirs:.3f} s: {ratios[-1]:.2f}")
        outbox.close()
    print(f"{rows} rows: {statistics.median(ratios):.2f} times a plain producer")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
