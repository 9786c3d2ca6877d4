"""A plugin: what `make test` leaves to `make ci`, and in which order tests begin.

Left out are variants, by a mark where they are made: `ci` is for `make ci`, `nightly`
for `make nightly`. `make test` runs another one of the same promise.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).parents[1]
DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds that each group of tests takes, by `python -m support.durations`."""

COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""Every test that was collected, whatever is left out."""

TARGETS = frozenset(
    {
        *("broker", "browser", "cluster", "compose", "dashboards", "jaeger"),
        *("kubernetes", "skywalking"),
    }
)
"""Marks of tests that ask a program which only a target of its own brings."""

STAND_ALONE = frozenset(
    f"spark/test_{name}.py" for name in ("adopt", "crash", "demo", "stateful_queries")
)
"""Files whose tests start a Spark each, or more, and share nothing: a group each."""

OWN_SPARK = {"spark/test_connect.py", "spark/test_spark_writers.py"}
"""Files whose tests share a Spark of their own; the others of `spark/` share one."""


def tier_of(item: pytest.Item) -> str | None:
    """Return the mark of a test that none says of itself: `ci`, `nightly` or None.

    With a real Spark `make test` tries what is marked `smoke`, `make ci` all, and of
    Spark's own cluster what is marked `smoke`.
    """
    marks = {mark.name for mark in item.iter_markers()}
    if marks & {"ci", "nightly"} or not marks & {"spark", "cluster"}:
        return None
    if "cluster" in marks:
        return "ci" if "smoke" in marks else "nightly"
    return None if "smoke" in marks else "ci"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Mark what is left out, group what shares something, put first what takes long.

    Raises:
        pytest.UsageError: two tests have one id, of which xdist would run one.
    """
    for item in items:
        if tier := tier_of(item):
            item.add_marker(tier)
    if twice := [i for i, n in Counter(i.nodeid for i in items).items() if n > 1]:
        raise pytest.UsageError(f"ids that two tests share: {', '.join(twice)}")
    config.stash[COLLECTED] = list(items)
    seconds = seconds_of_groups(item.nodeid for item in items)
    items.sort(key=lambda item: _place(seconds, group_of(item.nodeid)))


def everything(config: pytest.Config) -> list[pytest.Item]:
    """Return all tests; skip who asks for them where only a part was collected."""
    items = config.stash[COLLECTED]
    files = {item.path for item in items}
    if any(file not in files for file in TESTS.rglob("test_*.py")):
        pytest.skip("asks all of tests/, of which a part was collected")
    return items


class Groups(LoadScopeScheduling):
    """Hands each process of xdist a group after the other, as they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """Let xdist hand out groups in their order, the longest first."""
    config.option.loadscopereorder = False
    return Groups(config, log)


def group_of(node: str) -> str:
    """Return the group of a test, of which one process runs all.

    Those of a file share its fixtures, most of `spark/` a session of Spark. In files of
    `STAND_ALONE` each test shares nothing; kills of `crash/` are four groups.
    """
    file = node.partition("::")[0].removeprefix("tests/")
    if file in STAND_ALONE:
        return node
    if file == "crash/test_crash.py":
        return f"{file} {zlib.crc32(node.encode()) % 4}"
    return "spark" if file.startswith("spark/") and file not in OWN_SPARK else file


def seconds_of_groups(nodes: Iterable[str]) -> dict[str, float]:
    """Return how long each group takes: as measured, or a guess by its tests."""
    guesses = Counter(map(group_of, nodes))
    known = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    return {group: known.get(group, 0.1 * n) for group, n in guesses.items()}


def _place(seconds: Mapping[str, float], group: str) -> tuple[float, str]:
    return -seconds[group], group
