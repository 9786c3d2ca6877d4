"""Queries that keep state: what has landed and Spark's state agree after kills.

The batch whose rows have landed is replayed: its plan runs again, for the state only.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import GroupedData
from support.killed import Crash

from participants.processes import stopping
from tracing_2pc.core.states import TransactionState

pytestmark = pytest.mark.spark

Reading = tuple[int, int, int]
"""Second, id and amount."""


def batch_of(number: int) -> list[Reading]:
    """Ten seconds of readings; half of the ones before again; later one too late."""
    first = 10 * number
    ids = range(max(0, first - 5), first + 10)
    return [(100 + id_, id_, id_) for id_ in ids] + [LATE] * (number > 3)


LATE = (101, 1, 1000)
"""A reading of a window that was closed before: the watermark drops it."""
BATCHES = [batch_of(number) for number in range(6)]
CLOSED = 149
"""The last watermark: the newest reading is of second 159, ten more may be late."""


def totals(end: int) -> Counter[tuple[int, ...]]:
    """Sum the readings of windows that end by then, that were in time."""
    sums: Counter[tuple[int, int]] = Counter()
    for reading in itertools.chain(*BATCHES):
        second, id_, amount = reading
        sums[second // 10 * 10, id_ % 2] += amount * (reading != LATE)
    rows = [(start, kind, total) for (start, kind), total in sums.items()]
    return Counter(row for row in rows if row[0] + 10 <= end)


def running_totals() -> Counter[tuple[int, ...]]:
    sums: Counter[int] = Counter()
    told: Counter[tuple[int, ...]] = Counter()
    for batch in BATCHES:
        for _, id_, amount in batch:
            sums[id_ % 2] += amount
        told.update(sums.items())
    return told


EXPECTED = {
    "windows": totals(CLOSED),
    "latest_totals": totals(160),
    "distinct": Counter((id_, id_) for id_ in range(60)),
    "running_totals": running_totals(),
}

NIGHTLY = pytest.mark.nightly
QUERIES = [
    "windows",
    pytest.param("latest_totals", marks=NIGHTLY),
    pytest.param("distinct", marks=NIGHTLY),
    pytest.param(
        "running_totals",
        marks=[
            NIGHTLY,
            pytest.mark.skipif(
                not hasattr(GroupedData, "transformWithState"),
                reason="transformWithState of rows came with PySpark 4.1",
            ),
        ],
    ),
]

STATES = TransactionState
KILLS = [
    # failpoint, what was under way then and its state
    ("driver.after_decide:4", "stateful.3.1", STATES.COMMITTING),
    ("executor.after_first_prepare:1", "stateful.4.1", STATES.ACTIVE),
    ("driver.after_finish:1", "stateful.4.2", STATES.COMMITTED),
]


@pytest.fixture
def crash(tmp_path, request) -> Iterator[Crash]:
    with contextlib.ExitStack() as stack:
        crash = Crash(tmp_path, stack, "spark/stateful_job.py", request.param)
        stack.enter_context(stopping(crash.a, crash.b, crash.job))
        key = "start kind" if request.param == "latest_totals" else ""
        crash.a.start(KEY=key)
        crash.b.start(KEY=key)
        yield crash


def write_readings(folder: Path) -> None:
    (folder / "in").mkdir()
    for number, batch in enumerate(BATCHES):
        names = ("second", "id", "amount")
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in batch]
        file = folder / "in" / f"{number}.json"
        file.write_text("\n".join(lines))
        os.utime(file, (1_600_000_000 + number, 1_600_000_000 + number))


def shown(database: Path) -> Counter[Any]:
    """Return what readers of a participant's view see."""
    with contextlib.closing(sqlite3.connect(database)) as file:
        return Counter(file.execute("SELECT * FROM numbers"))


@pytest.mark.parametrize("crash", QUERIES, indirect=True)
def test_a_stateful_query_is_killed(crash, request):
    """Kills leave at each participant what its readings come to, each of them once."""
    write_readings(crash.folder)
    for failpoint, transaction, state in KILLS:
        assert crash.run(**crash.arm(failpoint)) == -9, crash.job.tail()
        assert crash.fired(failpoint)
        assert crash.state(transaction) is state
    assert crash.run() == 0, crash.job.tail()
    expected = EXPECTED[request.node.callspec.params["crash"]]
    assert shown(crash.a.database) == expected
    assert shown(crash.b.database) == expected
    with crash.log() as log:
        assert log.unfinished() == []
