"""Every point is reached once, with real processes, and nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from crash import report
from crash.runs import Field, field, plan, points

MINUTES = 60


@pytest.fixture(scope="module")
def where() -> Iterator[Field]:
    with field() as opened:
        yield opened


@pytest.mark.timeout(15 * MINUTES)
@pytest.mark.parametrize("point", points())
def test_a_kill_at_a_point_costs_nothing(where: Field, point: str) -> None:
    """Killed there and started again: each record is everywhere once, nothing stuck."""
    row = report.row(point, [where.run(*planned) for planned in plan(point, 1)])
    assert row.clean, row
