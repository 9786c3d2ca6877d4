"""What several files of this folder need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from support.participant import PartnerApi
from support.protocol import FakeClock, World
from support.watch import Site, site

from tracing_2pc.store import open_log


@pytest.fixture
def partner() -> Iterator[PartnerApi]:
    with contextlib.closing(PartnerApi()) as made:
        yield made


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    """One application on a real log, two participants that can fail, time by hand."""
    clock, url = FakeClock(), f"sqlite:///{tmp_path}/log.db"
    with contextlib.closing(open_log(url, now=clock.now)) as log:
        yield World(log, clock)


@pytest.fixture
def at(tmp_path) -> Iterator[Site]:
    """A log and two services of an application that begins with batch 7."""
    with site(tmp_path) as made:
        made.log.initialise("orders", 7)
        yield made
