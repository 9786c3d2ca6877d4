"""An application that shares a decision log: `python -m bench.application URL NAME`.

It reads a number from its standard input, applies so many empty batches, answers with a
line, and so on.
"""

from __future__ import annotations

import itertools
import sys

from bench.driver import apply, coordinator
from bench.empty import obedient, write_nothing
from tracing_2pc.store import open_log


def main(url: str, name: str) -> None:
    """Apply batches until the input ends."""
    log = open_log(url)
    driver = coordinator(log, obedient(), name)
    batches = itertools.count()
    for line in sys.stdin:
        for batch in itertools.islice(batches, int(line)):
            apply(driver, batch, write_nothing, query=name)
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
