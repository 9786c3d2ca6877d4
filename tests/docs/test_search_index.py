"""`examples/search_index/`: a table and an index are the same, whatever is killed.

The index is the example's stand-in, which keeps to the documented rules of a bulk API.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
import sqlalchemy as sa
from support.waiting import AT_LAST, PATIENT, until

from bench.driver import apply, coordinator, tasks
from participants.processes import Process, free_ports, stopping
from tracing_2pc import ParticipantSink
from tracing_2pc.sinks import participants_of
from tracing_2pc.store import open_log

EXAMPLE = Path(__file__).parents[2] / "examples" / "search_index"

Row = tuple[str, float]


class Running:
    """The programs of the example, as processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index, port = free_ports(2)
        self.database = f"sqlite:///{folder}/products.db"
        self.index = f"http://127.0.0.1:{index}"
        self.url = f"http://127.0.0.1:{port}"
        self.stand_in = self._program("stand_in.py", str(index))
        products = f"{self.index}/products"
        self.service = self._program("service.py", str(port), self.database, products)

    def _program(self, name: str, *arguments: str) -> Process:
        command = [sys.executable, str(EXAMPLE / name), *arguments]
        warning = {"PYTHONWARNINGS": "default"}
        return Process(name, command, self.folder / f"{name}.log", warning)

    def start(self) -> None:
        """Start what does not run."""
        if not self.stand_in.alive():
            self.stand_in.start()
            self.stand_in.until_answers(f"{self.index}/stand-in/bulks", AT_LAST)
        self.service.start()
        self.service.until_answers(f"{self.url}/index/health/ready", AT_LAST)

    def said(self, _: object) -> str:
        """Return the end of what the programs have said."""
        return f"{self.stand_in.tail()}\n{self.service.tail()}"

    def table(self) -> dict[str, float]:
        """What readers see: the latest row of each key."""
        engine = sa.create_engine(self.database)
        with contextlib.closing(engine.raw_connection()) as connection:
            rows = connection.cursor().execute("SELECT id, price FROM products")
            found = dict(rows.fetchall())
        engine.dispose()
        return found

    def documents(self) -> dict[str, float]:
        found = requests.get(f"{self.index}/products/_source", timeout=AT_LAST).json()
        return {id_: document["price"] for id_, document in found.items()}

    def bulks(self) -> list[str]:
        found: list[str] = requests.get(
            f"{self.index}/stand-in/bulks", timeout=AT_LAST
        ).json()
        return found

    def busy(self, times: int) -> None:
        where = f"{self.index}/stand-in/busy?requests={times}"
        assert requests.post(where, timeout=AT_LAST).ok


@pytest.fixture
def running(tmp_path, monkeypatch) -> Iterator[Running]:
    monkeypatch.setenv("TPC_TOKEN", "a-token-that-nobody-asks-for")
    made = Running(tmp_path)
    with stopping(made.service, made.stand_in):
        made.start()
        yield made


def write(running: Running, log: Any, batch: int, *partitions: list[Row]) -> None:
    """Apply one batch to both, as the job's driver does."""
    addresses = {name: f"{running.url}/{name}" for name in ("table", "index")}
    sink = ParticipantSink(addresses, timeout=PATIENT)
    parts = [
        pa.RecordBatch.from_pydict(
            {"id": [i for i, _ in part], "price": [p for _, p in part]}
        )
        for part in partitions
    ]
    apply(coordinator(log, participants_of(sink)), batch, tasks(sink, parts))


@pytest.mark.ci
def test_table_and_index_are_the_same(running):
    """The service is killed between its sends, and the index is busy; at the end each
    key has the value of the latest batch in both. What is repeated late overwrites
    nothing.
    """
    expected: dict[str, float] = {}
    with contextlib.closing(open_log(f"sqlite:///{running.folder}/log.db")) as log:
        for batch in range(6):
            # The same keys again, and some new ones.
            rows = [(f"p{n}", batch + n / 100) for n in range(10 + 5 * batch)]
            expected |= dict(rows)
            running.busy(3)
            before = len(running.bulks())
            write(running, log, batch, rows[::2], rows[1::2])
            if batch % 2:
                until(running.bulks, lambda b, n=before: len(b) > n, tell=running.said)
                running.service.kill()
                running.start()
    assert running.table() == expected
    until(lambda: running.documents() == expected, tell=running.said)
    until(lambda: backlog(running) == 0, tell=running.said)
    headers = {"Content-Type": "application/x-ndjson"}
    first = next(bulk for bulk in running.bulks() if bulk.count("\n") > 2)
    where = f"{running.index}/products/_bulk"
    late = requests.post(where, data=first.encode(), headers=headers, timeout=AT_LAST)
    assert {item["index"]["status"] for item in late.json()["items"]} == {409}
    assert running.documents() == expected
    listed = requests.get(f"{running.url}/index/outbox", timeout=AT_LAST).json()
    assert listed["requests"] == []


def backlog(running: Running) -> float:
    gauges = requests.get(f"{running.url}/index/whoami", timeout=AT_LAST).json()[
        "gauges"
    ]
    return float(gauges["tpc.outbox.backlog"])
