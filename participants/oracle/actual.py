"""What is there: the ledger's public view, and what the partner received."""

from __future__ import annotations

import http.client
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from .expected import Key, Values

Rows: TypeAlias = list[tuple[Key, Values]]

LEDGER: Final = (
    "SELECT day, origin, carrier, flights, cancelled, dep_delay_sum, arr_delay_sum "
    "FROM flights_daily"
)
REJECTED: Final = "SELECT record FROM rejected WHERE participant = 'ledger'"
MEASURES: Final = ("flights", "cancelled", "dep_delay_sum", "arr_delay_sum")
SETTLE: Final = 1.0
"""Nothing new for so many seconds after the last expected one: no more will come."""


def ledger_rows(url: str) -> Rows:
    """Read the ledger's view; none when it was never made."""
    return [
        ((str(day), str(origin), str(carrier)), tuple(int(v) for v in values))
        for day, origin, carrier, *values in _select(url, "flights_daily", LEDGER)
    ]


def rejected_rows(url: str) -> Rows:
    """Read the ledger's rows in the table of rejected ones, as the ledger has them."""
    records = [json.loads(record) for (record,) in _select(url, "rejected", REJECTED)]
    return [
        (
            (record["day"], record["origin"], record["carrier"]),
            tuple(record[name] for name in MEASURES),
        )
        for record in records
    ]


def added_up(rows: Rows) -> Rows:
    """Add the rows of one key up."""
    sums: dict[Key, list[Any]] = {}
    for key, values in rows:
        of_key = sums.setdefault(key, [0] * len(values))
        of_key[:] = map(sum, zip(of_key, values, strict=True))
    return [(key, tuple(values)) for key, values in sums.items()]


def _select(url: str, table: str, query: str) -> list[tuple[Any, ...]]:
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///")).resolve()
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as file:
            if not file.execute(
                "SELECT 1 FROM sqlite_master WHERE name = ?", [table]
            ).fetchone():
                return []
            return file.execute(query).fetchall()
    import psycopg

    with psycopg.connect(url.replace("postgresql+psycopg:", "postgresql:")) as server:
        try:
            return server.execute(query).fetchall()
        except psycopg.errors.UndefinedTable:
            return []


def deliveries(received: list[dict[str, Any]]) -> Rows:
    """Read notifications by content: two keys for one flight are two deliveries."""
    values = ("origin", "dest", "sched_dep_time", "reason", "arr_delay")
    return [
        (
            tuple(str(body.get(name)) for name in ("day", "carrier", "flight")),
            tuple(body.get(name) for name in values),
        )
        for body in (item["body"] for item in received)
    ]


def drained(
    partner: str, wanted: int, timeout: float, stall: float
) -> tuple[list[dict[str, Any]], int]:
    """Wait until the partner has what it should, or nothing moves any more.

    Returns:
        The notifications, and the number of requests it got.
    """
    started = changed = time.monotonic()
    last_requests = -1
    while True:
        received, requests = received_by(partner)
        now = time.monotonic()
        if requests != last_requests:
            last_requests, changed = requests, now
        quiet = now - changed
        patience = SETTLE if len(received) >= wanted else stall
        if quiet >= patience or now - started >= timeout:
            return received, requests
        time.sleep(min(0.2, patience))


def received_by(partner: str) -> tuple[list[dict[str, Any]], int]:
    """Read all pages of what the partner received, and the number of requests."""
    if is_topic(partner):
        return received_in_topic(partner)
    partner = partner.removesuffix("/notifications")
    notifications: list[dict[str, Any]] = []
    after = 0
    while True:
        page = _get(partner, f"/notifications?after={after}")
        notifications += page["notifications"]
        if page["next"] is None:
            return notifications, page["requests"]
        after = page["next"]


def is_topic(partner: str) -> bool:
    """Whether the partner is a topic, and no service."""
    return partner.startswith("kafka://")


def received_in_topic(url: str) -> tuple[list[dict[str, Any]], int]:
    """Read what a topic shows, and the number of records that are in it."""
    committed = _values(url, "read_committed")
    everything = _values(url, "read_uncommitted")
    return [{"body": json.loads(value)} for value in committed], len(everything)


def _values(url: str, isolation: str) -> list[bytes]:
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    servers, topic = url.removeprefix("kafka://").split("/")
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    with closing(consumer):
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        values, left = [], set(partitions)
        while left:
            if (message := consumer.poll(10)) is None:
                raise RuntimeError(f"{url} does not answer")
            if (error := message.error()) is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise KafkaException(error)
        return values


def _get(base: str, path: str) -> Any:
    parts = urlsplit(base)
    with closing(
        http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    ) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{base}{path} answered {answer.status}")
        return json.load(answer)
