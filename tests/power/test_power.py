"""Power is lost in the middle of what is written: nothing that was answered is lost.

A short piece of `make power`, and that it sees what it is there for.
"""

from __future__ import annotations

import itertools
import random

import pytest

from power import runs
from power.worlds import FAULTS, WORLDS

pytestmark = pytest.mark.ci
STATES = 40
SHARE = 0.02
ENOUGH = 4_000
"""States within which a flush that is left out must be seen."""


@pytest.mark.parametrize("world", WORLDS)
def test_what_was_answered_is_there_after_a_loss_of_power(world):
    """Whatever of the rest is on the disk, at a sample of moments, in each way."""
    drawn = random.Random(world)
    with runs.recorded(world) as recording:
        for state in itertools.islice(recording.states(drawn, SHARE), STATES):
            assert recording.faults(state) == [], (state.moment, state.kind)


@pytest.mark.parametrize(
    ("fault", "world"),
    [
        pytest.param(fault, world, marks=() if n == 0 else pytest.mark.nightly)
        for fault, (worlds, _) in FAULTS.items()
        for n, world in enumerate(worlds)
    ],
)
def test_a_flush_that_is_left_out_is_seen(fault, world):
    """What `make power` would not see, it would not prove."""
    with runs.recorded(world, fault) as recording:
        judged = recording.judged(random.Random(world))
        found = (faults for _, faults in itertools.islice(judged, ENOUGH))
        assert next(filter(None, found), None)
