"""A minute of it, and some kills; `make chaos MINUTES=30` is more."""

from __future__ import annotations

import random

import pytest
from support.waiting import AT_LAST

from chaos.inbox import Events
from chaos.rounds import one_round, run


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


@pytest.mark.ci
@pytest.mark.spark
def test_each_event_that_was_taken_is_in_the_ledger_once():
    """Whichever of gateway, job, ledger and database is killed or paused; 32 clients
    post meanwhile, each until it is told 202, and some once more."""
    lines: list[str] = []
    chance = random.Random(2026)
    result = one_round(AT_LAST / 60, chance, lines.append, Events, most=5)
    assert not result.faults, "\n".join([*lines, *result.faults])
    assert result.deeds.total() == 5
