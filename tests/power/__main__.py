"""`python -m power`: lose power at each moment, in each way, and open what is left."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from support import memory

from power import runs
from power.worlds import WORLDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge as many states as the time takes; return the exit code."""
    chosen = _parse(arguments)
    memory.use()
    _say(f"seed {chosen.seed}")
    failed = 0
    for name in chosen.world or WORLDS:
        drawn, kinds, faults = random.Random(f"{chosen.seed} {name}"), Counter(), 0
        end = time.monotonic() + chosen.seconds / len(chosen.world or WORLDS)
        with runs.recorded(name, chosen.fault or "") as recording:
            for state, found in recording.judged(drawn):
                kinds[state.kind.partition(";")[0]] += 1
                for fault in found:
                    faults += 1
                    _say(f"{name}, step {state.moment}, {state.kind}: {fault}")
                if time.monotonic() > end or faults > chosen.most:
                    break
            moments = len(recording.steps)
        failed += faults
        _say(
            f"{name}: {sum(kinds.values())} states of {moments} steps, {faults} faults"
        )
        _say("  " + ", ".join(f"{kind} {count}" for kind, count in kinds.items()))
    return 1 if failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m power", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="for all worlds")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--world", action="append", choices=WORLDS, help="repeatable")
    parser.add_argument("--fault", help="a flush that is left out: see `worlds`")
    parser.add_argument("--most", type=int, default=20, help="faults of a world, shown")
    return parser.parse_args(arguments)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - what it is for


if __name__ == "__main__":
    sys.exit(main())
