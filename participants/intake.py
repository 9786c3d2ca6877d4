"""The other door: events come from a queue of ActiveMQ, into the gateway's inbox.

`INBOX_DATABASE=sqlite:///inbox.db ACTIVEMQ=127.0.0.1:61613 QUEUE=event-queue-in \
 python -m participants.intake`

`EVENT_ID` is the header that is an event's id; without it, the broker's `message-id`.
SIGTERM ends it. Several of them may take from one queue.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import Final

from tracing_2pc.activemq import ActiveMQIntake
from tracing_2pc.inbox import Inbox

NEEDS: Final = ("INBOX_DATABASE", "ACTIVEMQ", "QUEUE")


def main() -> None:
    """Take events until SIGTERM."""
    if missing := [name for name in NEEDS if not os.environ.get(name)]:
        sys.exit(f"intake: set {' and '.join(missing)} in the environment")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    intake = ActiveMQIntake(
        Inbox("env:INBOX_DATABASE"),
        os.environ["ACTIVEMQ"],
        os.environ["QUEUE"],
        id=os.environ.get("EVENT_ID", "message-id"),
    )
    # Not here, where a lock of it may be held.
    stop = threading.Thread(target=intake.stop)
    signal.signal(signal.SIGTERM, lambda *_: stop.start())
    intake.run()


if __name__ == "__main__":
    main()
