"""A day of batches, many applications, many participants: all of it, and no more rows.

Plateaus are ratios between halves of one run. What is there is read by SQL.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.databases import url
from support.strangers import many_files

from load.jobs import Query, counts, files, participants, states, values
from load.usage import usage
from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.store import open_log

__all__ = ["many_files", "url"]

pytestmark = pytest.mark.usefixtures("many_files")

LOOKS = 8
"""Times that is measured in a run; the first quarter warms up."""


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param(160, marks=pytest.mark.ci),
        pytest.param(8_640, marks=pytest.mark.nightly),
    ],
)
def test_a_day_of_batches(batches, url, tmp_path, new_database):
    """One each ten seconds: each row once, and nothing but the rows has grown."""
    at = files(tmp_path, 2)
    if not url.startswith("sqlite"):
        at = {name: new_database() for name in at}
    taken, tables = [], []
    each = batches // LOOKS
    with contextlib.closing(open_log(url)) as log, participants(at) as urls:
        query = Query("day", log, urls)
        for look in range(LOOKS):
            query.run(range(look * each, (look + 1) * each))
            taken.append(usage(os.getpid(), alone=True))
            rows = [counts(one) for one in (url, *at.values())]
            tables.append([sum(c for n, c in o.items() if "tpc_" in n) for o in rows])
    for name in at:
        assert values(at[name]) == [*range(batches)]
    assert sum(states(url).values()) < 3 + LOOKS
    sys.stdout.write(f"{batches} batches: {taken} {tables}\n")
    early, late = slice(LOOKS // 4, LOOKS // 2 + 1), slice(LOOKS // 2 + 1, LOOKS)
    for what in ("sockets", "files", "threads"):
        before, after = ([getattr(u, what) for u in taken[p]] for p in (early, late))
        # The least: answers under way at one look hold some, a leak is in each.
        assert min(after) <= max(before) + 2, (what, taken)
    memory = [[one.memory for one in taken[part]] for part in (early, late)]
    assert max(memory[1]) < 1.1 * max(memory[0]), taken
    for before, after in zip(
        *(map(max, zip(*tables[p], strict=True)) for p in (early, late)), strict=True
    ):
        # The ids of runs are kept: one for each life.
        assert after <= before + LOOKS, tables


@pytest.mark.parametrize(
    "applications",
    [
        pytest.param(4, marks=pytest.mark.ci),
        pytest.param(64, marks=pytest.mark.nightly),
    ],
)
def test_many_applications_on_one_log(applications, url, tmp_path):
    """All at once, each with connections of its own: each has its rows once."""
    at, batches = files(tmp_path, 2), 5

    def run(number: int) -> None:
        with contextlib.closing(open_log(url)) as log:
            first = number * batches
            Query(f"job{number}", log, urls, first).run(range(batches))

    with participants(at) as urls, ThreadPoolExecutor(applications) as threads:
        list(threads.map(run, range(applications)))
    for name in at:
        assert values(at[name]) == [*range(applications * batches)]
    found = states(url)
    assert {state for _, state in found} == {"committed"}
    assert len(found) == applications


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(8, marks=pytest.mark.ci),
        pytest.param(200, marks=pytest.mark.nightly),
    ],
)
def test_many_participants_in_one_transaction(count, tmp_path):
    """All have it; of the batch in which the last one refuses, none."""
    at, log_url = files(tmp_path, count), f"sqlite:///{tmp_path}/log.db"
    with contextlib.closing(open_log(log_url)) as log, participants(at) as urls:
        Query("wide", log, urls).run(range(1))
        gone = dict(urls, **{f"p{count - 1}": urls["p0"] + "/nobody"})
        with pytest.raises(TwoPhaseError):
            Query("wide", log, gone).run(range(1, 2))
        Query("wide", log, urls).run(range(1, 2))
    assert {name: values(at[name]) for name in at} == {name: [0, 1] for name in at}
    in_doubt = [_prepared(Path(one.removeprefix("sqlite:///"))) for one in at.values()]
    assert sum(in_doubt) == 0
    assert states(log_url)["wide", "committed"] >= 1


def _prepared(file: Path) -> int:
    with contextlib.closing(sqlite3.connect(file)) as database:
        names = database.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE '%tpc_branch'"
        ).fetchall()
        assert names
        text = "SELECT count(*) FROM {} WHERE state = 'prepared'"
        return sum(database.execute(text.format(n)).fetchone()[0] for (n,) in names)
