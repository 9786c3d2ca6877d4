"""Rounds of chaos, one after another, until time is up; each is judged."""

from __future__ import annotations

import dataclasses
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from support import memory
from support.postgres import postgresql
from support.waiting import AT_LAST, PAUSE

from chaos.deeds import Deeds
from chaos.world import Place, World
from tracing_2pc.conformance import check_run


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """How a round ended.

    Args:
        minutes: that it took.
        batches: committed.
        deeds: what was done, and how often.
        faults: what is wrong; empty is good.
        kept: its folder, if something is wrong.
    """

    minutes: float
    batches: int
    deeds: Counter[str]
    faults: tuple[str, ...]
    kept: Path


Make = Callable[[Path, str], Place]
"""Makes a world in a folder, at a server."""


def run(
    minutes: float,
    seed: int,
    tell: Callable[[str], None],
    draw: Callable[[random.Random, int], Make] = lambda *_: World,
    first: int = 0,
) -> list[Result]:
    """Kill for so many minutes, in one round after the other; each comes to its end.

    A round has a seed of its own, of the seed and its number: it can be begun with.
    """
    results: list[Result] = []
    while minutes > 0 and not (results and results[-1].faults):
        number = first + len(results)
        chance = random.Random(f"{seed}.{number}")
        results.append(one_round(minutes, chance, tell, draw(chance, number)))
        minutes -= results[-1].minutes
        tell(f"round {number} took {results[-1].minutes:.1f} minutes")
    return results


def one_round(
    minutes: float,
    chance: random.Random,
    tell: Callable[[str], None],
    make: Make,
    most: int = sys.maxsize,
) -> Result:
    """Kill for so many minutes, or so often, and judge."""
    folder = Path(tempfile.mkdtemp(prefix="tpc-chaos-", dir=memory.folder()))
    started = time.monotonic()
    with postgresql(memory.folder()) as url:
        world = make(folder, url)
        with world.running():
            deeds = _stir(world, Deeds(world, chance), minutes, tell, most)
            tell("nobody is killed any more: waiting for the end")
            faults = _faults(world)
            result = Result(
                (time.monotonic() - started) / 60,
                world.committed(),
                deeds,
                faults,
                folder,
            )
    if not faults:
        shutil.rmtree(folder)
    return result


def _stir(
    world: Place,
    deeds: Deeds,
    minutes: float,
    tell: Callable[[str], None],
    most: int,
) -> Counter[str]:
    """Kill and pause from the first commit on, until time or the source is over."""
    done: Counter[str] = Counter()
    _run(world, AT_LAST, past=0)
    end = time.monotonic() + 60 * minutes
    while (left := end - time.monotonic()) > 0 and not world.is_over():
        if done.total() >= most:
            break
        patience, seconds = deeds.moment()
        _run(world, min(patience, left), past=world.committed())
        _run(world, min(seconds, left))
        if deed := deeds.next():
            tell(f"{world.committed():>2} batches; {deed}")
            done[re.sub(" for .*", "", deed)] += 1
    return done


def _run(world: Place, seconds: float, past: int = sys.maxsize) -> None:
    """Let a world run for so long, or until more batches are committed than that."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and world.committed() <= past:
        world.tend()
        time.sleep(PAUSE)


def _faults(world: Place) -> tuple[str, ...]:
    """Bring a round to its end; say what is wrong, and what no run explains."""
    try:
        world.settle()
    except TimeoutError as error:
        return (f"stuck: {error}",)
    return (*world.faults(), *map(str, check_run(world.log, world.journals)))
