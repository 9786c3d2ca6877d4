"""A process that publishes what an outbox holds, and ends when nothing is left.

`python -m brokers.publish URL SERVERS TOPIC`
"""

from __future__ import annotations

import sys

from support.waiting import SOON, until

from tracing_2pc.kafka import KafkaRelay
from tracing_2pc.outbox import Outbox

LEASE = SOON
"""Seconds that a relay which was killed is silent."""


def main(url: str, servers: str, topic: str) -> None:
    relay = KafkaRelay(servers, topic=topic, key="id")
    outbox = Outbox(url, relay, lease=LEASE)
    outbox._sender.start()
    until(lambda: outbox.gauges()["tpc.outbox.backlog"] == 0)
    outbox.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
