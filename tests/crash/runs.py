"""Runs a scenario once, or all scenarios of a point so many times, and judges."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

from support import memory
from support.postgres import postgresql

from crash import databases, oracle, processes, stories
from crash.kinds import KINDS
from crash.oracle import Verdict
from crash.points import HERE, SCENARIOS, Scenario, Variant
from crash.roles import MIDDLE
from crash.world import World
from tracing_2pc.conformance import check_run


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """How one run ended.

    Args:
        verdict: the oracle's.
        seconds: from the first kill until everything was clean.
        remark: what else was wrong; empty is good.
    """

    verdict: Verdict
    seconds: float = 0.0
    remark: str = ""

    @property
    def clean(self) -> bool:
        """Nothing was wrong."""
        return self.verdict == Verdict() and not self.remark


class Field:
    """Where runs take place: folders, and one PostgreSQL, started when it is needed.

    Args:
        folder: of the runs' folders; those of clean runs are removed.
        stack: what is open until the end.
        body: bytes of text in each branch.
    """

    def __init__(self, folder: Path, stack: ExitStack, body: int = 0) -> None:
        self._folder = folder
        self._stack = stack
        self._body = body
        self._postgresql: databases.PostgreSQL | None = None

    def run(self, scenario: Scenario, variant: Variant) -> Result:
        """Run a scenario once."""
        folder = Path(tempfile.mkdtemp(dir=self._folder, prefix=f"{scenario.point}-"))
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, folder)
            urls = self._urls(variant.kind, folder)
            with closing(World(folder, scenario, variant, urls, self._body)) as world:
                result = _judged(world)
            if result.clean:
                return result
            undo.pop_all()  # kept, for a person to look
        remark = f"{result.remark or 'wrong'} [{variant}; kept: {folder}]"
        return dataclasses.replace(result, remark=remark)

    def _urls(self, kind: str, folder: Path) -> dict[str, str]:
        if KINDS[kind].database == "sqlite":
            return databases.sqlite(folder)
        if self._postgresql is None:
            url = self._stack.enter_context(postgresql(memory.folder()))
            self._postgresql = databases.PostgreSQL(url)
        return self._postgresql.emptied()


@contextlib.contextmanager
def field(body: int = 0) -> Iterator[Field]:
    """Open a field; everything that was started is stopped at the end."""
    processes.start_server()
    folder = Path(tempfile.mkdtemp(prefix="tpc-crash-", dir=memory.folder()))
    with ExitStack() as stack:
        yield Field(folder, stack, body)
    with contextlib.suppress(OSError):
        folder.rmdir()  # what a run has kept stays


def plan(point: str, runs: int, seed: int = 0) -> list[tuple[Scenario, Variant]]:
    """Return what is run of a point: so often, and each of its scenarios.

    The seed says which of its variants come first, if there are more than runs.
    """
    scenarios = [scenario for scenario in SCENARIOS if scenario.point == point]
    share = math.ceil(runs / len(scenarios)) if scenarios else 0
    return [
        (one, variant) for one in scenarios for variant in one.variants(share, seed)
    ]


def every_kind(point: str) -> list[tuple[Scenario, Variant]]:
    """Return what is run of a point: each of its scenarios, with each kind."""
    scenarios = [scenario for scenario in SCENARIOS if scenario.point == point]
    return [(one, v) for one in scenarios for v in one.variants(len(one.kinds))]


def points() -> list[str]:
    """Return every point that has a scenario or should have one."""
    return list(dict.fromkeys([*HERE, *(s.point for s in SCENARIOS)]))


def _judged(world: World) -> Result:
    """Run a story and let the oracle look, whatever became of it."""
    remark = ""
    clean_at = time.time()
    try:
        stories.STORIES[world.scenario.story](world)
        clean_at = world.settle()
    except Exception as error:  # noqa: BLE001 - a run that fails is a result
        remark = f"{type(error).__name__}: {error}"
    unfinished = sum(not driver.finished for driver in world.drivers.values())
    try:
        verdict = oracle.judge(world.places, unfinished)
    except Exception as error:  # noqa: BLE001 - what cannot be judged is not clean
        remark += f" not judged: {type(error).__name__}: {error}"
        verdict = Verdict(stuck=max(unfinished, 1))
    since = world.deaths.first()
    seconds = clean_at - since if since is not None else 0.0
    return Result(verdict, seconds, remark or _unexplained(world) or _unexpected(world))


def _unexplained(world: World) -> str:
    """Say what no run of the protocol leaves; the oracle shares no code with this."""
    places = world.places
    return "; ".join(map(str, check_run(places.log, places.databases.items())))


def _unexpected(world: World) -> str:
    """Say what did not happen as the scenario says."""
    if missing := world.deaths.missing():
        return f"never fired: {', '.join(missing)}"
    scenario = world.scenario
    for driver in world.drivers.values():
        if scenario.ends is not None and tuple(driver.ends) != scenario.ends:
            return f"the driver's lives ended {driver.ends}, not {scenario.ends}"
    if scenario.attempts is not None:
        found = oracle.attempts(world.places, MIDDLE)
        if found != scenario.attempts:
            return f"{found} attempts, not {scenario.attempts}"
    return ""
