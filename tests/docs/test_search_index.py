"""`examples/search_index/`: a table and an index are the same, whatever is killed.

The index is the example's stand-in, which keeps to the documented rules of a bulk API.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
import sqlalchemy as sa

from bench.driver import apply, coordinator, tasks
from participants.processes import answers, free_ports
from tracing_2pc import ParticipantSink
from tracing_2pc.sinks import participants_of
from tracing_2pc.store import open_log

EXAMPLE = Path(__file__).parents[2] / "examples" / "search_index"

Row = tuple[str, float]


class Running:
    """The programs of the example, as processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index, self._port = free_ports(2)
        self.database = f"sqlite:///{folder}/products.db"
        self.index = f"http://127.0.0.1:{index}"
        self.url = f"http://127.0.0.1:{self._port}"
        self._stand_in = self._started("stand_in.py", str(index))
        self.wait(lambda: answers(f"{self.index}/stand-in/bulks"))
        self.start()

    def _started(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{program}.log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, EXAMPLE / program, *arguments],
                env={**os.environ, "PYTHONWARNINGS": "default"},
                stdout=output,
                stderr=output,
            )

    def start(self) -> None:
        arguments = (str(self._port), self.database, f"{self.index}/products")
        self._service = self._started("service.py", *arguments)
        self.wait(lambda: answers(f"{self.url}/index/health/ready"))

    def kill(self) -> None:
        self._service.kill()
        self._service.wait()

    def wait(self, holds: Callable[[], bool]) -> None:
        until = time.monotonic() + 180
        while not holds():
            logs = [log.read_text()[-2000:] for log in self.folder.glob("*.log")]
            assert time.monotonic() < until, logs
            time.sleep(0.05)

    def table(self) -> dict[str, float]:
        """What readers see: the latest row of each key."""
        engine = sa.create_engine(self.database)
        with contextlib.closing(engine.raw_connection()) as connection:
            rows = connection.cursor().execute("SELECT id, price FROM products")
            found = dict(rows.fetchall())
        engine.dispose()
        return found

    def documents(self) -> dict[str, float]:
        found = requests.get(f"{self.index}/products/_source", timeout=60).json()
        return {id_: document["price"] for id_, document in found.items()}

    def bulks(self) -> list[str]:
        found: list[str] = requests.get(
            f"{self.index}/stand-in/bulks", timeout=60
        ).json()
        return found

    def busy(self, times: int) -> None:
        where = f"{self.index}/stand-in/busy?requests={times}"
        assert requests.post(where, timeout=60).ok

    def stop(self) -> None:
        for process in (self._service, self._stand_in):
            process.kill()
            process.wait()


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv("TPC_TOKEN", "a-token-that-nobody-asks-for")
    made = Running(tmp_path)
    yield made
    made.stop()


def write(running: Running, log: Any, batch: int, *partitions: list[Row]) -> None:
    """Apply one batch to both, as the job's driver does."""
    addresses = {name: f"{running.url}/{name}" for name in ("table", "index")}
    sink = ParticipantSink(addresses, timeout=60.0)
    parts = [
        pa.RecordBatch.from_pydict(
            {"id": [i for i, _ in part], "price": [p for _, p in part]}
        )
        for part in partitions
    ]
    apply(coordinator(log, participants_of(sink)), batch, tasks(sink, parts))


@pytest.mark.ci
def test_table_and_index_are_the_same(running: Running) -> None:
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
                running.wait(lambda before=before: len(running.bulks()) > before)
                running.kill()
                running.start()
    assert running.table() == expected
    running.wait(lambda: running.documents() == expected)
    running.wait(lambda: backlog(running) == 0)
    headers = {"Content-Type": "application/x-ndjson"}
    first = next(bulk for bulk in running.bulks() if bulk.count("\n") > 2)
    where = f"{running.index}/products/_bulk"
    late = requests.post(where, data=first.encode(), headers=headers, timeout=60)
    assert {item["index"]["status"] for item in late.json()["items"]} == {409}
    assert running.documents() == expected
    listed = requests.get(f"{running.url}/index/outbox", timeout=60).json()
    assert listed["requests"] == []


def backlog(running: Running) -> float:
    gauges = requests.get(f"{running.url}/index/whoami", timeout=60).json()["gauges"]
    return float(gauges["tpc.outbox.backlog"])
