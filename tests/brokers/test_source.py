"""Spark's own source of Kafka, into a ledger and a topic: each message counts once."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.brokers import NEEDS_KAFKA
from support.killed import Crash
from support.programs import ran
from support.waiting import PATIENT, until

from bench.kafka_broker import Broker, Seen
from participants.processes import stopping
from tracing_2pc.core import names
from tracing_2pc.core.states import TransactionState
from tracing_2pc.testing import read_trace_file

pytestmark = [
    pytest.mark.broker,
    NEEDS_KAFKA,
]
WINDOW = 10
Sale = tuple[int, str, int]
"""Second, shop and amount."""

SALES: list[Sale] = [(1000 + n, "abc"[n % 3], n) for n in range(240)]
FIRST, ABORTED, SECOND = SALES[:120], SALES[120:180], SALES[180:]
CLOSING = (9000, "z", 0)
"""So late that all other windows end."""

STATES = TransactionState
KILLS = [
    # failpoint, what was under way then and its state
    ("executor.after_first_prepare:1", "windows.1.1", STATES.ACTIVE),
    ("delivery.between_commits:1", "windows.1.2", STATES.COMMITTING),
]


@pytest.mark.ci
def test_sums_of_windows(broker: Broker, tmp_path: Path) -> None:
    """Through an abort, an open transaction, and two kills of the job.

    Who reads the topic sees what the ledger has, and both have what the source's
    readers sum up themselves. The trace of a message that was read is linked to by the
    transaction that applied it, which is the trace of what was published.
    """
    source, target = broker.topic(), broker.topic()
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "transactional.id": source,
            "transaction.timeout.ms": int(PATIENT * 1000),
        }
    )
    producer.init_transactions(PATIENT)
    produce(producer, source, FIRST)
    producer.commit_transaction(PATIENT)
    produce(producer, source, ABORTED)
    producer.abort_transaction(PATIENT)
    produce(producer, source, [*SECOND, CLOSING])
    with contextlib.ExitStack() as stack:
        about = "brokers/windows_job.py", broker.address, source
        crash = Crash(tmp_path, stack, *about)
        stack.enter_context(stopping(crash.a, crash.b, crash.job))
        trace = tmp_path / "trace.jsonl"
        traced = {"TPC_TRACE_FILE": str(trace)}
        crash.a.start()
        crash.b.start(KAFKA=f"{broker.address} {target}")
        for failpoint, transaction, state in KILLS:
            assert crash.run(**crash.arm(failpoint), **traced) == -9, crash.job.tail()
            assert crash.state(transaction) is state
        assert set(ledger(crash)) < set(totals(FIRST))
        producer.commit_transaction(PATIENT)
        assert crash.run(**traced) == 0, crash.job.tail()
        expected = totals([*FIRST, *SECOND])
        assert ledger(crash) == expected
        until(lambda: topic(broker, target), lambda found: found == expected)
        assert_linked(trace, broker.read(target))


@pytest.mark.nightly
def test_the_demo(tmp_path: Path) -> None:
    """Two days, from a topic to a ledger and a topic, through three kills."""
    command = [sys.executable, "-m", "tracing_2pc", "demo", "--kafka", "--json"]
    command += ["--batches", "2", "--embedded", "sqlite"]
    told = os.environ | {"TMPDIR": str(tmp_path)}
    done = ran(command, cwd=tmp_path, env=told, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["batches"], found["records"], found["kills"]) == (2, 1785, 3)
    assert (found["lost"], found["duplicated"], found["wrong"]) == (0, 0, 0)
    assert (found["split"], found["unfinished"]) == (0, 0)


def assert_linked(trace: Path, published: Sequence[Seen]) -> None:
    """Each window's message is in the trace that links to its last sale of the shop.

    Whoever exports a root, the killed driver or the next one, says the same.
    """
    spans = read_trace_file(trace)
    roots = [span for span in spans if span["name"] == names.TRANSACTION]
    links = {
        r["trace_id"]: {int(ln["trace_id"], 16) for ln in r["links"]} for r in roots
    }
    told = {(root["span_id"], json.dumps(root)) for root in roots}
    assert len(told) == len(links)
    for message in published:
        row = json.loads(message.value)
        inside = range(row["start"], row["start"] + WINDOW)
        last = max(
            s for s, shop, _ in (*FIRST, *SECOND) if s in inside and shop == row["shop"]
        )
        assert last in links[message.headers["traceparent"].split("-")[1]]


def produce(producer: Producer, topic: str, sales: Sequence[Sale]) -> None:
    """Begin a transaction of sales, one partition after the other."""
    producer.begin_transaction()
    for number, sale in enumerate(sales):
        value = json.dumps(dict(zip(("second", "shop", "amount"), sale, strict=True)))
        headers = {"traceparent": f"00-{sale[0]:032x}-{1:016x}-01"}
        producer.produce(topic, value, partition=number % 3, headers=headers)
    producer.flush()


def totals(sales: Sequence[Sale]) -> Counter[tuple[int, str, int]]:
    sums: Counter[tuple[int, str]] = Counter()
    for second, shop, amount in sales:
        sums[second // WINDOW * WINDOW, shop] += amount
    return Counter((start, shop, total) for (start, shop), total in sums.items())


def ledger(crash: Crash) -> Counter[tuple[int, str, int]]:
    with contextlib.closing(sqlite3.connect(crash.a.database)) as file:
        return Counter(file.execute("SELECT start, shop, total FROM numbers"))


def topic(broker: Broker, name: str) -> Counter[tuple[int, str, int]]:
    rows = (json.loads(seen.value) for seen in broker.read(name))
    return Counter((row["start"], row["shop"], row["total"]) for row in rows)
