"""A driver whose tracing the environment chooses.

`python -m bench.peers.traced_driver LOG TOKEN ROWS NAME=URL ...` reads a number from
its standard input, applies so many batches of so many rows, answers with a line, and so
on.
"""

from __future__ import annotations

import itertools
import sys

from bench.driver import APPLICATION, apply, coordinator, tasks
from bench.peers import own_tracing
from bench.records import orders
from tracing_2pc import ParticipantSink
from tracing_2pc.store import open_log
from tracing_2pc.tracing.sdk import lifecycle


def main(log_url: str, token: str, rows: str, *ledgers: str) -> None:
    """Apply batches until the input ends."""
    own_tracing.obey()
    lifecycle.start(APPLICATION)
    sink = ParticipantSink(dict(each.split("=", 1) for each in ledgers), token=token)
    driver = coordinator(open_log(log_url), sink.participants)
    write = tasks(sink, [orders(int(rows))])
    batches = itertools.count()
    for line in sys.stdin:
        for batch in itertools.islice(batches, int(line)):
            apply(driver, batch, write)
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
