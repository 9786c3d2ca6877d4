"""Drivers on a cluster that are killed, or replaced while they sleep."""

from __future__ import annotations

import os
import signal

import pytest
from cluster_world import World
from standalone import Cluster
from support.waiting import AT_LAST, until

from participants.processes import stopping
from tracing_2pc.core.states import TransactionState

STATES = TransactionState
BETWEEN = "delivery.between_commits:3"
"""The first acknowledgement for a batch, after both of the one that is left over."""

KILLS = [
    # failpoint, what was under way then and its state, and that after the last start
    ("driver.before_decide:1", "killed.0.1", STATES.ACTIVE, STATES.ABORTED),
    ("driver.after_decide:2", "killed.1.1", STATES.COMMITTING, STATES.COMMITTED),
    (BETWEEN, "killed.2.1", STATES.COMMITTING, STATES.COMMITTED),
]
BATCHES = 4
pytestmark = [pytest.mark.cluster, pytest.mark.spark]


def test_a_driver_is_killed(world: World, cluster: Cluster) -> None:
    """Each start takes executors of its own, and finishes what the last one left."""
    world.write(range(BATCHES))
    driver = world.process("driver", cluster, world.job("killed"))
    with stopping(driver):
        for failpoint, transaction, state, _ in KILLS:
            file = world.folder / failpoint
            driver.start(TPC_FAILPOINT=failpoint, TPC_FAILPOINT_FILE=str(file))
            assert driver.wait(AT_LAST) == -signal.SIGKILL, driver.tail()
            assert file.exists()
            assert world.state(transaction) is state
        driver.start()
        assert driver.wait(AT_LAST) == 0, driver.tail()
    world.assert_exactly_once(BATCHES)
    for _, transaction, _, state in KILLS:
        assert world.state(transaction) is state


def test_two_drivers_on_one_checkpoint(world: World, cluster: Cluster) -> None:
    """One sleeps with every vote in, and another one takes over: it is told, in a line.

    Both have executors, and the older one's have prepared. Nothing is written twice.
    """
    world.write(range(2))
    job = world.job("two-drivers")
    older = world.process("older", cluster, job)
    newer = world.process("newer", cluster, job)
    with stopping(older, newer):
        older.start(
            TPC_FAILPOINT="driver.before_decide:2",
            TPC_FAILPOINT_FILE=str(world.folder / "paused"),
            TPC_FAILPOINT_SIGNAL="STOP",
        )
        until((world.folder / "paused").exists)
        assert world.state("two-drivers.1.1") is STATES.ACTIVE
        newer.start()
        assert newer.wait(AT_LAST) == 0, newer.tail()
        world.assert_exactly_once(2)
        os.killpg(older.pid, signal.SIGCONT)
        assert older.wait(AT_LAST) == 1, older.tail()
    *_, last = filter(None, older.log.read_text().splitlines())
    assert "two-drivers.1.1 was decided abort before its votes were in: a newer" in last
    world.assert_exactly_once(2)
    assert world.state("two-drivers.1.1") is STATES.ABORTED
    assert world.state("two-drivers.1.2") is STATES.COMMITTED
