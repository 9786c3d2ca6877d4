"""`python -m chaos`: kill and pause at random, judge, exit 1 if anything is wrong."""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial

from chaos.events import Events
from chaos.mixed import Mixed, Plan
from chaos.rounds import Make, run
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
    parser.add_argument("--round", type=int, default=0, help="begin with this one")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop all, as Ctrl-C
    started = time.monotonic()

    def tell(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - started:6.1f} s  {line}\n")
        sys.stdout.flush()

    commit = _commit()
    tell(f"seed {chosen.seed}, commit {commit}")
    members: Counter[str] = Counter()

    def draw(chance: random.Random, number: int) -> Make:
        """Draw members of a round; every fifth is the demo."""
        if chosen.events:
            return Events
        if number % 5 == 4:
            tell(f"round {number}: the demo")
            return World
        plan = Plan.drawn(chance, number - number // 5)
        tell(f"round {number}: {', '.join(plan.members())}")
        members.update(plan.members())
        return partial(Mixed, plan=plan)

    results = run(chosen.minutes, chosen.seed, tell, draw, chosen.round)
    deeds = sum((result.deeds for result in results), Counter[str]())
    batches = sum(result.batches for result in results)
    tell(f"{len(results)} rounds, {batches} batches committed, {deeds.total()} deeds")
    for deed, count in sorted(deeds.items()):
        tell(f"{count:>4} x {deed}")
    for member, count in sorted(members.items()):
        tell(f"{count:>4} rounds with {member}")
    faults = [fault for result in results for fault in result.faults]
    for fault in faults:
        tell(fault)
    verdict = f"{len(faults)} faults" if faults else "clean"
    kinds = Counter[str]()
    for deed, count in deeds.items():
        kind = "beside" if deed.startswith("a ") else deed.split()[0].strip(":")
        kinds[kind] += count
    said = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    minutes = sum(result.minutes for result in results)
    tell(
        f"| {minutes:.0f} min | {commit} | {chosen.seed} | {len(results)} |"
        f" {batches} | {said} | {verdict} |"
    )
    if faults:
        tell(f"NOT CLEAN: kept {results[-1].kept}")
        return 1
    tell("nothing lost, doubled, split or stuck")
    return 0


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(
        asked, capture_output=True, text=True, check=False
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
