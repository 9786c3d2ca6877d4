"""What is left of runs that were cut short is explained, by log and journals alone.

Nobody looks at rows here. Each story is run again with a rule taken out of the code
(`tests/rules/test_explained_rules.py`), and must then not be explained.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fencing_support import APPLICATION, QUICK, Query, services
from support.checkpoint import Checkpoint

from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.model import TransactionRecord
from tracing_2pc.protocol.recovery import Recovery
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.testing.conformance import check_run
from tracing_2pc.tracing.transaction import OpenTelemetryTracing


class KilledError(BaseException):
    """The driver ends here: nothing of it runs any more."""


@dataclasses.dataclass
class Runs:
    """Lives of one query, on one log, to a and b."""

    folder: Path
    log: SqlDecisionLog
    sink: Any

    def life(self, run: str) -> Query:
        checkpoint = Checkpoint.at(self.folder / "checkpoint")
        return Query(run, checkpoint, self.log, self.sink, settings=ONE_TRY)

    def to_the_end(self, batches: int) -> None:
        """Start it once more; an error ends it, as any other."""
        with contextlib.suppress(TwoPhaseError):
            self.life("last").start(batches)

    @contextlib.contextmanager
    def killed_at(self, method: str) -> Iterator[None]:
        """Kill the driver when it asks the log for this."""

        def killed(*_: object, **__: object) -> NoReturn:
            raise KilledError

        self.log.__dict__[method] = killed
        with contextlib.suppress(KilledError):
            yield
        del self.log.__dict__[method]


ONE_TRY = dataclasses.replace(QUICK, on_pending="fail", inline_tries=1)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    opened = contextlib.closing(open_log(f"sqlite:///{tmp_path}/log.db"))
    with opened as log, services(tmp_path) as both:
        yield Runs(tmp_path, log, both.sink())


def after_the_votes(runs: Runs) -> None:
    with runs.killed_at("decide"):
        runs.life("first").apply(0)


def after_the_votes_and_once_more(runs: Runs) -> None:
    after_the_votes(runs)
    runs.to_the_end(2)


def before_the_last_acknowledgement(runs: Runs) -> None:
    with runs.killed_at("acknowledge_last"):
        runs.life("first").apply(0)
    runs.to_the_end(2)


def with_a_vote_that_is_missing(runs: Runs) -> None:
    first = runs.life("first")

    def write(record: TransactionRecord) -> Any:
        return [one for one in first.write(record) if one.participant == "a"]

    with contextlib.suppress(TwoPhaseError):
        first.apply(0, write)


def with_twins(runs: Runs) -> None:
    first = runs.life("first")

    def write(record: TransactionRecord) -> Any:
        first.task(record, 0, 77)
        return first.write(record)

    first.apply(0, write)


def with_a_task_that_fails(runs: Runs) -> None:
    first = runs.life("first")

    def write(record: TransactionRecord) -> NoReturn:
        first.write(record)
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        first.apply(0, write)


def with_recovery_beside(runs: Runs) -> None:
    first = runs.life("first")
    first.write(first.begin(0))
    delivery = first.coordinator.delivery
    recovery = Recovery(runs.log, delivery, OpenTelemetryTracing())
    assert [*recovery.sweep()]


def woken_after_another_began(runs: Runs) -> None:
    """The older driver has its votes; the abort of its attempt is not delivered yet."""
    first = runs.life("first")
    record = first.begin(0)
    receipts = first.write(record)
    _begin_beside(runs)
    with contextlib.suppress(TwoPhaseError):
        first.coordinator.close(record, receipts)


def _begin_beside(runs: Runs) -> None:
    query = Checkpoint.at(runs.folder / "checkpoint").query
    to = {"participants": ("a", "b"), "carrier": {}, "query": query}
    runs.log.begin(APPLICATION, 0, run="second", **to)


def replayed(runs: Runs) -> None:
    """Spark did not note that the batch is done."""
    runs.life("first").start(1)
    Checkpoint.at(runs.folder / "checkpoint").lose_commit(0)
    runs.to_the_end(1)


def forgotten(runs: Runs) -> None:
    """Batch 0 is forgotten, and participants hear of it while batch 4 runs."""
    first = runs.life("first")
    first.start(3)
    _forget(runs)
    first.start(4)


def forgotten_beside(runs: Runs) -> None:
    """It is forgotten between begin and commit of another."""
    first = runs.life("first")
    first.start(2)
    record = first.begin(2)
    receipts = first.write(record)
    _forget(runs)
    first.coordinator.close(record, receipts)


def _forget(runs: Runs) -> None:
    assert runs.log.forget(APPLICATION, finished_before=2.0**40, limit=1)


STORIES = (
    after_the_votes,
    after_the_votes_and_once_more,
    before_the_last_acknowledgement,
    with_a_vote_that_is_missing,
    with_twins,
    with_a_task_that_fails,
    with_recovery_beside,
    woken_after_another_began,
    replayed,
    forgotten,
    forgotten_beside,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_it_is_explained(runs: Runs, story: Callable[[Runs], None]) -> None:
    story(runs)
    both = [(name, f"sqlite:///{runs.folder}/{name}.db") for name in "ab"]
    found = check_run(f"sqlite:///{runs.folder}/log.db", both)
    assert [str(one) for one in found] == []
