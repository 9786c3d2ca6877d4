"""What several files of this folder need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from support.participant import PartnerApi
from support.protocol import FakeClock, World

from tracing_2pc.testing import InMemoryDecisionLog


@pytest.fixture
def partner() -> Iterator[PartnerApi]:
    with contextlib.closing(PartnerApi()) as made:
        yield made


@pytest.fixture
def world() -> World:
    """One that a file may replace by a world of its own."""
    clock = FakeClock()
    return World(InMemoryDecisionLog(now=clock.now), clock)
