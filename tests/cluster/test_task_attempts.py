"""More tasks than one for a partition, and executors that come and go."""

import os
import signal

import pytest
from cluster_job import AFTER, BEFORE
from support.programs import freeze
from support.waiting import until

from tracing_2pc.core.states import TransactionState

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "100ms",
}
DYNAMIC_ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.maxExecutors": "2",
}
REFUSED = ("/prepare", 409)
pytestmark = [pytest.mark.cluster, pytest.mark.spark]


def test_a_late_task_of_a_stopped_query_is_refused(world, shared_driver):
    """Its executor hangs and cannot be told: what it prepares at last counts nowhere.

    Meanwhile the next run writes the batch.
    """
    world.write(range(2))
    job = world.job("late", holds=BEFORE)
    shared_driver.start(job)
    executor = world.waiting()
    freeze(executor)
    try:
        shared_driver.stop(job)
        assert world.state("late.0.1") is TransactionState.ABORTED
        shared_driver.run(job)
        world.assert_exactly_once(2)
        assert REFUSED not in world.statuses
        world.go_on()
        until(lambda: world.statuses.count(REFUSED) == 2)
    finally:
        os.kill(executor, signal.SIGCONT)
    assert world.state("late.0.2") is TransactionState.COMMITTED
    world.assert_exactly_once(2)
    world.assert_one_trace(shared_driver, "late.0.2")


def test_of_speculative_twins_one_counts(world, shared_driver):
    """Both have prepared. The one that reported is committed, and the other dropped."""
    world.write(range(1))
    job = world.job("twins", holds=AFTER)
    shared_driver.run(job, SPECULATION)
    assert not (world.folder / "go-on").exists()
    executors = world.prepared()
    first, *twins = (b for b in executors if b.startswith("0."))
    assert executors[first] == world.waiting()
    assert twins
    record = world.read("twins.0.1")
    assert record is not None
    assert record.state is TransactionState.COMMITTED
    committed = {str(r.branch) for r in record.receipts} - {first}
    assert committed & set(twins)
    assert {str(r.branch) for r in record.receipts} == committed
    world.assert_exactly_once(1)
    world.assert_one_trace(shared_driver, "twins.0.1")


def test_executors_come_and_go(world, cluster, shared_driver):
    """By dynamic allocation each batch begins without executors, and others write it.

    The second executor joins while the first one works.
    """
    job = world.job("come-and-go", holds=AFTER)
    world.write(range(1))
    shared_driver.start(job, DYNAMIC_ALLOCATION)
    until(lambda: len(set(world.prepared().values())) == 2)
    world.go_on()
    assert shared_driver.end(job) == ""
    until(lambda: not cluster.executors())
    before = set(world.prepared().values())

    world.write(range(1, 2))
    shared_driver.run(job, DYNAMIC_ALLOCATION)
    until(lambda: not cluster.executors())
    assert set(world.prepared().values()) - before
    world.assert_exactly_once(2)
    world.assert_one_trace(shared_driver, "come-and-go.1.1")
