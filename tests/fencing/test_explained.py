"""What is left of runs that were cut short is explained, by log and journals alone.

Where a process is killed, it is one: a driver or a participant, by SIGKILL. Nobody
looks at rows here. Each story is run again with a rule taken out of the code
(`tests/rules/test_explained_rules.py`), and must then not be explained.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fencing_support import (
    APPLICATION,
    QUICK,
    Driver,
    Query,
    Services,
    services,
    sink_to,
)
from support.branches import records
from support.checkpoint import Checkpoint
from support.killed import Participant
from support.participant import World
from support.spark import ROWS

from participants.processes import stopping
from tracing_2pc import ParticipantSink
from tracing_2pc.conformance import check_run
from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.model import TransactionRecord
from tracing_2pc.core.ports import Opening
from tracing_2pc.protocol.recovery import Recovery
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.tracing.transaction import OpenTelemetryTracing


@dataclasses.dataclass
class Runs:
    """Lives of one query, on one log, to a and b."""

    folder: Path
    log: SqlDecisionLog
    both: Services
    sink: ParticipantSink

    def life(self, run: str) -> Query:
        checkpoint = Checkpoint.at(self.folder / "checkpoint")
        return Query(run, checkpoint, self.log, self.sink, settings=ONE_TRY)

    def to_the_end(self, batches: int) -> None:
        """Start it once more; an error ends it, as any other."""
        with contextlib.suppress(TwoPhaseError):
            self.life("last").start(batches)

    def killed_at(self, failpoint: str, batches: int = 1) -> None:
        """Kill its driver there, a process."""
        log, to = f"sqlite:///{self.folder}/log.db", (self.both.a.url, self.both.b.url)
        Driver("first", self.folder, log, to, batches=batches).killed_at(failpoint)

    def recovery(self) -> Recovery:
        delivery = self.life("first").coordinator.delivery
        return Recovery(self.log, delivery, OpenTelemetryTracing())

    def forget(self) -> None:
        assert self.log.forget(APPLICATION, finished_before=2.0**40, limit=1)


TWIN = records("0.77", value=[*range(ROWS)])
ONE_TRY = dataclasses.replace(QUICK, on_pending="fail", inline_tries=1)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    opened = contextlib.closing(open_log(f"sqlite:///{tmp_path}/log.db"))
    with opened as log, services(tmp_path) as both:
        yield Runs(tmp_path, log, both, both.sink())


def before_its_tasks(runs: Runs) -> None:
    runs.killed_at("driver.before_tasks")


def after_the_votes(runs: Runs) -> None:
    runs.killed_at("driver.before_decide")


def after_the_votes_and_once_more(runs: Runs) -> None:
    after_the_votes(runs)
    runs.to_the_end(2)


def between_two_commits(runs: Runs) -> None:
    runs.killed_at("delivery.between_commits")


def before_the_last_acknowledgement(runs: Runs) -> None:
    runs.killed_at("delivery.before_finish")
    runs.to_the_end(2)


def of_a_participant_before_it_commits(runs: Runs) -> None:
    """It is killed by what it is asked, and not started again."""
    b = Participant("b", runs.folder)
    with stopping(b):
        fired = str(runs.folder / "fired")
        b.start(TPC_FAILPOINT="participant.before_commit", TPC_FAILPOINT_FILE=fired)
        runs.sink = sink_to(runs.both.a.url, b.url)
        with contextlib.suppress(TwoPhaseError):
            runs.life("first").apply(0)
        assert Path(fired).exists()


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
    assert [*runs.recovery().sweep()]


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
    runs.log.begin(APPLICATION, 0, Opening(run="second", **to))


def replayed(runs: Runs) -> None:
    """Spark did not note that the batch is done."""
    runs.life("first").start(1)
    Checkpoint.at(runs.folder / "checkpoint").lose_commit(0)
    runs.to_the_end(1)


def replayed_and_forgotten(runs: Runs) -> None:
    """It is the newest: it stays on record."""
    runs.life("first").start(1)
    runs.log.forget(APPLICATION, finished_before=2.0**40, limit=1)
    Checkpoint.at(runs.folder / "checkpoint").lose_commit(0)
    runs.to_the_end(1)


def forgotten(runs: Runs) -> None:
    """Batch 0 is forgotten, and participants hear of it while batch 4 runs."""
    first = runs.life("first")
    first.start(3)
    runs.forget()
    first.start(4)


def forgotten_with_a_tombstone(runs: Runs) -> None:
    """The abort of an attempt that wrote nothing stays known above."""
    first = runs.life("first")
    first.start(3)
    runs.forget()

    def write(record: TransactionRecord) -> NoReturn:
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        first.apply(3, write)
    first.start(4)


def forgotten_before_recovery(runs: Runs) -> None:
    """It is forgotten before the commit of another is delivered, and is not durable."""
    runs.killed_at("driver.after_decide:3", batches=3)
    runs.forget()
    assert [result.done for result in runs.recovery().sweep()] == [True]


def with_an_upload_that_ends_late(runs: Runs) -> None:
    """A twin's, of which a has one half when the transaction is aborted."""
    first = runs.life("first")
    record = first.begin(0)
    receipts = first.write(record)
    a = World(runs.both.a.resource, lambda: 0).called("a")
    with a.writing(str(record.id), TWIN):
        _begin_beside(runs)
        with contextlib.suppress(TwoPhaseError):
            first.coordinator.close(record, receipts)


STORIES = (
    before_its_tasks,
    after_the_votes,
    after_the_votes_and_once_more,
    between_two_commits,
    before_the_last_acknowledgement,
    of_a_participant_before_it_commits,
    with_a_vote_that_is_missing,
    with_twins,
    with_a_task_that_fails,
    with_recovery_beside,
    woken_after_another_began,
    replayed,
    replayed_and_forgotten,
    forgotten,
    forgotten_with_a_tombstone,
    forgotten_before_recovery,
    with_an_upload_that_ends_late,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_it_is_explained(runs: Runs, story: Callable[[Runs], None]) -> None:
    story(runs)
    both = [(name, f"sqlite:///{runs.folder}/{name}.db") for name in "ab"]
    found = check_run(f"sqlite:///{runs.folder}/log.db", both)
    assert [str(one) for one in found] == []
