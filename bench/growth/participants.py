"""Ever more participants: the time of a small batch, the driver's work for a large one.

Participants are ledgers under gunicorn, each a process with a database of its own on
one PostgreSQL server. For the time, what is sent to them arrives 20 ms late.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench import pair
from bench.driver import apply, coordinator, tasks
from bench.goals import GOALS
from bench.growth.sizes import Sizes
from bench.ledgers import running
from bench.postgresql import postgresql
from bench.records import orders
from bench.results import ROOT
from bench.stored import LEDGER, check_and_empty
from participants.processes import Process, free_ports, stopping
from tracing_2pc import ParticipantSink
from tracing_2pc.core.ports import DecisionLog
from tracing_2pc.store import open_log

DELAY: Final = 0.02
FEW: Final = 10
"""Rows of the batch whose time is measured."""


def measure(folder: Path, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield the points and the goal of each."""
    names = [f"ledger-{n}" for n in range(max(sizes.participants))]
    with postgresql() as new_database:
        databases = {name: new_database() for name in names}
        log = open_log(new_database())
        with contextlib.closing(log), running(folder, databases) as ledgers:
            world = _World(log, databases, ledgers.urls, ledgers.token)
            with _far_away(folder, ledgers.urls) as urls:
                far = _World(log, databases, urls, ledgers.token)
                yield from far.measure("wall", FEW, time.perf_counter, sizes)
            many = sizes.participant_rows
            yield from world.measure("cpu", many, time.process_time, sizes)


class _World:
    """Ledgers, at which every arm has an application of its own."""

    def __init__(
        self,
        log: DecisionLog,
        databases: Mapping[str, str],
        urls: Mapping[str, str],
        token: str,
    ) -> None:
        self._log = log
        self._databases = databases
        self._urls = urls
        self._token = token

    def measure(
        self, what: str, rows: int, clock: Callable[[], float], sizes: Sizes
    ) -> Iterator[dict[str, Any]]:
        arms = {
            str(n): self._block(f"{what}-{n}", n, rows, clock)
            for n in sizes.participants
        }
        costs = pair.measure(arms, sizes.rounds)
        one = costs[str(sizes.participants[0])]
        settings = {"rows": rows}
        if what == "wall":
            settings["delay_ms"] = round(DELAY * 1000)
        for count in sizes.participants:
            ratio = pair.compare(costs[str(count)], one)
            height = {"one batch": ratio.ratio}
            yield pair.point(f"participants-{what}", count, ratio, height, settings)
        several, goal = str(sizes.participant_goal), f"I10-{what}"
        settings["participants"] = sizes.participant_goal
        ratio = pair.compare(costs[several], one)
        yield pair.line(goal, ratio, GOALS[goal].limit, settings)

    def _block(
        self, application: str, count: int, rows: int, clock: Callable[[], float]
    ) -> pair.Block:
        chosen = dict(itertools.islice(self._urls.items(), count))
        sink = ParticipantSink(chosen, token=self._token)
        driver = coordinator(self._log, sink.participants, application)
        write = tasks(sink, [orders(rows)])
        batches = itertools.count()

        def block() -> float:
            started = clock()
            apply(driver, next(batches), write, query=application)
            cost = clock() - started
            for name in chosen:
                check_and_empty(self._databases[name], rows, *LEDGER)
            return cost

        return block


@contextlib.contextmanager
def _far_away(folder: Path, urls: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Put a delay before each participant; yield the URLs to use."""
    ports = free_ports(len(urls))
    upstream = [url.rpartition(":")[2] for url in urls.values()]
    both = itertools.chain(*zip(map(str, ports), upstream, strict=True))
    command = [sys.executable, "-m", "bench.delay", str(DELAY), *both]
    delay = Process("delay", command, folder / "delay.log", {"PYTHONPATH": str(ROOT)})
    with stopping(delay):
        delay.start()
        there = {n: f"http://127.0.0.1:{p}" for n, p in zip(urls, ports, strict=True)}
        for url in there.values():
            delay.until_answers(f"{url}/health/ready", 60)
        yield there
