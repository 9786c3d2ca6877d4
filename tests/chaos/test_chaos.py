"""A minute of it, and some kills; `make chaos MINUTES=30` is more."""

from __future__ import annotations

import os
import random

import pytest
from support.waiting import AT_LAST

from chaos.events import Events
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
@pytest.mark.broker
@pytest.mark.skipif(
    not os.environ.get("TPC_ACTIVEMQ"), reason="asked by `make test-brokers`"
)
def test_each_event_that_was_taken_is_in_ledger_and_queue_once():
    """Whichever process, database or broker is killed or paused; clients post and send
    meanwhile, each until it is told, and some once more."""
    lines: list[str] = []
    chance = random.Random(2026)
    result = one_round(AT_LAST / 60, chance, lines.append, Events, most=5)
    assert not result.faults, "\n".join([*lines, *result.faults])
    assert result.deeds.total() == 5
