"""Two drivers on one log, one of them paused anywhere: the newest wins, for ever.

The older one is stopped by SIGSTOP at a point of the protocol, the newer one runs to
the end, and the older one is woken by SIGCONT: it goes on as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fencing_support import (
    APPLICATION,
    BATCHES,
    Driver,
    Ending,
    Query,
    Services,
    services,
    state,
)
from support.checkpoint import Checkpoint
from support.spark import numbers_of
from support.texts import texts
from support.waiting import PAUSE, until

from participants.demo_report import count_states
from tracing_2pc.conformance import check_run
from tracing_2pc.core import failpoints
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.states import TransactionState
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.testing import Fault, FaultProxy

TEXTS = texts("fencing")

PAUSED = f"{APPLICATION}.1.1"
"""The transaction in which the older driver is paused."""

ACTIVE, COMMITTING = TransactionState.ACTIVE, TransactionState.COMMITTING
COMMITTED, ABORTED = TransactionState.COMMITTED, TransactionState.ABORTED


@dataclasses.dataclass(frozen=True)
class World:
    """Two participants, a log, a checkpoint, and the drivers that share them."""

    folder: Path
    log_url: str
    log: SqlDecisionLog
    services: Services
    stack: contextlib.ExitStack

    def driver(
        self,
        run: str,
        batches: int = BATCHES,
        seconds: float = 0.0,
        b: str | None = None,
    ) -> Driver:
        to = (self.services.a.url, b or self.services.b.url)
        made = Driver(
            run, self.folder, self.log_url, to, batches=batches, seconds=seconds
        )
        self.stack.callback(made.kill)
        return made

    def older(self) -> Driver:
        """Return a driver of which b never gets the commit of batch 1."""
        proxy = self.stack.enter_context(FaultProxy(self.services.b.url))
        proxy.plan("commit", Fault.DELAY, after=0.0)  # batch 0: nothing goes wrong
        proxy.plan("commit", Fault.DROP)
        return self.driver("older", b=proxy.url)

    def state(self, transaction: str) -> TransactionState | None:
        return state(self.log, transaction)

    def counts(self) -> Counter[TransactionState]:
        return count_states(self.log, APPLICATION)

    def assert_exactly_once(self, batches: int = BATCHES) -> None:
        """Each participant holds each row once; nothing waits for a decision."""
        assert self.services.held() == (numbers_of(batches), numbers_of(batches))
        assert self.services.in_doubt() == (0, 0)
        assert self.log.unfinished() == []


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.ci)])
def log_url(request, tmp_path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_database"))
    return f"sqlite:///{tmp_path / 'log.db'}"


@pytest.fixture
def world(tmp_path, log_url) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(contextlib.closing(open_log(log_url)))
        made = stack.enter_context(services(tmp_path))
        yield World(tmp_path, log_url, log, made, stack)
        both = ((name, f"sqlite:///{tmp_path}/{name}.db") for name in "ab")
        assert check_run(log_url, both) == []


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """A place to be paused at, and what is promised there.

    Args:
        failpoint: the place, in batch 1.
        state: of the paused transaction.
        in_doubt: branches that a and b have prepared for it.
        becomes: what the newer driver makes of it.
        error: how batch 1 ends for the woken driver; empty where its decision stood.
        says: in that error's words, by their name.
    """

    failpoint: str
    state: TransactionState | None
    in_doubt: tuple[int, int]
    becomes: TransactionState
    error: str
    says: str


BEFORE_VOTES = ("AbortedError", "before its votes")
WHILE_TASKS_RAN = ("AbortedError", "while its tasks ran")
AFTER_ALL = ("ParticipantRefusedError", "forgotten")
GONE = ("AbortedError", "gone from the log")
STANDS = ("", "")

BETWEEN_COMMITS = Point(
    "delivery.between_commits:3", COMMITTING, (0, 2), COMMITTED, *STANDS
)

BEFORE_DECIDE = "driver.before_decide:2", ACTIVE, (2, 2), ABORTED
LATE = [
    Point("driver.after_decide:2", COMMITTING, (2, 2), COMMITTED, *STANDS),
    BETWEEN_COMMITS,
]

POINTS = [
    Point(
        "driver.before_begin:2", None, (0, 0), COMMITTED, "AbortedError", "superseded"
    ),
    Point("driver.after_begin:2", ACTIVE, (0, 0), ABORTED, *WHILE_TASKS_RAN),
    Point("executor.after_pre_commit:3", ACTIVE, (1, 1), ABORTED, *WHILE_TASKS_RAN),
    Point(*BEFORE_DECIDE, *BEFORE_VOTES),
    *LATE[:-1],
]


@pytest.mark.parametrize(
    "point",
    [
        *(pytest.param(point, marks=pytest.mark.ci) for point in POINTS),
        BETWEEN_COMMITS,
    ],
    ids=lambda point: point.failpoint,
)
def test_a_paused_driver_is_fenced(world, point):
    """Wherever a driver sleeps while another takes over, each row lands once.

    The newer one finishes all batches. The older one, woken, hears what stands: its
    decision, if it had decided, or an error that says why not. Then every batch that
    it asks for is refused, and it changes nothing any more.
    """
    assert_fenced(world, point, point.becomes)


def assert_fenced(
    world: World, point: Point, becomes: TransactionState | None, **settings: str
) -> None:
    """Pause the older driver there, let the newer one, so set, end, and wake it."""
    older, newer = world.older(), world.driver("newer", BATCHES - 1)
    older.pause_at(point.failpoint)
    assert world.state(PAUSED) is point.state
    assert world.services.in_doubt() == point.in_doubt

    newer.start(**settings)
    assert newer.endings() == [Ending(batch) for batch in range(1, BATCHES)]
    assert world.state(PAUSED) is becomes
    world.assert_exactly_once()
    stood = world.counts()

    older.wake()
    first, woken, *after = older.endings()
    assert first == Ending(0)
    assert (woken.batch, woken.error) == (1, point.error), woken.message
    assert not point.says or TEXTS[point.says].format(batch=1) in woken.message
    assert [ending.batch for ending in after] == [2, 3]
    for ending in after:
        assert ending.error == "AbortedError"
        assert TEXTS["superseded"] in ending.message
    world.assert_exactly_once()
    assert world.counts() == stood


FORGOTTEN = [
    Point("driver.after_begin:2", ACTIVE, (0, 0), ABORTED, *AFTER_ALL),
    Point("executor.after_pre_commit:3", ACTIVE, (1, 1), ABORTED, *AFTER_ALL),
    Point(*BEFORE_DECIDE, *GONE),
    *LATE,
]


@pytest.mark.ci
@pytest.mark.parametrize("log_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("point", FORGOTTEN, ids=lambda point: point.failpoint)
def test_a_driver_that_slept_until_all_was_forgotten(world, point):
    """Neither log nor participants know its transaction any more: it means abort.

    And a commit that it sends once more is no contradiction: nothing is quarantined.
    """
    assert_fenced(world, point, None, TPC_KEEP_FINISHED="0")


@pytest.mark.ci
@pytest.mark.parametrize("log_url", ["sqlite"], indirect=True)
def test_a_driver_that_slept_before_its_first_batch(world):
    """The log has never heard of it, and tells it that it is late; nothing is opened.

    It is not superseded: it never ran. What it asks for was done by others, and the
    last of it is recognised as a replay.
    """
    older, newer = world.driver("older"), world.driver("newer")
    older.pause_at("driver.before_begin:1")
    newer.start()
    assert newer.endings() == [Ending(batch) for batch in range(BATCHES)]
    stood = world.counts()
    older.wake()
    *late, last = older.endings()
    for ending in late:
        assert ending.error == "ConfigurationError"
        assert TEXTS["slept too long"] in ending.message
    assert last == Ending(BATCHES - 1)
    world.assert_exactly_once()
    assert world.counts() == stood


@pytest.mark.ci
def test_two_drivers_that_live_do_not_abort_each_other_for_ever(world):
    """Of two that run at the same time the newer goes on, at the cost of one attempt.

    The older loses the batch that it was at, and is refused from then on, however
    often it asks; while it does, the newer finishes batch after batch. If the older has
    finished a batch since the newer looked, the newer is refused, and looks again.
    """
    older = world.driver("older", batches=10_000, seconds=PAUSE)
    older.start()
    until(lambda: world.counts()[COMMITTED] > 0)
    newer = world.driver("newer", batches=10)
    newer.start()
    ended = newer.endings()
    going = [*itertools.dropwhile(lambda ending: ending.error, ended)]
    for late in ended[: -len(going)]:
        assert TEXTS["slept too long"] in late.message
    assert [ending.error for ending in going] == [""] * len(going)
    assert len(going) >= 5
    *_, lost, second, third, fourth, fifth = older.endings()
    for ending in (second, third, fourth, fifth):
        assert TEXTS["superseded"] in ending.message
    assert lost.error in {"AbortedError", "ParticipantRefusedError"}
    assert world.counts()[ABORTED] <= 1
    world.assert_exactly_once(ended[-1].batch + 1)


def test_a_failpoint_knows_two_signals(monkeypatch):
    """A word that is neither is refused where it is armed, not where it would fire."""
    monkeypatch.setenv("TPC_FAILPOINT", "driver.before_begin")
    monkeypatch.setenv("TPC_FAILPOINT_SIGNAL", "TERM")
    with pytest.raises(ConfigurationError, match=TEXTS["two signals"]):
        failpoints.arm()
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("it is armed"))
    failpoints.failpoint("driver.before_begin")


def test_a_replayed_batch_is_applied_once(tmp_path):
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
