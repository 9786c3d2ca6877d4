#!/usr/bin/env python3
"""Start an ActiveMQ broker of one node, with its data in a folder.

tools/activemq/start.py FOLDER PORT [OPTION=VALUE...]

It becomes this process, and listens for STOMP on loopback. Ready is it when a client
is answered. Options are of the connector, as `transport.hbGracePeriodMultiplier=2`.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JNetworkError

ROOT = Path(__file__).parents[2]
JARS = Path(os.environ.get("TPC_ACTIVEMQ", ROOT / ".cache" / "activemq"))


def main(folder: str, port: str, *options: str) -> None:
    """Become a Java process, which a child of this one tells what to be."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        gateway = free.getsockname()[1]
    if os.fork() == 0:
        address = f"stomp://127.0.0.1:{port}?{'&'.join(options)}"
        _configure(gateway, folder, address.rstrip("?"))
        return
    home = subprocess.check_output(  # noqa: S603 - our own
        [ROOT / "tools" / "java-home"], text=True
    ).strip()
    settings = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    command = ["java", *settings, log, "-cp", f"{JARS}/*", "py4j.GatewayServer"]
    os.execv(f"{home}/bin/java", [*command, str(gateway)])  # noqa: S606 - no shell


def _configure(gateway: int, folder: str, address: str) -> None:
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # Java is starting
    parent = os.getppid()
    while os.getppid() == parent:
        java = JavaGateway(gateway_parameters=GatewayParameters(port=gateway))
        try:
            broker = java.jvm.org.apache.activemq.broker.BrokerService()
        except Py4JNetworkError:
            time.sleep(0.1)
            continue
        broker.setBrokerName("tpc")
        broker.setUseJmx(False)
        broker.setDataDirectory(folder)
        broker.addConnector(address)
        broker.start()
        java.close()
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
