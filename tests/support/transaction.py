"""A decision log and two services in this process, on SQLite, asked over HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.served import application
from support.spark import serving
from support.waiting import PATIENT
from tracing_2pc import ParticipantSink
from tracing_2pc.participant import TaggedRows
from tracing_2pc.store import SqlDecisionLog, open_log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqlDecisionLog]:
    with contextlib.closing(open_log(f"sqlite:///{tmp_path / 'log.db'}")) as log:
        yield log


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[ParticipantSink]:
    """Two services, each with a database of its own."""
    with contextlib.ExitStack() as stack:
        urls = {}
        for name in ("ledger", "notifier"):
            resource = TaggedRows(f"sqlite:///{tmp_path / name}.db", "numbers")
            stack.callback(resource.close)
            urls[name] = stack.enter_context(serving(application(resource)))
        yield ParticipantSink(urls, token=None, timeout=PATIENT)
