"""`python -m spec`: explore the protocol, and what it is without each rule.

Exit 1 where a promise does not hold, or a rule is not missed. `--write` writes
COUNTEREXAMPLES.md; `--quick` looks at smaller worlds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from spec.explore import Found, explore
from spec.protocol import Bounds, Protocol
from spec.rules import BEHIND, QUICK, WHOLE, WITHOUT, WORDS, Without

PAGE: Final = Path(__file__).with_name("COUNTEREXAMPLES.md")
TABLE: Final = Path(__file__).parents[1] / "ARCHITECTURE.md"

MOST: Final = 3_000_000

_HEAD: Final = """\
# Why each rule is there

Written by `python -m spec --write`. Rules of [ARCHITECTURE.md](../ARCHITECTURE.md) are
taken out of the [protocol](protocol.py), and this is the shortest story that then
breaks a promise. Where the promise is that all ends, the story goes on until nothing
can happen any more. Without one of these alone all promises hold, because another rule
stands before it:\
""".splitlines()


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m spec", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args(arguments)
    stories = [(without, counterexample(without)) for without in WITHOUT]
    if chosen.write:
        PAGE.write_text("\n".join(page(stories)), encoding="utf-8")
    bad = 0
    for without, found in stories:
        said = found.fault or "nothing is missed"
        _tell(f"without {' and '.join(without.rules)}: {said}")
        bad += not found.fault
    bounds = QUICK if chosen.quick else WHOLE
    began, worlds = time.monotonic(), 0
    with ProcessPoolExecutor() as pool:
        for one, found in zip(bounds, pool.map(whole, bounds), strict=True):
            worlds += found.worlds
            verdict = found.fault or (
                "all hold" if found.is_whole else "not all looked at"
            )
            _tell(f"{found.worlds:>9} worlds, {within(one)}: {verdict}")
            _tell(*(f"            {line}" for line in found.story))
            bad += not (found.is_whole and not found.fault)
    _tell(f"{worlds} worlds in {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


def whole(bounds: Bounds) -> Found:
    """Explore the protocol as it is."""
    return explore(Protocol(bounds), MOST)


def counterexample(without: Without) -> Found:
    """Find the shortest story that breaks a promise; that all ends is the last one."""
    protocol = Protocol(without.bounds, frozenset(without.rules))
    look = partial(explore, protocol, MOST)
    found = look(ends=False)
    return found if found.fault else look()


def within(bounds: Bounds) -> str:
    """Say what there is, and what may go wrong how often."""
    return ", ".join(
        f"{name.replace('_', ' ')} {count}"
        for name, count in zip(Bounds._fields, bounds, strict=True)
        if count
    )


def page(stories: Sequence[tuple[Without, Found]]) -> Iterator[str]:
    """Yield the lines of COUNTEREXAMPLES.md."""
    yield from _HEAD
    yield f"{', '.join(BEHIND)}."
    known = rules()
    for without, found in stories:
        yield ""
        yield f"## Without {' and '.join(without.rules)}"
        yield ""
        for rule in without.rules:
            yield f"- {rule}: {WORDS.get(rule) or known[rule]}"
        yield ""
        yield f"**{found.fault[0].upper()}{found.fault[1:]}.**"
        yield ""
        for number, line in enumerate(found.story, 1):
            yield f"{number}. {line}"
    yield ""


def rules() -> dict[str, str]:
    """Read the numbers and sentences of the table of rules."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    cells = (line.split(" | ") for line in lines if line.startswith("| "))
    return {c[0][2:]: c[1] for c in cells if c[0][2:].isdigit()}


def _tell(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
