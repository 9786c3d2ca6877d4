"""A process that publishes what an outbox holds, and ends when nothing is left.

`python -m brokers.publish URL SERVERS TOPIC [PORT|fork]`: with a port it serves the
outbox, too, and does not end. Or it forks then, as servers do, says so, and parent and
child go on until nothing is left once more, and their input ends.
"""

from __future__ import annotations

import os
import sys

from flask import Flask
from support.waiting import SOON, until

from examples.redis_relay.relay import RedisStreamRelay
from tracing_2pc.activemq import ActiveMQRelay
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.kafka import KafkaRelay
from tracing_2pc.outbox import Outbox
from tracing_2pc.outbox.relay import Relay

LEASE = SOON
"""Seconds that a relay which was killed is silent."""


def relay_of(servers: str, topic: str) -> Relay:
    """Make a relay to Kafka, `activemq:ADDRESSES`, or, the example's, `redis:URL`."""
    kind, _, address = servers.partition(":")
    if kind == "activemq":
        return ActiveMQRelay(address, queue=topic, key="id")
    if kind == "redis":
        return RedisStreamRelay(address, stream=topic, key="id")
    return KafkaRelay(servers, topic=topic, key="id")


def main(url: str, servers: str, topic: str, port: str = "") -> None:
    outbox = Outbox(url, relay_of(servers, topic), lease=LEASE)
    if port.isdecimal():
        app = Flask("totals")
        app.register_blueprint(participant_blueprint(outbox, insecure=True))
        outbox.start()
        app.run("127.0.0.1", int(port), threaded=True)
    outbox._turns.start()
    until(lambda: outbox.gauges()["tpc.outbox.backlog"] == 0)
    if port == "fork":
        child = os.fork()
        outbox._turns.start()
        print("forked", flush=True)  # noqa: T201 - the test waits for both
        sys.stdin.read()
        until(lambda: outbox.gauges()["tpc.outbox.backlog"] == 0)
        if not child:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    outbox.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
