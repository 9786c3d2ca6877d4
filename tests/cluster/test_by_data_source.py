"""The data source on a cluster: executors open the transaction, in a log they share."""

import dataclasses

import pytest
from cluster_job import AFTER
from source_job import FrameJob, SourceJob
from test_task_attempts import SPECULATION

from tracing_2pc.core.states import TransactionState

pytestmark = [pytest.mark.cluster, pytest.mark.spark]


def test_each_batch_lands_in_both(world, shared_driver):
    """Their tasks come together: one attempt for each batch, one trace."""
    world.write(range(3))
    job = SourceJob(**dataclasses.asdict(world.job("source")))
    shared_driver.run(job)
    world.assert_exactly_once(3)
    for batch in range(3):
        assert world.state(f"source.{batch}.1") is TransactionState.COMMITTED
        assert world.state(f"source.{batch}.2") is None
        world.assert_one_trace(shared_driver, f"source.{batch}.1")


def test_of_speculative_twins_one_counts(world, shared_driver):
    """Both have prepared. The one that reported is committed, and the other dropped."""
    world.write(range(1))
    job = SourceJob(**dataclasses.asdict(world.job("source-twins", holds=AFTER)))
    shared_driver.run(job, SPECULATION)
    first, *twins = (b for b in world.prepared() if b.startswith("0."))
    record = world.read("source-twins.0.1")
    assert record is not None
    committed = {str(receipt.branch) for receipt in record.receipts}
    assert first not in committed
    assert committed & set(twins)
    world.assert_exactly_once(1)


def test_a_dataframe_is_one_batch(world, shared_driver):
    """Written again under its number it is a replay."""
    shared_driver.run(FrameJob(**dataclasses.asdict(world.job("frame"))))
    world.assert_exactly_once(1)
