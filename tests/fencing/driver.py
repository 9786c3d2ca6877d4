"""A driver without Spark, to be paused and woken: one life of a query, batch by batch.

driver.py FOLDER LOG A_URL B_URL RUN BATCHES SECONDS_A_BATCH

It takes no error for an answer: it goes on with the batches after it, `TRIES` times,
and writes how each ended to FOLDER/RUN.json. Exit code 1 if one ended in an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from pathlib import Path

from fencing_support import Ending, Query, sink_to
from support.checkpoint import Checkpoint
from support.waiting import AT_ONCE

from tracing_2pc import Settings
from tracing_2pc.core.model import Receipt, TransactionRecord
from tracing_2pc.store import open_log

TRIES = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Paced(Query):
    """A query whose batches take their time."""

    seconds: float = 0.0

    def write(self, record: TransactionRecord) -> list[Receipt]:
        time.sleep(self.seconds)
        return Query.write(self, record)


def drive(query: Query, batches: int) -> list[Ending]:
    """Apply so many batches, whatever the log says to it."""
    endings: list[Ending] = []
    first = query.checkpoint.next()
    for batch in range(first, first + batches):
        endings.append(query.ended(batch))
        if sum(bool(ending.error) for ending in endings) == TRIES:
            break
    return endings


def main(
    folder: str, log: str, a: str, b: str, run: str, batches: str, seconds: str
) -> int:
    """Drive, and write down how it went."""
    settings = Settings.load(backoff_base=AT_ONCE, backoff_cap=0.5)
    checkpoint = Checkpoint.at(Path(folder, "checkpoint"))
    with contextlib.closing(open_log(log)) as opened:
        query = Paced(
            run,
            checkpoint,
            opened,
            sink_to(a, b),
            settings=settings,
            seconds=float(seconds),
        )
        endings = drive(query, int(batches))
    text = json.dumps([dataclasses.asdict(ending) for ending in endings])
    Path(folder, f"{run}.json").write_text(text)
    return int(any(ending.error for ending in endings))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
