"""A cluster loses executors, a worker or drivers: what may change, and what may not."""

from __future__ import annotations

import os
import signal

import pytest
from cluster_job import AFTER, Job
from cluster_world import World
from support.spark import held
from support.waiting import AT_LAST, until

from participants.processes import stopping
from tracing_2pc.core.states import TransactionState

pytestmark = [pytest.mark.cluster, pytest.mark.spark]


@pytest.mark.parametrize(
    "host", [pytest.param("stays", marks=pytest.mark.smoke), "is gone"]
)
def test_an_executor_is_killed_before_its_task_reports(
    world, cluster, shared_driver, host
):
    """Its branch is prepared, and Spark runs the task again: one of them counts.

    With its worker a host is gone, and the job goes on at the other one.
    """
    world.write(range(2))
    job = world.job(f"killed-{host.replace(' ', '-')}", holds=AFTER)
    shared_driver.start(job)
    killed = world.waiting()
    worker = cluster.worker_of(killed)
    try:
        cluster.kill_executor(killed) if host == "stays" else worker.kill()
        assert shared_driver.end(job) == ""
        assert worker.alive() == (host == "stays")
    finally:
        cluster.start()
    world.assert_exactly_once(2)
    assert_written_by_others(world, job, killed)
    world.assert_one_trace(shared_driver, f"{job.application}.0.1")


def test_an_executor_dies_between_the_routes(world, cluster):
    """Every route sees one and the same batch, or nothing of it is committed.

    The batch is other rows whenever it is computed. Its executors die when the first
    participant has voted: what they held is not computed again for the second one.
    """
    world.write(range(20))
    others = cluster.executors()
    driver = world.process("driver", cluster, world.job("routed"), "routed_job.py")
    with stopping(driver):
        driver.start()
        between = world.folder / "between-routes"
        until(lambda: between.exists() or not driver.alive())
        assert driver.alive(), driver.tail()
        for executor in cluster.executors() - others:
            cluster.kill_executor(executor)
        world.go_on()
        driver.wait(AT_LAST)
    assert held(world.folder / "a.db") == held(world.folder / "b.db")
    assert world.state("routed.0.1") is TransactionState.ABORTED


def assert_written_by_others(world: World, job: Job, killed: int) -> None:
    """The lost task's branch was prepared; the first attempt committed another one."""
    executors = world.prepared()
    assert world.state(f"{job.application}.0.1") is TransactionState.COMMITTED
    assert world.state(f"{job.application}.0.2") is None
    lost = [b for b, e in executors.items() if e == killed and b.startswith("0.")]
    assert len(lost) == 1
    others = [b for b, e in executors.items() if e != killed and b.startswith("0.")]
    assert others


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


def test_a_driver_is_killed(world, cluster):
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


def test_two_drivers_on_one_checkpoint(world, cluster):
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
