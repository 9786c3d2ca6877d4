"""Spark Connect: the server is a process of its own, the client another one."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.service import create_app
from support.spark import held, numbers_of, serving, write_numbers
from support.waiting import until

from participants.processes import Process, free_ports, stopping
from tracing_2pc.store import open_log

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATH = os.pathsep.join([str(HERE.parent), str(ROOT)])
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Spark Connect server; its URL."""
    import pyspark

    folder = tmp_path_factory.mktemp("connect")
    (port,) = free_ports(1)
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark_home = Path(pyspark.__file__).parent
    command = [
        *(str(spark_home / "bin" / "spark-submit"), "--master", "local[2,2]"),
        *("--class", SERVER),
        *(word for pair in settings.items() for word in ("--conf", "=".join(pair))),
        "spark-internal",
    ]
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": PATH,
        "SPARK_HOME": str(spark_home),
    }
    process = Process("connect", command, folder / "server.log", environment)
    with stopping(process):
        process.start()
        until(lambda: _is_open(port) or not process.alive(), seconds=900)
        assert process.alive(), process.tail()
        yield f"sc://127.0.0.1:{port}"


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_a_client_writes_by_the_data_source(server: str, tmp_path: Path) -> None:
    """Stopped by the client in the middle, then run to the end: each row once."""
    write_numbers(tmp_path, range(3))
    with contextlib.ExitStack() as stack:
        urls = []
        for name in ("a", "b"):
            app = create_app(f"sqlite:///{tmp_path / name}.db")
            stack.callback(app.extensions["resource"].close)
            urls.append(stack.enter_context(serving(app)))
        command = [sys.executable, str(HERE / "connect_job.py"), server, str(tmp_path)]
        log = tmp_path / "client.log"
        client = Process("client", [*command, *urls], log, {"PYTHONPATH": PATH})
        stack.enter_context(stopping(client))
        for environment in ({"STOP": "1"}, {}):
            client.start(**environment)
            assert client.wait(900) == 0, client.tail()
        assert held(tmp_path / "a.db") == held(tmp_path / "b.db") == numbers_of(3)
        with contextlib.closing(open_log(f"sqlite:///{tmp_path}/log.db")) as decisions:
            assert decisions.unfinished() == []
