"""A log that fails while recovery reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.protocol import FakeClock, World

from tracing_2pc.core.errors import DecisionLogError
from tracing_2pc.core.model import TransactionRecord
from tracing_2pc.core.states import Decision
from tracing_2pc.protocol.recovery import Recovery
from tracing_2pc.store import open_log
from tracing_2pc.tracing.transaction import OpenTelemetryTracing


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = FakeClock()
    log = open_log(f"sqlite:///{tmp_path}/log.db", now=clock.now)
    yield World(log, clock)
    log.close()


def leave_aborting(world: World, application: str) -> None:
    begun = world.log.begin(
        application, 0, run="r", query=None, participants=["a"], carrier={}
    )
    world.log.decide(begun.record.id, Decision.ABORT)


def test_a_log_that_fails_half_way_means_leave_alone(world: World) -> None:
    """The first application could be read, the second could not: nothing is sent."""
    for application in ("apart", "orders"):
        leave_aborting(world, application)
    real = world.log.unfinished

    def fails(application: str) -> list[TransactionRecord]:
        if application == "orders":
            raise DecisionLogError("down")
        return real(application)

    world.log.unfinished = fails  # type: ignore[assignment,method-assign]
    tracing = OpenTelemetryTracing()
    recovery = Recovery(world.log, world.delivery(), tracing)
    with pytest.raises(DecisionLogError, match="down"):
        list(recovery.sweep())
    assert world.a.heard == []
