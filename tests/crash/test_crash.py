"""Every point is reached once, with real processes, and nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from crash import report
from crash.runs import Field, every_kind, field, plan, points

FIRST = {
    "driver.after_decide",
    "participant.after_prepare",
    "files.between_renames",
    "postgresql.in_prepare",
}
"""Points at which `make test` kills, too."""


@pytest.fixture(scope="module")
def where() -> Iterator[Field]:
    with field() as opened:
        yield opened


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point in FIRST else pytest.mark.ci)
        for point in points()
    ],
)
def test_a_kill_at_a_point_costs_nothing(where, point):
    """Killed there and started again: each record is everywhere once, nothing stuck."""
    row = report.row(point, [where.run(*planned) for planned in plan(point, 1)])
    assert row.clean, str(row)


@pytest.mark.nightly
@pytest.mark.parametrize("point", points())
def test_with_each_kind_of_participant(where, point):
    """Whatever it holds its data with."""
    row = report.row(point, [where.run(*planned) for planned in every_kind(point)])
    assert row.clean, str(row)


def test_few_runs_meet_every_kind():
    """Of each process that dies, where there is more than one way to hold data."""
    met: dict[str, set[str]] = {}
    every: dict[str, set[str]] = {}
    for point in points():
        for scenario, variant in plan(point, 1):
            if len(scenario.kinds) > 1:
                who = point.partition(".")[0]
                met.setdefault(who, set()).add(variant.kind)
                every.setdefault(who, set()).update(scenario.kinds)
    few = {"outbox"}  # two points
    assert {who for who, kinds in met.items() if kinds < every[who]} == few
