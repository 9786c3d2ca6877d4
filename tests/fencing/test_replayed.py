"""Spark begins a batch again that it has not noted as done: it lands once."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fencing_services import services
from fencing_support import Checkpoint, Query
from support.spark import numbers_of

from tracing_2pc.store import open_log


def test_a_replayed_batch_is_applied_once(tmp_path: Path) -> None:
    """However often it comes back, and after it the next batch does too (rule 18)."""
    opened = contextlib.closing(open_log(f"sqlite:///{tmp_path / 'log.db'}"))
    with opened as log, services(tmp_path) as both:
        checkpoint = Checkpoint.at(tmp_path / "checkpoint")
        Query("first", checkpoint, log, both.sink()).apply(0)
        for life in range(3):
            checkpoint.lose_commit(0)
            again = Query(f"life-{life}", checkpoint, log, both.sink())
            again.apply(0)
        again.apply(1)
        assert both.held() == (numbers_of(2), numbers_of(2))
        assert log.unfinished() == []
