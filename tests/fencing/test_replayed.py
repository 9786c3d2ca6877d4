"""Spark begins a batch again that it has not noted as done: it lands once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fencing_support import Checkpoint, Query, sink_to
from support.participant import World, tagged_rows
from support.spark import ROWS, serving

from tracing_2pc.store import open_log


@pytest.fixture
def worlds() -> list[World]:
    """Filled by `query`."""
    return []


@pytest.fixture
def query(worlds: list[World], tmp_path: Path) -> Iterator[Query]:
    """A query with two participants that has applied batch 0."""
    with contextlib.ExitStack() as stack:
        urls = {}
        for name in "ab":
            world = tagged_rows(f"sqlite:///{tmp_path / name}.db")
            stack.callback(world.resource.close)
            urls[name] = stack.enter_context(serving(world.app))
            worlds.append(world)
        log = stack.enter_context(
            contextlib.closing(open_log(f"sqlite:///{tmp_path / 'log.db'}"))
        )
        checkpoint = Checkpoint.at(tmp_path / "checkpoint")
        first = Query("first", checkpoint, log, sink_to(**urls))
        first.apply(0)
        yield first


def test_a_replayed_batch_is_applied_once(query: Query, worlds: list[World]) -> None:
    """However often it comes back, and after it the next batch does too (rule 18)."""
    for life in range(3):
        query.checkpoint.lose_commit(0)
        again = Query(f"life-{life}", query.checkpoint, query.log, query.sink)
        again.apply(0)
    again.apply(1)
    assert [world.visible() for world in worlds] == [2 * ROWS, 2 * ROWS]
    assert query.log.unfinished() == []
