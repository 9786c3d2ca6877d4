"""A cluster loses executors or a whole worker: what may change, and what may not."""

from __future__ import annotations

import pytest
from cluster_driver import Driver
from cluster_job import AFTER, Job
from cluster_world import World
from standalone import Cluster
from support.spark import held
from support.waiting import AT_LAST, until

from participants.processes import stopping
from tracing_2pc.core.states import TransactionState

pytestmark = [pytest.mark.cluster, pytest.mark.spark]


@pytest.mark.parametrize(
    "host", [pytest.param("stays", marks=pytest.mark.smoke), "is gone"]
)
def test_an_executor_is_killed_before_its_task_reports(
    world: World, cluster: Cluster, shared_driver: Driver, host: str
) -> None:
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


def test_an_executor_dies_between_the_routes(world: World, cluster: Cluster) -> None:
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
