"""`python -m chaos`: kill and pause at random, judge, exit 1 if anything is wrong."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections import Counter

from chaos.events import Events
from chaos.rounds import run
from chaos.world import World


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument(
        "--events",
        action="store_true",
        help="by HTTP and by queue, to a ledger and a queue",
    )
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop all, as Ctrl-C
    started = time.monotonic()

    def tell(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - started:6.1f} s  {line}\n")
        sys.stdout.flush()

    tell(f"seed {chosen.seed}")
    make = Events if chosen.events else World
    results = run(chosen.minutes, chosen.seed, tell, make)
    deeds = sum((result.deeds for result in results), Counter[str]())
    batches = sum(result.batches for result in results)
    tell(f"{len(results)} rounds, {batches} batches committed, {deeds.total()} deeds")
    for deed, count in sorted(deeds.items()):
        tell(f"{count:>4} x {deed}")
    faults = [fault for result in results for fault in result.faults]
    for fault in faults:
        tell(fault)
    if faults:
        tell(f"NOT CLEAN: kept {results[-1].kept}")
        return 1
    tell("nothing lost, doubled, split or stuck")
    return 0


if __name__ == "__main__":
    sys.exit(main())
