"""Spark Connect: the server is a process of its own, the client another one."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from support.spark import ROWS, numbers_of, serve_numbers, write_numbers
from support.spark_defaults import PROPERTIES
from support.stream_world import NEEDS_ARROW_WRITERS, Kept
from support.telemetry import PATH
from support.texts import texts
from support.waiting import AT_LAST, until

from participants.processes import Process, free_ports, stopping
from tracing_2pc.core.log_reader import TransactionFilter
from tracing_2pc.testing import Fault, FaultProxy

HERE = Path(__file__).parent
if pyspark.__version__ < "4":
    pytest.skip("its server is no part of PySpark 3.5", allow_module_level=True)

CALLED_TWICE = texts("spark")["called by connect"]
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """A Spark Connect server; its URL."""
    folder = tmp_path_factory.mktemp("connect")
    (port,) = free_ports(1)
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark_home = Path(pyspark.__file__).parent
    command = [
        *(str(spark_home / "bin" / "spark-submit"), "--master", "local[2,2]"),
        *("--class", SERVER, "--properties-file", os.environ[PROPERTIES]),
        *(word for pair in settings.items() for word in ("--conf", "=".join(pair))),
        "spark-internal",
    ]
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONDONTWRITEBYTECODE": "",  # a worker has ten seconds to import PySpark
        "PYTHONPATH": PATH,
        "SPARK_HOME": str(spark_home),
    }
    process = Process("connect", command, folder / "server.log", environment)
    with stopping(process):
        process.start()
        until(lambda: _is_open(port) or not process.alive())
        assert process.alive(), process.tail()
        yield f"sc://127.0.0.1:{port}"


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


class Client(Kept):
    """A program that talks to the server, two participants, and a proxy before one."""

    def __init__(
        self,
        server: str,
        folder: Path,
        way: dict[str, str],
        stack: contextlib.ExitStack,
    ) -> None:
        self.folder, self.way = folder, way
        self.log_url = f"sqlite:///{folder}/log.db"
        a, self.b = serve_numbers(stack, folder)
        if "EMBEDDED" in way:
            a = f"sqlite:///{folder}/a.db?table=numbers"
        self.to_b = stack.enter_context(FaultProxy(self.b))
        command = [sys.executable, str(HERE / "connect_job.py"), server, str(folder)]
        command += [a, self.to_b.url]
        log = folder / "client.log"
        self.process = Process("client", command, log, {"PYTHONPATH": PATH})
        stack.enter_context(stopping(self.process))

    def start(self, **environment: str) -> None:
        self.process.start(**environment, **self.way)

    def run(self, **environment: str) -> int:
        self.start(**environment)
        return self.process.wait(AT_LAST)


WAYS = [
    pytest.param({}, id="data source", marks=NEEDS_ARROW_WRITERS),
    pytest.param({"CALLBACK": "1"}, id="callback"),
]


EMBEDDED = [
    pytest.param({"EMBEDDED": "1", **way.values[0]}, id=way.id, marks=way.marks)
    for way in WAYS
]
"""With a table instead of the service a."""


@pytest.fixture(params=WAYS)
def client(server, tmp_path, request) -> Iterator[Client]:
    with contextlib.ExitStack() as stack:
        yield Client(server, tmp_path, request.param, stack)


@pytest.mark.ci
@pytest.mark.parametrize("client", EMBEDDED, indirect=True)
def test_a_table_that_has_no_service_takes_part(client):
    """The server's processes open it; the service's commit is cut, and sent again."""
    write_numbers(client.folder, range(2))
    client.to_b.plan("commit", Fault.LOSE_ANSWER)
    assert client.run() == 0, client.process.tail()
    assert client.held() == (numbers_of(2), numbers_of(2))
    with client.log() as log:
        assert log.unfinished() == []


def test_each_batch_lands_in_both_and_stop_loses_nothing(client):
    """Stopped by the client in the middle, then run to the end: each row once."""
    write_numbers(client.folder, range(3))
    offsets = client.folder / "checkpoint" / "offsets" / "0"
    assert client.run(STOP=str(offsets)) == 0, client.process.tail()
    assert client.run() == 0, client.process.tail()
    assert client.held() == (numbers_of(3), numbers_of(3))
    with client.log() as log:
        assert log.unfinished() == []
        newest = log.transactions(TransactionFilter(limit=1))[0].transaction
        assert newest.batch == 2
        record = log.read(newest)
    assert record
    with client.log() as log:  # whoever ends the process asks it nothing
        assert log.presences() == []
    # A callback takes the driver path after a small batch: one branch.
    branches = {receipt.branch for receipt in record.chosen("a")}
    assert len(branches) == (1 if client.way else 2)


def test_stop_returns_while_a_commit_waits(client):
    """The decision is in the log; the next start goes on with it."""
    write_numbers(client.folder, range(2))
    client.to_b.plan("commit", Fault.UNAVAILABLE, times=10_000)
    stop = client.folder / "stop"
    client.start(STOP=str(stop))
    to_b = client.to_b

    def is_committing() -> bool:
        assert client.process.alive(), client.process.tail()
        return any(request.verb == "commit" for request in to_b.seen)

    until(is_committing)
    stop.touch()
    assert client.process.wait(AT_LAST) == 0, client.process.tail()
    assert client.held() == (numbers_of(1), Counter())
    with client.log() as log:
        assert [record.state for record in log.unfinished()] == ["committing"]
    assert client.run(B=client.b) == 0, client.process.tail()
    assert client.held() == (numbers_of(2), numbers_of(2))


@pytest.mark.parametrize("client", WAYS[:1], indirect=True)
def test_a_dataframe_is_one_batch(client):
    """Written again under its number it is a replay."""
    for _ in range(2):
        assert client.run(DATAFRAME="1") == 0, client.process.tail()
    assert client.held() == (numbers_of(1), numbers_of(1))


@pytest.mark.parametrize("client", WAYS[1:], indirect=True)
def test_a_second_dataframe_of_a_batch_is_refused(client):
    """By the process beside the server that runs the callback."""
    write_numbers(client.folder, range(2))
    assert client.run(TWICE="1") == 1
    assert CALLED_TWICE in client.process.log.read_text()
    even = Counter(range(0, ROWS, 2))
    assert client.held() == (even, even)


def test_another_checkpoint_is_refused(client):
    """The query is known: a lost checkpoint would begin at batch 0 again."""
    write_numbers(client.folder, range(2))
    assert client.run() == 0, client.process.tail()
    assert client.run(CHECKPOINT="other") == 1
    assert "from another checkpoint" in client.process.log.read_text()
    assert client.held() == (numbers_of(2), numbers_of(2))
