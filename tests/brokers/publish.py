"""A process that publishes what an outbox holds, and ends when nothing is left.

`python -m brokers.publish URL SERVERS TOPIC [PORT]`: with a port it serves the outbox,
too, and does not end.
"""

from __future__ import annotations

import sys

from flask import Flask
from support.waiting import SOON, until

from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.kafka import KafkaRelay
from tracing_2pc.outbox import Outbox

LEASE = SOON
"""Seconds that a relay which was killed is silent."""


def main(url: str, servers: str, topic: str, port: str = "") -> None:
    relay = KafkaRelay(servers, topic=topic, key="id")
    outbox = Outbox(url, relay, lease=LEASE)
    if port:
        app = Flask("totals")
        app.register_blueprint(participant_blueprint(outbox, insecure=True))
        outbox.start()
        app.run("127.0.0.1", int(port), threaded=True)
    outbox._sender.start()
    until(lambda: outbox.gauges()["tpc.outbox.backlog"] == 0)
    outbox.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
