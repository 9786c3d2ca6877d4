"""The demo's Kafka: a broker of one node, and the flights in a topic of it."""

from __future__ import annotations

import csv
import gzip
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from .flights import SCHEMA, file_of
from .processes import Process, free_ports
from .serve import ROOT

FLIGHTS: Final = "flights"
NOTICES: Final = "notices"
"""The topic that the job reads, and the one that the notifier publishes to."""

START: Final = ROOT / "tools" / "kafka" / "start"
JARS: Final = Path(os.environ.get("TPC_KAFKA", ROOT / ".cache" / "kafka"))
SOURCE_JARS: Final = JARS / "spark"


class Broker(Process):
    """A broker in a folder, which is gone with it.

    Raises:
        RuntimeError: its jars are not there.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        if not (START.exists() and any(SOURCE_JARS.glob("*.jar"))):
            raise RuntimeError("--kafka needs a broker: run `make kafka`, in a clone")
        ports = free_ports(2)
        super().__init__("broker", [str(START), str(folder), *map(str, ports)], log)
        self.servers = f"127.0.0.1:{ports[0]}"
        self.url = f"kafka://{self.servers}/{NOTICES}"

    def stop(self, timeout: float = 30.0) -> int | None:
        """Kill it: what it holds is not needed any more."""
        self.kill()
        return None

    def launch(self) -> None:
        """Start it without waiting; `ready` waits."""
        self.start()

    def ready(self) -> None:
        """Wait until it answers, and make both topics.

        Raises:
            RuntimeError: it ended, or did not answer in 120 s; with the end of its log.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        deadline = time.monotonic() + 120
        while self.alive() and time.monotonic() < deadline:
            try:
                admin.list_topics(timeout=2)
            except KafkaException:
                continue
            topics = [NewTopic(FLIGHTS, 3), NewTopic(NOTICES, 3)]
            for made in admin.create_topics(topics).values():
                made.result(60)
            return
        raise RuntimeError(f"{self.name} did not start:\n{self.tail()}")

    def feed(self, days: Iterable[int]) -> None:
        """Put the days' flights into the topic, each day in one transaction.

        The first day is sent twice: its first transaction is aborted.
        """
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self.servers, "transactional.id": "airports"}
        )
        producer.init_transactions(60)
        first, *others = days
        for number, day in enumerate((first, first, *others)):
            producer.begin_transaction()
            for flight in _flights_of(day):
                producer.produce(FLIGHTS, json.dumps(flight), flight["origin"])
                producer.poll(0)
            producer.flush()
            end = producer.commit_transaction if number else producer.abort_transaction
            end(60)


def _flights_of(day: int) -> Iterator[Mapping[str, Any]]:
    numbers = {
        name for name, kind in map(str.split, SCHEMA.split(", ")) if kind == "int"
    }
    with gzip.open(file_of(day), "rt", newline="") as file:
        for row in csv.DictReader(file):
            given = {name: text for name, text in row.items() if text}
            yield {n: int(t) if n in numbers else t for n, t in given.items()}
