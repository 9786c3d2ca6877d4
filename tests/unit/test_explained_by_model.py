"""The checker's table against the model: what it can leave is accepted, and no more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest

from spec.protocol import Bounds, Protocol, World, broken, first
from spec.rules import QUICK, WITHOUT, Without
from tracing_2pc.conformance import (
    Contradiction,
    Held,
    Journal,
    Log,
    examine,
)
from tracing_2pc.core.model import (
    BranchId,
    Carrier,
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.states import Decision, TransactionState, Vote

MOST = 9_000
"""Worlds that are looked at: all of three of the bounds, and the nearest of one."""

SMALL = QUICK[2]
SHORT = [one for one in WITHOUT if one.rules in {("1",), ("4",), ("15",), ("18",)}]
APPLICATION = "model"
NAMES = ("ledger", "notifier", "search")
DECISIONS = {
    "active": None,
    "committing": Decision.COMMIT,
    "committed": Decision.COMMIT,
    "aborting": Decision.ABORT,
    "aborted": Decision.ABORT,
}


def left_by(world: World) -> tuple[Log, list[Journal]]:
    """Render a world of the model as what a run leaves of it: log and journals."""
    names = NAMES[: len(world.participants)]
    records = [
        TransactionRecord(
            _id(record.id),
            run="run",
            state=TransactionState(record.state),
            decision=DECISIONS[record.state],
            participants=names,
            acknowledged=frozenset(names[who] for who in record.acknowledged),
            carrier=Carrier(),
            started=0.0,
            finished=1.0 if record.state in ("committed", "aborted") else None,
            receipts=tuple(
                Receipt(BranchId(0, record.task), name, 1, "", Vote.COMMIT, {})
                for name in names
                if record.task >= 0
            ),
        )
        for record in world.log.records
    ]
    through = {APPLICATION: world.log.forgotten_through}
    log = Log({record.id: record for record in records}, through, through)
    journals = []
    for name, participant in zip(names, world.participants, strict=True):
        journal = Journal(APPLICATION, name, participant.forgotten_through)
        journal.seals |= {_id(of): state for of, state in participant.seals}
        for of, task, state in participant.branches:
            journal.branches[_id(of)][BranchId(0, task)] = Held(state, 1, "")
        journals.append(journal)
    return log, journals


def _id(of: tuple[int, int]) -> TransactionId:
    return TransactionId(APPLICATION, *of)


def worlds(protocol: Protocol, most: int) -> Iterator[World]:
    """Yield the worlds that can come to be, the nearest first, at most so many."""
    start = first(protocol.bounds)
    seen, waiting = {start}, deque([start])
    while waiting:
        world = waiting.popleft()
        yield world
        for step in protocol.steps(world):
            if step.world not in seen and len(seen) < most:
                seen.add(step.world)
                waiting.append(step.world)


def said_of(world: World) -> list[Contradiction]:
    return examine(*left_by(world))


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(one, marks=[pytest.mark.ci] if one != SMALL else [])
        for one in QUICK
    ],
)
def test_whatever_the_model_can_leave_is_accepted(bounds: Bounds) -> None:
    """A log and journals of a run without a fault of ours are never accused."""
    looked_at = worlds(Protocol(bounds), MOST)
    left = {(world.log, world.participants): world for world in looked_at}
    assert len(left) > 500
    assert [said for world in left.values() if (said := said_of(world))] == []


@pytest.mark.parametrize(
    "without",
    [
        pytest.param(one, marks=[pytest.mark.ci] if one not in SHORT else [])
        for one in WITHOUT
    ],
    ids=lambda one: "+".join(one.rules).replace(" ", "_"),
)
def test_whatever_breaks_a_promise_is_refused(without: Without) -> None:
    """With a rule taken out of the model, each world without a promise is told."""
    protocol = Protocol(without.bounds, frozenset(without.rules))
    looked_at = [*worlds(protocol, MOST)]
    assert [w for w in looked_at if broken(w) and not said_of(w)] == []
    is_seen = any(said_of(world) for world in looked_at)
    # Without these nothing is wrong on record: something only never ends.
    assert is_seen is (without.rules not in {("6", "19"), ("10",)})
