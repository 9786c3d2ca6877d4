"""A minute of it; `make chaos MINUTES=30` is more."""

from __future__ import annotations

import pytest

from chaos.rounds import run


@pytest.mark.ci
@pytest.mark.spark
def test_a_minute_of_kills_costs_nothing():
    """Nothing is lost, doubled, split or stuck, whoever is killed or paused when."""
    lines: list[str] = []
    results = run(1.0, 2013, lines.append)
    faults = [fault for result in results for fault in result.faults]
    assert not faults, "\n".join([*lines, *faults])
    assert sum(result.deeds.total() for result in results) > 0
    assert sum(result.batches for result in results) > 0
